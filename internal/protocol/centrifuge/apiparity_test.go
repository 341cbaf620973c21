package centrifuge_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

// What Centrifugo 6.9 answered to the same calls, byte by byte.
func TestAPIAnswersAsCentrifugo(t *testing.T) {
	options := map[string]centrifuge.Namespace{
		"default": {Presence: true}, "plain": {}, "object": {DataFormat: "json_object"}, "regex": {ChannelRegex: "^[a-z]+$"}, "Chat": {},
	}
	var spaces []hub.Namespace
	for name := range options {
		ns := hub.Namespace{Name: name}
		if name == "plain" {
			ns.Durability = hub.None
		}
		spaces = append(spaces, ns)
	}
	n := start(t, settings{spaces: spaces, cfg: centrifuge.Config{AnonymousConnect: true, Namespaces: options}})
	f := func(method, body, want string) {
		t.Helper()
		status, got := n.api(method, body)
		if !strings.HasPrefix(want, "{") {
			want = fmt.Sprintf(`{"error":{%s}}`, want)
		}
		if status != http.StatusOK || got != want {
			t.Errorf("%s %s:\ngot  %d %s\nwant %s", method, body, status, got, want)
		}
	}
	const bad, unknown, none, missing = `"code":107,"message":"bad request"`, `"code":102,"message":"unknown channel"`,
		`"code":108,"message":"not available"`, `"code":104,"message":"not found"`
	const done = `{"result":{}}`
	f("publish", `{"channel":"plain:a","data":{}}`, done)
	f("publish", `{"channel":"plain:a","data":1,"idempotency_key":"z"}`, done)
	f("publish", `{"channel":"a","data":1,"skip_history":true}`, done)
	f("publish", `{"channel":"plain:a","data":1,"delta":true,"unknown":1}`, done)
	f("publish", `{"channel":"object:a","data":[1]}`, bad)
	f("publish", `{"channel":"object:a","b64data":"MQ=="}`, bad)
	f("publish", `{"channel":"object:a","b64data":"\n"}`, bad)
	f("publish", `{"channel":"a","b64data":"!!!"}`, bad)
	f("publish", `{"channel":"","data":1}`, bad)
	f("publish", `{"channel":"nowhere:a","data":1}`, unknown)
	f("publish", `{"channel":"chat:a","data":1}`, unknown) // case counts
	if _, got := n.api("publish", `{"channel":"Chat:a","data":1}`); !strings.Contains(got, `"offset":1`) {
		t.Errorf("a namespace with a capital: %s", got)
	}
	if _, got := n.api("publish", `{"channel":"regex:ABC","data":1}`); !strings.Contains(got, `"offset":1`) {
		t.Errorf("channel_regex is for clients: %s", got)
	}
	f("broadcast", `{"channels":["a"],"b64data":"!!"}`, bad)
	f("broadcast", `{"channels":[],"data":1}`, bad)
	f("broadcast", `{"channels":["plain:a","nowhere:a",""],"data":1}`, `{"result":{"responses":[{"result":{}},{"error":{`+unknown+`}},{"error":{`+bad+`}}]}}`)
	f("subscribe", `{"user":"1","channel":"a","b64data":"!!"}`, bad)
	f("subscribe", `{"user":"1","channel":"a","b64info":"!!"}`, bad)
	f("subscribe", `{"user":"1","channel":"a","b64info":"e30="}`, done)
	f("unsubscribe", `{"user":"1"}`, done)
	f("presence", `{"channel":"a"}`, `{"result":{"presence":{}}}`)
	f("presence", `{"channel":"plain:a"}`, none)
	f("presence_stats", `{"channel":"a"}`, `{"result":{"num_clients":0,"num_users":0}}`)
	f("history", `{"channel":"plain:a"}`, none)
	f("history", `{"channel":"a","limit":1,"since":{"offset":1,"epoch":"bad"}}`, `"code":112,"message":"unrecoverable position"`)
	f("history_remove", `{"channel":"plain:a"}`, none)
	f("channels", `{}`, `{"result":{"channels":{}}}`)
	f("rpc", `{}`, bad)
	f("rpc", `{"method":"x"}`, missing)
	f("batch", `{}`, `{}`)
	f("batch", `{"commands":[]}`, `{}`)
	f("batch", `{"commands":[{}]}`, `{"replies":[{"error":{`+missing+`}}]}`)
	f("batch", `{"commands":[null]}`, `{"replies":[{"error":{`+bad+`}}]}`)
	f("batch", `{"commands":[{"nothing":{}},{"publish":null}]}`, `{"replies":[{"error":{`+missing+`}},{"error":{`+missing+`}}]}`)
	f("batch", `{"commands":[{"presence":{"channel":"a"},"publish":{"channel":"plain:a","data":1}}],"parallel":true}`, `{"replies":[{"publish":{}}]}`)
	// What other types of channels have is not available, in the words of the protocol.
	for _, method := range []string{"map_publish", "map_remove", "map_read_state", "map_read_stream", "map_stats", "map_clear", "shared_poll_publish"} {
		f(method, `{"channel":"a","key":"k","data":1,"version":1}`, none)
		f(method, `{}`, bad)
		f(method, `{"channel":"nowhere:a"}`, unknown)
		f("batch", `{"commands":[{"`+method+`":{"channel":"a","key":"k"}}]}`, `{"replies":[{"error":{`+none+`}}]}`)
	}
	// Errors as statuses have no envelope.
	for body, want := range map[string]string{`{"channel":"nowhere:a","data":1}`: `404 {` + unknown + `}`, `{"channel":"","data":1}`: `400 {` + bad + `}`} {
		status, got := n.api("publish", body, "X-Centrifugo-Error-Mode", "transport")
		if s := fmt.Sprintf("%d %s", status, got); s != want {
			t.Errorf("got %s, want %s", s, want)
		}
	}
}

// 3000 is the code of a connection that is gone: nothing is said to the client, which
// comes again.
func TestCode3000IsNotSaid(t *testing.T) {
	n := start(t, settings{})
	request := `{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`
	c := n.connect(request)
	events := n.stream("GET", "/connection/sse?cf_connect="+escape(`{"id":1,"connect":`+request+`}`), "")
	events.next()
	n.wantAPI("disconnect", `{"user":"42","disconnect":{"code":3000,"reason":"moved"}}`, `{"result":{}}`)
	for _, c := range []*client{c, events} {
		said, err := c.Rest()
		if e, ok := errors.AsType[*websocket.CloseError](err); ok || len(said) > 0 {
			t.Errorf("got %v and a close frame %v", said, e)
		}
	}
}

// What Centrifugo 6.9 answered to the same commands, where an answer is easily another.
func TestCommandsAreAnsweredAsByCentrifugo(t *testing.T) {
	n := start(t, settings{})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "1"}) + `"}`)
	f := func(command, want string) {
		t.Helper()
		c.send(`{"id":2,` + command + `}`)
		c.expect(`{"id":2,` + want + `}`)
	}
	f(`"publish":{"channel":"a"}`, `"error":{"code":107,"message":"bad request"}`)
	f(`"subscribe":{"channel":"a","type":1}`, `"error":{"code":108,"message":"not available"}`)
	f(`"subscribe":{"channel":"a","type":4}`, `"error":{"code":108,"message":"not available"}`)
	f(`"publish":{"channel":"a","type":1,"key":"k"}`, `"error":{"code":108,"message":"not available"}`)
	f(`"sub_refresh":{"channel":"a","type":1}`, `"error":{"code":108,"message":"not available"}`)
	sub := token(t, map[string]any{"sub": "1", "channel": "a", "exp": 4_102_444_800})
	f(`"subscribe":{"channel":"a","token":"`+sub+`"}`, `"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","expires":true,"ttl":31536000}`)
	f(`"sub_refresh":{"channel":"a","token":""}`, `"error":{"code":107,"message":"bad request"}`)
	f(`"sub_refresh":{"channel":"a","token":"`+sub+`"}`, `"sub_refresh":{"expires":true,"ttl":31536000}`)
	f(`"refresh":{"token":"`+token(t, map[string]any{"sub": "1", "exp": 4_102_444_800})+`"}`, `"refresh":{"expires":true,"ttl":31536000}`)
}

// Proxies and browsers take the first of two Cache-Control fields, or the second.
func TestStreamsSayOnceHowTheyAreCached(t *testing.T) {
	n := start(t, settings{})
	for _, path := range []string{"sse", "uni_sse"} {
		req, err := http.NewRequest(http.MethodGet, "http://"+n.Addr+"/connection/"+path+"?cf_connect="+escape(`{"id":1,"connect":{}}`), http.NoBody)
		n.Must(err)
		res, err := http.DefaultClient.Do(req)
		n.Must(err)
		_ = res.Body.Close()
		for _, name := range []string{"Cache-Control", "X-Accel-Buffering"} {
			if got := res.Header.Values(name); len(got) != 1 {
				t.Errorf("%s: %s: %q", path, name, got)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
