package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/access"
)

// accessExample serves all protocols, with the rights that deployments usually give.
const accessExample = `namespaces:
  - {name: default, anonymous: true}
  - {name: mercure}
  - {name: shop}
auth: {hmac_secret: 0123456789abcdef0123456789abcdef}
centrifuge:
  enabled: true
  user_personal_channel: true
  namespaces:
    default:
      allow_user_limited_channels: true
      allow_subscribe_for_client: true
      presence: true
      allow_presence_for_subscriber: true
      allow_publish_for_subscriber: true
      allow_history_for_client: true
mercure: {enabled: true, anonymous: true}
pusher:
  enabled: true
  apps: [{id: a, key: k, secret: s-0123456789abcdef, namespace: shop, client_events: true}]
`

const accessIntro = `# Who may read, publish and see presence

Made from the code; do not edit. One model decides for every protocol and both versions of HTTP, and
` + "`weir config access`" + ` prints its decisions for your configuration (` + "`--json`" + ` for programs); ` + "`weir config check`" + ` warns where callers reach channels that are not meant for them.

| class | channels | who reads them |
|---|---|---|
| plain | all others | everyone whom the namespace lets in: ` + "`anonymous`, `allow_subscribe_for_client`" + `, a Mercure hub's subscribers, clients with an application's key; and grants |
| users | ` + "`#42`" + ` with ` + "`user_personal_channel`, `name#42,43`" + ` with ` + "`allow_user_limited_channels`" + ` | the users named; grants that spell out the name up to the ` + "`#`" + ` |
| token | ` + "`$name`" + ` where the Centrifuge protocol is served | holders of a subscription token; grants |
| signed | ` + "`private-`, `presence-`, `private-encrypted-`" + ` in a namespace of a Pusher application | clients with the application's signature; grants |
| signed-in | ` + "`#server-to-user-42`" + ` there | the user who has signed in; grants that spell out the prefix |
| recording | ` + "`rec.<key>`" + ` of recorded replies | by the recording's URL alone; grants that spell out ` + "`rec.`" + `. Nothing publishes there but the recorder |

- What a namespace allows every client opens plain channels only, whichever protocol is used. In the other classes the rights of Centrifuge clients (` + "`allow_publish_for_…`, `allow_presence_for_…`, `allow_history_for_…`" + `) count for clients that are subscribed or meant.
- The ` + "`weir`" + ` claim of a token counts as a grant in Weir's own protocols and in Centrifuge's. A wildcard in a token does not reach users' channels or recordings: ` + "`**`" + ` does not cover ` + "`#42`, `#*`" + ` does. Patterns of API keys and of embedding programs (` + "`hub/hubhttp`" + `) count as they are.
- ` + "`/sse?channel=%2342`" + ` is open to the token of user 42 if connection tokens are verified with the keys of ` + "`auth`" + `; with a key set of their own in ` + "`centrifuge.keys`" + ` users are others, and need a grant.
- "public" means without messages that were published as private. A stream that a backend holds (GRIP) is one of those; the backend decides on the channel, within ` + "`hold.channels`" + `.
- Mercure: an update is delivered if the token grants one of its topics, or if it is public and on a plain channel. The list of subscriptions needs a grant for its path.
- Resuming is a part of reading. The admin listener, with the message tracer and the table of connections, is for holders of the admin token alone.
- ` + "`centrifuge.insecure`" + ` lets every client publish to guarded channels, and see presence and history there; ` + "`config check`" + ` warns of it.

With this configuration:

`

func TestTheAccessReferenceIsUpToDate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte(accessExample), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if w := cfg.Warnings(); len(w) > 0 {
		t.Errorf("%v", w)
	}
	var b bytes.Buffer
	b.WriteString(accessIntro + "```yaml\n" + accessExample + "```\n\n```\n")
	var table bytes.Buffer
	if err := access.Write(&table, cfg.AccessModel().Table(cfg.Namespaces)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(table.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	b.WriteString("```\n")
	const path = "../../../docs/reference/access.md"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the model says (%v); run: go test ./internal/app/config -update", path, err)
	}
}
