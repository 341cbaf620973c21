package nats

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Two nodes publish versions of one channel at once: what is stored rises all the
// same. What skips history reaches the other node's subscribers.
func TestHubsAgreeOnVersions(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "v"}
	nodes := []*hubNode{startHub(t, Config{URL: c.url()}, ns), startHub(t, Config{URL: c.url()}, ns)}
	reader := nodes[1].subscribe(hub.SubscribeOptions{Channels: []string{"v:x"}})
	var wg sync.WaitGroup
	for i := range 40 {
		version := uint64(i/2 + 1)
		wg.Add(1)
		nodes[i%2].Publish(hub.Publication{
			Channel: "v:x", Data: []byte("1"), Attributes: &hub.Attributes{ID: fmt.Sprint(version), Version: version},
		}, func(_ hub.Position, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	nodes[1].until("the newest version", func() bool { return len(reader.ids) > 0 && reader.ids[len(reader.ids)-1] == "20" })
	last := 0
	for _, id := range reader.ids {
		var v int
		if _, err := fmt.Sscan(id, &v); err != nil || v <= last {
			t.Fatalf("stored %v", reader.ids)
		}
		last = v
	}
	got := &passingReader{}
	if err := nodes[1].shard.Subscribe(new(hub.Subscriber), got, hub.SubscribeOptions{Channels: []string{"v:x"}}); err != nil {
		t.Fatal(err)
	}
	nodes[0].Publish(hub.Publication{
		Channel: "v:x", Data: []byte("a\nb"), Attributes: &hub.Attributes{SkipHistory: true, Payload: hub.Text, Tags: map[string]string{"k": "v"}},
	}, func(at hub.Position, err error) {
		if err != nil || !at.IsZero() {
			t.Errorf("answered %v, %v", at, err)
		}
	})
	nodes[1].until("what was passed on", func() bool { return got.m != nil })
	if m := got.m; string(m.Data) != "a\nb" || m.Offset != 0 || m.Attributes.Tags["k"] != "v" || m.Attributes.Payload != hub.Text {
		t.Errorf("passed on: %+v %+v", m, m.Attributes)
	}
}

type passingReader struct{ m *hub.Message }

func (r *passingReader) Start(hub.Positions)  {}
func (r *passingReader) Live()                {}
func (r *passingReader) Room() bool           { return true }
func (r *passingReader) Gap(hub.Gap)          {}
func (r *passingReader) Failed(error)         {}
func (r *passingReader) Deliver(b *hub.Batch) { r.m = b.Messages[0] }
