package centrifuge_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// refusing answers publishes with an error that a test sets; nil stores them.
type refusing struct {
	hub.Broker

	mu  sync.Mutex
	err error
}

func (r *refusing) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *refusing) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	r.mu.Lock()
	err := r.err
	r.mu.Unlock()
	if err != nil {
		done(hub.Position{}, err)
		return
	}
	r.Broker.Publish(ns, p, done)
}

// A publisher whose publication is refused reads whether it may be stored, and how to
// retry, by every call that publishes.
func TestARefusedPublicationSaysWhetherItIsStored(t *testing.T) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &refusing{Broker: b}
	n := start(t, settings{broker: r})
	c := n.connect(`{}`)
	calls := []struct {
		what string
		keys bool
		do   func() string
	}{
		{"publish", true, func() string { _, s := n.api("publish", `{"channel":"news","data":1}`); return s }},
		{"broadcast", true, func() string { _, s := n.api("broadcast", `{"channels":["news"],"data":1}`); return s }},
		{"batch", true, func() string {
			_, s := n.api("batch", `{"commands":[{"publish":{"channel":"news","data":1}}]}`)
			return s
		}},
		{"a client's publish", false, func() string {
			c.send(`{"id":9,"publish":{"channel":"news","data":1}}`)
			return c.next()
		}},
	}
	f := func(err error, code int, text, keyed string) {
		t.Helper()
		r.set(err)
		for _, call := range calls {
			want := text
			if call.keys && keyed != "" {
				want = keyed
			}
			quoted, _ := json.Marshal(want)
			if got := call.do(); !strings.Contains(got, fmt.Sprintf(`"code":%d`, code)) || !strings.Contains(got, string(quoted[1:len(quoted)-1])) {
				t.Errorf("%v, %s:\ngot  %s\nwant %d, %s", err, call.what, got, code, want)
			}
		}
	}
	down := fmt.Errorf("%w: no server", hub.ErrUnavailable)
	f(down, 100, "the broker is not available, try again later; nothing was stored", "")
	f(hub.ErrOverloaded, 111, "overloaded, try again later; nothing was stored", "")
	f(hub.ErrStorageFull, 100, "the broker's storage is full; nothing was stored", "")
	f(hub.ErrKeyReused, 113, "nothing was stored", "")
	f(&hub.UncertainError{Err: down}, 100, "it is not known whether the message is stored; a retry may store it twice", "")
	f(&hub.UncertainError{Key: "k1", Err: down}, 100, "it is not known whether the message is stored; a retry may store it twice",
		`it is not known whether the message is stored; retry with idempotency_key "k1": then it is stored once`)
	r.set(nil)
	n.wantAPI("publish", `{"channel":"news","data":1}`, `{"result":{"offset":1,"epoch":"?"}}`)
}
