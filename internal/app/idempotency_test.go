package app

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// keyed is a publisher over one version of HTTP. Its keys are its own from test to test,
// by their prefix.
type keyed struct {
	t      *testing.T
	g      *gateway
	client *http.Client
	prefix string
	field  [2]string // its credentials
}

func (k keyed) as(name, value string) keyed {
	k.field = [2]string{name, value}
	return k
}

// places are what distinguishes answers.
var places = regexp.MustCompile(`"(?:offset|code)":\d+`)

// call posts body, in which ~ is the prefix, and returns the status with all offsets and
// codes of errors in the answer.
func (k keyed) call(path, body string) string {
	k.t.Helper()
	req, err := http.NewRequestWithContext(k.t.Context(), http.MethodPost, k.g.url+path, strings.NewReader(strings.ReplaceAll(body, "~", k.prefix)))
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header.Set(k.field[0], k.field[1])
	res, err := k.client.Do(req)
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	out := fmt.Sprint(res.StatusCode)
	for _, m := range places.FindAllString(string(answer), -1) {
		out += " " + strings.ReplaceAll(m, `"`, "")
	}
	return out
}

// stored posts what must become a new message, and returns the answer.
func (k keyed) stored(path, body string) string {
	k.t.Helper()
	before := k.end()
	got := k.call(path, body)
	if after := k.end(); !strings.HasPrefix(got, "200 offset") || after <= before {
		k.t.Errorf("%s %s: %s, the log's end went from %d to %d", path, body, got, before, after)
	}
	return got
}

// answers posts what must store nothing, and be answered so.
func (k keyed) answers(want, path, body string) {
	k.t.Helper()
	before := k.end()
	if got, after := k.call(path, body), k.end(); got != want || after != before {
		k.t.Errorf("%s %s: %s, want %s; the log's end went from %d to %d", path, body, got, want, before, after)
	}
}

func (k keyed) end() uint64 {
	k.t.Helper()
	at, err := k.g.hub.Top(k.t.Context(), hub.DefaultNamespace)
	if err != nil {
		k.t.Fatal(err)
	}
	return at.Offset
}

const (
	idemSecret = "0123456789abcdefghijklmnopqrstuvwxyz"
	oneKey     = "one-key-0123456789"
	otherKey   = "other-key-0123456789"
	serverKey  = "server-key-0123456789"
)

// startKeyed is a gateway with three publishers by key, and others by token.
func startKeyed(t *testing.T, broker config.Broker) *gateway {
	return start(t, func(c *config.Config) {
		c.Broker = broker
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true}}
		c.Auth.HMACSecret = idemSecret
		c.Auth.APIKeys = []auth.APIKey{{Name: "one", Key: oneKey, Publish: []string{"t1.**", "both.*"}}, {Name: "other", Key: otherKey, Publish: []string{"t2.*", "both.*"}}}
		c.Centrifuge.Enabled, c.Centrifuge.Insecure, c.Centrifuge.APIKey = true, true, serverKey
	})
}

// TestIdempotencyKeysBelongToTheirPublishers: over every version of HTTP, API and broker
// a key counts for one publisher and channel, and for one message.
func TestIdempotencyKeysBelongToTheirPublishers(t *testing.T) {
	external := config.Broker{Kind: config.BrokerNATS}
	external.NATS.URL = natstest.Server(t)
	embedded := config.Broker{Kind: config.BrokerNATS}
	embedded.NATS.Dir = t.TempDir()
	for name, broker := range map[string]config.Broker{"memory": {Kind: config.BrokerMemory}, "embedded": embedded, "external": external} {
		t.Run(name, func(t *testing.T) {
			g := startKeyed(t, broker)
			h1 := keyed{t, g, http.DefaultClient, "h1", [2]string{"X-API-Key", oneKey}}
			h2 := keyed{t, g, overHTTP2(t, nil), "h2", [2]string{"X-API-Key", oneKey}}
			h1.ownKeys(h2)
			h2.ownKeys(h1)
			first := h1.stored("/api/publish", `{"channel":"t1.late","data":1,"idempotency_key":"late"}`)
			if broker.Kind == config.BrokerMemory {
				return
			}
			if broker.NATS.URL == "" { // a restart; otherwise another node
				g.stop()
				err := <-g.done
				g.done <- err
				if err != nil {
					t.Fatal(err)
				}
			}
			h1.g = startKeyed(t, broker)
			h1.answers(first, "/api/publish", `{"channel":"t1.late","data":1,"idempotency_key":"late"}`)
			h1.answers("409 code:409", "/api/publish", `{"channel":"t1.late","data":2,"idempotency_key":"late"}`)
		})
	}
}

// ownKeys is the case over the HTTP of one, with retries over that of the other.
func (k keyed) ownKeys(retry keyed) {
	const publish, broadcast, server = "/api/publish", "/api/broadcast", "/centrifugo/api/"
	retry.prefix = k.prefix
	other, a, b := k.as("X-API-Key", otherKey), k.as("Authorization", "Bearer "+k.token("a")), k.as("Authorization", "Bearer "+k.token("b"))

	// Another publisher's key, and another channel's, are other keys.
	first := k.stored(publish, `{"channel":"t1.~","data":1,"idempotency_key":"~"}`)
	other.stored(publish, `{"channel":"t2.~","data":1,"idempotency_key":"~"}`)
	k.stored(publish, `{"channel":"t1.~.y","data":1,"idempotency_key":"~"}`)
	for _, who := range []keyed{k, other, a, b, k.as("X-API-Key", serverKey)} {
		path := publish
		if who.field[1] == serverKey {
			path = server + "publish"
		}
		at := who.stored(path, `{"channel":"both.~","data":1,"idempotency_key":"~"}`)
		who.answers(at, path, `{"channel":"both.~","data":1,"idempotency_key":"~"}`)
	}
	retry.answers(first, publish, `{"channel":"t1.~","data":1,"idempotency_key":"~"}`)
	retry.answers(first, server+"publish", `{"channel":"t1.~","data":1,"idempotency_key":"~"}`) // the same publisher

	// Whatever differs, it is not a retry.
	for _, differs := range []string{`"data":2`, `"text":"1"`, `"data":1,"key":"k"`, `"data":1,"id":"i"`, `"data":1,"event":"e"`, `"data":1,"private":true`, `"data":1,"tags":{"a":"b"}`} {
		retry.answers("409 code:409", publish, `{"channel":"t1.~",`+differs+`,"idempotency_key":"~"}`)
	}

	// Each channel of a broadcast answers for itself.
	both := k.stored(broadcast, `{"channels":["t1.~.b1","t1.~.b2"],"data":1,"idempotency_key":"~"}`)
	retry.answers(both, broadcast, `{"channels":["t1.~.b1","t1.~.b2"],"data":1,"idempotency_key":"~"}`)
	retry.answers("200 code:409 code:409", broadcast, `{"channels":["t1.~.b1","t1.~.b2"],"data":2,"idempotency_key":"~"}`)
	retry.answers("409 code:409", publish, `{"channel":"t1.~.b2","data":2,"idempotency_key":"~"}`)
	if got := retry.stored(broadcast, `{"channels":["t1.~.b1","t1.~.b3"],"data":1,"idempotency_key":"~"}`); !strings.HasPrefix(got, both[:strings.LastIndex(both, " ")]+" ") {
		k.t.Errorf("a broadcast to one channel more was answered %s, after %s", got, both)
	}

	// Centrifuge's server API.
	s := k.as("X-API-Key", serverKey)
	sRetry := retry.as("X-API-Key", serverKey)
	at := s.stored(server+"publish", `{"channel":"~.s","data":{"x":1},"tags":{"a":"b"},"idempotency_key":"~"}`)
	sRetry.answers(at, server+"publish", `{"channel":"~.s","data":{"x":1},"tags":{"a":"b"},"idempotency_key":"~"}`)
	sRetry.answers("200 code:113", server+"publish", `{"channel":"~.s","data":{"x":2},"tags":{"a":"b"},"idempotency_key":"~"}`)
	sRetry.answers("200 code:113", server+"publish", `{"channel":"~.s","data":{"x":1},"tags":{"a":"c"},"idempotency_key":"~"}`)
	sRetry.answers("200 code:113", server+"batch", `{"commands":[{"publish":{"channel":"~.s","data":1,"idempotency_key":"~"}}]}`)
	both = s.stored(server+"broadcast", `{"channels":["~.s1","~.s2"],"data":1,"idempotency_key":"~"}`)
	sRetry.answers(both, server+"broadcast", `{"channels":["~.s1","~.s2"],"data":1,"idempotency_key":"~"}`)
	sRetry.answers("200 code:113 code:113", server+"broadcast", `{"channels":["~.s1","~.s2"],"data":2,"idempotency_key":"~"}`)

	// A version that is too old does not hide what the key says.
	at = s.stored(server+"publish", `{"channel":"~.v","data":1,"version":5,"idempotency_key":"~"}`)
	sRetry.answers(at, server+"publish", `{"channel":"~.v","data":1,"version":5,"idempotency_key":"~"}`)
	sRetry.answers("200 code:113", server+"publish", `{"channel":"~.v","data":2,"version":5,"idempotency_key":"~"}`)
}

func (k keyed) token(sub string) string {
	k.t.Helper()
	text, err := auth.Mint(auth.Config{KeySet: auth.KeySet{HMACSecret: idemSecret}}, auth.MintClaims{Subject: sub, Publish: []string{"**"}})
	if err != nil {
		k.t.Fatal(err)
	}
	return text
}
