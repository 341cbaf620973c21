package nats

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// many returns as many topics as a publication may have, of size bytes each.
func many(size int) []string {
	var all []string
	for i := range hub.MaxTopics {
		all = append(all, fmt.Sprintf("a:%03d", i)+strings.Repeat("t", size-5))
	}
	return all
}

func TestAttributesTravel(t *testing.T) {
	kept := hub.Namespace{Name: "a", MaxMessageBytes: 1 << 20, QueueBytes: 2 << 20}.WithDefaults()
	flow := hub.Namespace{Name: "b", Durability: hub.None, MaxMessageBytes: 1 << 20, QueueBytes: 2 << 20}.WithDefaults()
	c := external(t)
	c.spawn(t)
	n := startOn(t, Config{URL: c.url()}, kept, flow)
	f := func(want *hub.Attributes, data string) {
		t.Helper()
		for _, ns := range []*hub.Namespace{&kept, &flow} {
			snap := n.Sub(ns, "x", 0)
			before := len(n.On(ns.Name + ":x"))
			if _, err := n.Try(ns, hub.Publication{Channel: ns.Name + ":x", Data: []byte(data), Attributes: want}); err != nil {
				t.Fatal(err)
			}
			ms := n.Await(ns, "x", before+1)[before:]
			if ns == &kept {
				ms = append(ms, n.Page(ns, "x", snap.Top.Offset, 10).Messages...)
				ms = append(ms, n.Page(ns, "", snap.Top.Offset, 10).Messages...)
				n.Unsubscribe(ns, "a:x")
				ms = append(ms, n.Sub(ns, "x", 1).Messages...)
			}
			n.Unsubscribe(ns, ns.Name+":x")
			if ns == &kept && len(ms) != 4 {
				t.Errorf("%d messages, want it live, in the channel's and in the namespace's history and in a snapshot", len(ms))
			}
			for _, m := range ms {
				if string(m.Data) != data || !reflect.DeepEqual(m.Attributes, want) {
					t.Errorf("%d bytes with %+v came as %d bytes with %+v", len(data), want, len(m.Data), m.Attributes)
				}
			}
		}
	}
	f(nil, "plain")
	f(&hub.Attributes{ID: "urn:uuid:1", Event: "e", Retry: 5, Private: true}, `{"a":1}`)
	f(&hub.Attributes{ID: "ü \"q\" \\ x", Payload: hub.Text, Info: []byte(`{"user":"u"}`), Tags: map[string]string{"k": "v\n"}}, "text")
	f(&hub.Attributes{Payload: hub.Binary, Origin: "c1"}, "\x00\xff")
	f(&hub.Attributes{ID: "i", Topics: many(64), Index: 3}, "")
	f(&hub.Attributes{ID: "i", Topics: many(1024), Index: 127}, "d") // more than JetStream takes as headers
	f(&hub.Attributes{ID: "i", Topics: many(1024)}, strings.Repeat("d", 800<<10))
}

// Most messages have no attributes, and pay nothing for them.
func TestPlainMessageHasNoHeaders(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	got := make(chan *natsgo.Msg, 2)
	b := n.Broker.(*Broker)
	if _, err := b.nc.ChanSubscribe("weir.log.a.x", got); err != nil {
		t.Fatal(err)
	}
	n.Pub(&ns, "x", "d")
	if m := <-got; len(m.Header) != 0 {
		t.Errorf("headers %v", m.Header)
	}
	if _, err := n.Try(&ns, hub.Publication{Channel: "a:x", Attributes: &hub.Attributes{ID: "i"}}); err != nil {
		t.Fatal(err)
	}
	if m := <-got; len(m.Header) != 1 || m.Header.Get(headerAttributes) != `{"id":"i"}` {
		t.Errorf("headers %v", m.Header)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add("+3", []byte("abcdef"))
	f.Add("+9", []byte("abc"))
	f.Add("+-1", []byte("abc"))
	f.Add("{}", []byte("abc"))
	f.Fuzz(func(t *testing.T, header string, data []byte) {
		d, a := unpack(&natsgo.Msg{Data: data, Header: natsgo.Header{headerAttributes: {header}}})
		if len(d) > len(data) || len(header) > 0 && header[0] == '+' && len(d)+len(a) > len(data) {
			t.Errorf("%q with %q: %q and %q", header, data, d, a)
		}
		for _, size := range []int{1, inlineAttributes, inlineAttributes + 1} {
			m := &natsgo.Msg{Data: data}
			attributes := strings.Repeat("a", size)
			pack(m, []byte(attributes))
			if d, a := unpack(m); string(d) != string(data) || string(a) != attributes {
				t.Errorf("%d bytes with %d of attributes are read as %d and %d", len(data), size, len(d), len(a))
			}
		}
	})
}

// The longest names, of bytes that take most room in a subject, work everywhere.
func TestLongestChannelName(t *testing.T) {
	f := func(where string, cfg Config, replicas int) {
		t.Helper()
		cfg.Prefix = strings.Repeat("p", 32)
		ns := hub.Namespace{Name: strings.Repeat("n", 32), Replicas: replicas}.WithDefaults()
		name := strings.Repeat("é", (hub.MaxChannelName-33)/2) + "/"
		if err := hub.CheckChannel(hubtest.Channel(&ns, name)); err != nil || len(hubtest.Channel(&ns, name)) != hub.MaxChannelName {
			t.Fatalf("%v, %d bytes", err, len(hubtest.Channel(&ns, name)))
		}
		n := startOn(t, cfg, ns)
		n.Sub(&ns, name, 0)
		n.Sub(&ns, "", 0)
		a := &hub.Attributes{ID: "i"}
		p, err := n.Try(&ns, hub.Publication{Channel: hubtest.Channel(&ns, name), Data: []byte("d"), Key: "k", Attributes: a, IdempotencyKey: "i"})
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if m := n.Await(&ns, name, 1)[0]; !m.Position().Same(p) {
			t.Errorf("%s: delivered at %v, published at %v", where, m.Position(), p)
		}
		if page := n.Page(&ns, name, 0, 10); len(page.Messages) != 1 {
			t.Errorf("%s: %d messages in the history", where, len(page.Messages))
		}
		if at, err := n.Broker.(*Broker).Lookup(t.Context(), &ns, "i"); !at.Same(p) || err != nil {
			t.Errorf("%s: looked up %v, %v, published at %v", where, at, err, p)
		}
		if err := n.Broker.(*Broker).Remove(t.Context(), &ns, hubtest.Channel(&ns, name)); err != nil {
			t.Errorf("%s: remove: %v", where, err)
		}
	}
	f("embedded", Config{Dir: t.TempDir()}, 1)
	cs := cluster(t)
	spawnAll(t, cs)
	f("cluster", Config{URL: cs[0].url()}, 3)
}

func TestServerWithShortLinesIsRefused(t *testing.T) {
	c := external(t)
	c.MaxControlLine = 1024
	c.spawn(t)
	b := newBroker(t, Config{URL: c.url()})
	defer b.Close()
	err := b.Start(t.Context(), []hub.Namespace{{Name: "a"}}, func(*hub.Message) {})
	if err == nil || !strings.Contains(err.Error(), "max_control_line") || !strings.Contains(err.Error(), "4096") {
		t.Errorf("start: %v", err)
	}
}
