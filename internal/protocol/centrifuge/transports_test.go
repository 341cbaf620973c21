package centrifuge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// emulate posts commands of an emulated client.
func (n *node) emulate(session, node, commands string) int {
	n.T.Helper()
	body, err := json.Marshal(map[string]string{"session": session, "node": node, "data": commands})
	n.Must(err)
	res, err := http.Post("http://"+n.Addr+"/emulation", "application/json", strings.NewReader(string(body)))
	n.Must(err)
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}

func sessionOf(r map[string]any) (session, node string) {
	c := r["connect"].(map[string]any)
	session, _ = c["session"].(string)
	node, _ = c["node"].(string)
	return session, node
}

func TestEmulatedTransports(t *testing.T) {
	n := start(t, settings{})
	const connect = `{"connect":{},"id":1}`
	f := func(c *client) {
		t.Helper()
		r := c.expect(`{"id":1,"connect":{"client":"?","version":"test","ping":25,"pong":true,"session":"?","node":"?"}}`)
		session, node := sessionOf(r)
		if got := n.emulate(session, node, `{"id":2,"subscribe":{"channel":"x"}}`+"\n"+`{"id":3,"unsubscribe":{"channel":"x"}}`); got != http.StatusNoContent {
			t.Fatalf("emulation: %d", got)
		}
		c.expect(`{"id":2,"subscribe":"?"}`)
		c.expect(`{"id":3,"unsubscribe":{}}`)
		if got := n.emulate(session, "nowhere", `{}`); got != http.StatusNotFound {
			t.Errorf("foreign node: %d", got)
		}
		if got := n.emulate("2c7e2c7e-2c7e-2c7e-2c7e-2c7e2c7e2c7e", node, `{}`); got != http.StatusNotFound {
			t.Errorf("guessed session: %d", got)
		}
		n.emulate(session, node, `{"id":4,"ping":{}}`)
		c.expect(`{"push":{"disconnect":{"code":3501,"reason":"bad request"}}}`)
		<-c.Ended
	}
	f(n.stream("GET", "/connection/sse?cf_connect="+escape(connect), ""))
	f(n.stream("POST", "/connection/sse", connect))
	f(n.stream("POST", "/connection/http_stream", connect))
	c := n.stream("POST", "/connection/http_stream", connect+"\n"+`{"id":2,"subscribe":{"channel":"x"}}`)
	c.expect(`{"id":1,"connect":"?"}`)
	c.expect(`{"id":2,"subscribe":"?"}`)
	n.publish("x", "1")
	c.expect(`{"push":{"channel":"x","pub":{"data":1,"offset":1}}}`)
}

func TestEmulationReachesTheNodeThatHasTheClient(t *testing.T) {
	a, b := pair(t, settings{})
	c := a.stream("GET", "/connection/sse?cf_connect="+escape(`{"connect":{},"id":1}`), "")
	session, node := sessionOf(c.expect(`{"id":1,"connect":"?"}`))
	if got := b.emulate(session, node, `{"id":2,"subscribe":{"channel":"x"}}`); got != http.StatusNoContent {
		t.Fatalf("emulation: %d", got)
	}
	c.expect(`{"id":2,"subscribe":"?"}`)
}

func TestUnidirectionalTransports(t *testing.T) {
	n := start(t, settings{})
	const request = `{"subs":{"news":{}}}`
	f := func(c *client) {
		t.Helper()
		c.expect(`{"connect":{"client":"?","version":"test","ping":25,"session":"?","subs":{"news":{"recoverable":true,"positioned":true,"epoch":"?","offset":"?"}}}}`)
		at := n.publish("news", "1")
		c.expect(fmt.Sprintf(`{"channel":"news","pub":{"data":1,"offset":%d}}`, at.Offset))
	}
	n.publish("news", "0")
	f(n.stream("POST", "/connection/uni_http_stream", request))
	f(n.dial("/connection/uni_websocket?cf_connect=" + escape(request)))
	c := n.dial("/connection/uni_websocket")
	c.send(request)
	f(c)
	c = n.dial("/connection/uni_websocket")
	c.send(`[]`)
	c.Closes(3501, "bad request")
}

// resumes expects pub in what a subscribe reply recovered or, if the session's loop had
// not yet read it from the log then, as the event that follows.
func (c *client) resumes(channel string, sub, pub map[string]any) {
	c.t.Helper()
	if _, ok := sub["publications"]; !ok {
		c.next()
		var push any
		if err := json.Unmarshal([]byte(c.next()), &push); err != nil || !like(push, map[string]any{"channel": channel, "pub": pub}) {
			c.t.Errorf("%s: recovered nothing, then %v (%v)", channel, push, err)
		}
		return
	}
	if !like(sub["publications"], []any{pub}) {
		c.t.Errorf("%s: recovered %v, want %v", channel, sub["publications"], pub)
	}
}

func TestEventSourceResumesByItsLastID(t *testing.T) {
	n := start(t, settings{})
	path := "/connection/uni_sse?cf_connect=" + escape(`{"subs":{"news":{}}}`)
	first := n.publish("news", "1")
	c := n.stream("GET", path, "")
	if id := c.next(); id != "id "+first.String() {
		t.Errorf("got %s, want the position %v", id, first)
	}
	c.expect(`{"connect":"?"}`)
	second := n.publish("news", "2")
	if id := c.next(); id != "id "+second.String() {
		t.Errorf("got %s, want the position %v", id, second)
	}
	c.expect(`{"channel":"news","pub":{"data":2,"offset":2}}`)
	n.publish("news", "3")
	f := func(id string, recovered bool, publications ...any) {
		t.Helper()
		c := n.stream("GET", path, "", "Last-Event-ID", id)
		c.next()
		r := c.expect(`{"connect":"?"}`)
		sub := r["connect"].(map[string]any)["subs"].(map[string]any)["news"].(map[string]any)
		if got, _ := sub["recovered"].(bool); got != recovered {
			t.Errorf("%s: got %v", id, sub)
		}
		if len(publications) > 0 {
			c.resumes("news", sub, publications[0].(map[string]any))
		}
	}
	f(second.String(), true, map[string]any{"data": 3.0, "offset": 3.0})
	f("nonsense", false)
	f(second.Epoch+"-999", false)
}

func TestEventSourceOfSeveralChannelsResumes(t *testing.T) {
	n := start(t, settings{})
	path := "/connection/uni_sse?cf_connect=" + escape(`{"subs":{"a":{},"b":{}}}`)
	c := n.stream("GET", path, "")
	c.next()
	c.expect(`{"connect":"?"}`)
	n.publish("a", "1")
	id := c.next()
	c.expect(`{"channel":"a","pub":{"data":1,"offset":1}}`)
	n.publish("b", "2")
	n.publish("a", "3")
	c = n.stream("GET", path, "", "Last-Event-ID", strings.TrimPrefix(id, "id "))
	c.next()
	r := c.expect(`{"connect":"?"}`)
	subs := r["connect"].(map[string]any)["subs"].(map[string]any)
	for ch, want := range map[string]float64{"a": 3, "b": 2} {
		sub := subs[ch].(map[string]any)
		if sub["recovered"] != true {
			t.Errorf("%s: got %v", ch, sub)
		}
		c.resumes(ch, sub, map[string]any{"data": want, "offset": want})
	}
}

func TestProtobufClients(t *testing.T) {
	n := start(t, settings{})
	conn, _, err := websocket.Dial(t.Context(), "ws://"+n.Addr+"/connection/websocket", websocket.DialOptions{Subprotocols: []string{"centrifuge-protobuf"}})
	n.Must(err)
	defer conn.CloseNow()
	if conn.Subprotocol() != "centrifuge-protobuf" {
		t.Errorf("subprotocol %q", conn.Subprotocol())
	}
	say := func(list ...*protocol.Command) {
		t.Helper()
		var b []byte
		for _, c := range list {
			b = protocol.AppendCommand(b, protocol.Protobuf, c)
		}
		n.Must(conn.Write(websocket.OpBinary, b))
	}
	next := func() []byte {
		t.Helper()
		op, b, err := conn.Read(t.Context())
		n.Must(err)
		if op != websocket.OpBinary {
			t.Errorf("opcode %v", op)
		}
		return b
	}
	say(&protocol.Command{ID: 1, Kind: protocol.Connect, Connect: &protocol.ConnectRequest{}},
		&protocol.Command{ID: 2, Kind: protocol.Subscribe, Sub: protocol.SubscribeRequest{Channel: "x"}})
	if b := next(); b[1] != 8 || b[2] != 1 || b[3] != 5<<3|2 {
		t.Errorf("connect: % x", b)
	}
	if b := next(); b[1] != 8 || b[2] != 2 || b[3] != 6<<3|2 {
		t.Errorf("subscribe: % x", b)
	}
	n.publish("x", `{"a":1}`)
	want := protocol.AppendPush(nil, protocol.Protobuf, false, "x", &protocol.Publication{Data: []byte(`{"a":1}`), Offset: 1})
	if b := next(); string(b) != string(want) {
		t.Errorf("got % x, want % x", b, want)
	}
	say(&protocol.Command{ID: 3, Kind: protocol.Publish, Sub: protocol.SubscribeRequest{Channel: "x", Data: []byte{0xff, 1}}})
	c := n.connect("{}")
	epoch, _ := c.subscribe(`{"channel":"y"}`)
	trial.Eventually(t, "it is published", func() bool {
		c.send(`{"id":3,"history":{"channel":"x","limit":1,"since":{"offset":1,"epoch":"` + epoch + `"}}}`)
		return strings.Contains(c.next(), `"data":"/wE="`)
	})
}

func TestDrainSaysShutdown(t *testing.T) {
	n := start(t, settings{})
	a := n.connect("{}")
	b := n.stream("POST", "/connection/http_stream", `{"id":1,"connect":{}}`)
	b.expect(`{"id":1,"connect":"?"}`)
	n.Drain(100 * time.Millisecond)
	a.Closes(3001, "shutdown")
	b.expect(`{"push":{"disconnect":{"code":3001,"reason":"shutdown","reconnect":true}}}`)
}
