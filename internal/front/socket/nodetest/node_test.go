package nodetest_test

import (
	"bufio"
	"errors"
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/front/socket/sockettest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingHoldsOverHTTP2(t *testing.T) { trial.Again(t, nodetest.Front, "http2") }

// start serves the test protocol of package sockettest.
func start(t *testing.T, bus hub.Bus) (*sockettest.Protocol, *nodetest.Node) {
	t.Helper()
	var p *sockettest.Protocol
	n := nodetest.New(t, nodetest.Config{Formats: func(f *wire.Formats) { p = sockettest.New(f) },
		Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}}})
	n.Join(bus, 0)
	n.Serve(p.Endpoints())
	return p, n
}

func TestAProtocolIsServed(t *testing.T) {
	_, n := start(t, nil)
	if status, head, text := n.Request("GET", "/test/ask?fail", "", "X-Test", "1"); status != 403 || head.Get("Date") == "" || text == "" {
		t.Errorf("request: %d %v %q", status, head, text)
	}
	lines, head := nodetest.Stream(n, func(body io.Reader, put func(string)) error {
		in := bufio.NewScanner(body)
		for in.Scan() {
			put(in.Text())
		}
		return errors.Join(in.Err(), io.EOF)
	}, "GET", "/test/lines?channel=one", "")
	if got := lines.Next(); got != "subscribed one" || head.Get("X-Test") != "yes" {
		t.Errorf("stream: %q, %v", got, head)
	}
	conn := n.Dial("/test/socket", websocket.DialOptions{})
	said := nodetest.Follow(t, func(put func(string)) error {
		return nodetest.Messages(conn, func(b []byte) { put(string(b)) })
	}, conn.CloseNow)
	n.Publish(hub.Publication{Channel: "one", Data: []byte("hello")})
	if got := lines.Next(); got != "hello" {
		t.Errorf("published: %q", got)
	}
	if err := conn.Write(websocket.OpText, []byte("close 4001 enough")); err != nil {
		t.Fatal(err)
	}
	if got := said.Next(); got != "closing" {
		t.Errorf("socket: %q", got)
	}
	said.Closes(4001, "enough")
	n.Drain(0)
	if rest, err := lines.Rest(); len(rest) != 1 || rest[0] != "bye" || !errors.Is(err, io.EOF) {
		t.Errorf("drained: %q, %v", rest, err)
	}
	n.Stop()
	n.Stop()
}

func TestNodesKnowEachOther(t *testing.T) {
	a, b := nodetest.Pair(t, func(bus hub.Bus) (*nodetest.Node, *nodetest.Node) {
		_, n := start(t, bus)
		return n, n
	})
	if a.Cluster.Self() == b.Cluster.Self() || len(a.Cluster.Nodes()) != 2 {
		t.Errorf("%v knows %v", a.Cluster.Self(), a.Cluster.Nodes())
	}
}
