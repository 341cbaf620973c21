package centrifuge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// sleepy opens a WebSocket that subscribes and does not read on until wake is called.
func (n *node) sleepy(channel string) (c *websocket.Conn) {
	n.T.Helper()
	conn, _, err := websocket.Dial(n.T.Context(), "ws://"+n.Addr+"/connection/websocket", websocket.DialOptions{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				err = nc.(*net.TCPConn).SetReadBuffer(256 << 10)
			}
			return nc, err
		},
	})
	n.Must(err)
	n.T.Cleanup(conn.CloseNow)
	n.Must(conn.Write(websocket.OpText, []byte(`{"id":1,"connect":{}}`+"\n"+`{"id":2,"subscribe":{"channel":"`+channel+`"}}`)))
	for range 2 {
		_, _, err := conn.Read(n.T.Context())
		n.Must(err)
	}
	return conn
}

func TestSlowClientIsDisconnectedAtTheBoundOfItsQueue(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default", QueueMessages: 16, QueueBytes: 1 << 20, MaxMessageBytes: 64 << 10}}})
	c := n.sleepy("x")
	quick := n.connect("{}")
	quick.subscribe(`{"channel":"x"}`)
	data := `"` + strings.Repeat("x", 60_000) + `"`
	trial.Eventually(t, "it is too slow", func() bool {
		n.publish("x", data)
		quick.next()
		return n.server.Stats().Slow == 1
	})
	for {
		if _, _, err := c.Read(t.Context()); err != nil {
			if !strings.Contains(err.Error(), "3008") {
				t.Errorf("ended with %v", err)
			}
			return
		}
	}
}

func TestSlowClientIsNotifiedOfDrops(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default", Policy: hub.DropOldest, QueueMessages: 16, QueueBytes: 1 << 20, MaxMessageBytes: 64 << 10}}})
	c := n.sleepy("x")
	data := `"` + strings.Repeat("x", 60_000) + `"`
	trial.Eventually(t, "messages are dropped", func() bool {
		n.publish("x", data)
		return n.server.Stats().Dropped > 4
	})
	for {
		_, b, err := c.Read(t.Context())
		n.Must(err)
		var r struct {
			Push struct{ Unsubscribe *struct{ Code int } }
		}
		if json.Unmarshal(b, &r) == nil && r.Push.Unsubscribe != nil {
			if r.Push.Unsubscribe.Code != 2500 {
				t.Errorf("got %s", b)
			}
			return
		}
	}
}

func TestRateOfMessagesIsBounded(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default", MaxRate: 20}}})
	c := n.connect("{}")
	c.subscribe(`{"channel":"x"}`)
	begin := time.Now()
	for i := range 30 {
		n.publish("x", fmt.Sprint(i))
	}
	for i := range 30 {
		c.expect(fmt.Sprintf(`{"push":{"channel":"x","pub":{"data":%d,"offset":%d}}}`, i, i+1))
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("30 messages at 20 a second, and 20 at once, took %v", took)
	}
}

func TestRemovedHistoryEndsPositionedSubscriptions(t *testing.T) {
	o := open
	o.SubscribeProxy = false
	n := start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"default": o}, AnonymousConnect: true}})
	first := n.publish("x", "1")
	n.publish("x", "2")
	if status, got := n.api("history_remove", `{"channel":"x"}`); status != http.StatusOK {
		t.Fatal(got)
	}
	c := n.connect("{}")
	c.send(fmt.Sprintf(`{"id":2,"subscribe":{"channel":"x","recover":true,"epoch":%q,"offset":1}}`, first.Epoch))
	c.expect(`{"id":2,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":2,"was_recovering":true}}`)
}
