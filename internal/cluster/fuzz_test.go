package cluster

import (
	"testing"

	"github.com/weir-gateway/weir/internal/cluster/clustertest"
)

// FuzzMessages holds what nodes send each other to: nothing that is sent panics, and
// nonsense adds no node.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"name":"x","started":1}`))
	f.Add([]byte("\x01\x04echohello"))
	f.Add([]byte("\x01\x00\x00\x01answer"))
	f.Add([]byte("\x01\x00\x22\x23part"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x40"))
	f.Fuzz(func(t *testing.T, data []byte) {
		bus := clustertest.NewNet(1).Join("a")
		c, err := New(Config{}, bus, nil)
		if err != nil {
			t.Fatal(err)
		}
		a := &question{waiting: map[string]*partial{"b": {}}, answers: map[string][]byte{}, errs: map[string]error{}, done: make(chan struct{})}
		c.pending[1] = a
		c.onAsk("b", data)
		c.onReply("b", data)
		c.onReply("b", data)
		c.onHeartbeat("b", data)
		if n := len(c.Nodes()); n != 1 {
			t.Fatalf("%d nodes", n) // what was received counts once Run handles it
		}
		if _, ok := a.answers["b"]; ok == (a.waiting["b"] != nil) && a.errs["b"] == nil {
			t.Fatal("b has answered and is waited for")
		}
	})
}
