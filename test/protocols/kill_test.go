package protocols

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// The channels share a log, so that offsets along each are not dense.
var channels = []string{"c0", "c1", "c2", "c3", "c4"}

// sail subscribes one client of each transport of the JavaScript SDK, and two of the
// Python SDK, to a channel each, and waits until all are subscribed.
func (c *crew) sail(js, py *agent, addr string) {
	n := 0
	channel := func() string { n++; return channels[n%len(channels)] }
	for i, tr := range transports(addr) {
		for k := range 2 {
			name := fmt.Sprintf("%s%d", strings.ReplaceAll(tr.name, " ", "_"), k)
			ch := channel()
			js.sink(name+"/"+ch, c.centrifuge(c.member(name, ch)))
			tr.connect(js, addr, name, obj{"token": userToken(fmt.Sprintf("u%d", i), time.Hour, nil)})
			subscribe(js, name, ch, obj{"recoverable": true, "positioned": true})
		}
	}
	for _, binary := range []bool{false, true} {
		name := fmt.Sprintf("python protobuf=%t", binary)
		ch := channel()
		py.sink(name+"/"+ch, c.centrifuge(c.member(name, ch)))
		pythonClient(py, addr, name, "p", binary)
		py.name(name+"/"+ch, name, "new_subscription", ch, obj{"recoverable": true, "positioned": true, "max_resubscribe_delay": 1})
		py.call(name+"/"+ch, "subscribe")
	}
	c.up(make([]int64, len(c.members)))
}

// pythonClient makes and connects a client of the Python SDK.
func pythonClient(py *agent, addr, name, user string, binary bool) {
	py.t.Helper()
	py.make("Client", name, "ws://"+addr+"/connection/websocket", obj{
		"token": userToken(user, time.Hour, nil), "use_protobuf": binary, "timeout": 20, "max_reconnect_delay": 1, "max_server_ping_delay": 30,
	})
	py.call(name, "connect")
}

// offsets logs how far from dense the offsets were that the SDKs took.
func (c *crew) offsets() {
	c.t.Helper()
	var got, jumps, fed int64
	var wide uint64
	for _, m := range c.members {
		got += m.got.Load()
		jumps += m.jumps.Load()
		fed += m.fed.Load()
		wide = max(wide, m.wide.Load())
		if m.jumps.Load() == 0 {
			c.t.Errorf("%s: its offsets were dense, which proves nothing", m.name)
		}
	}
	c.t.Logf("%d publications, %d of them not at the offset after the one before, at most %d further; %d recoveries brought some",
		got, jumps, wide, fed)
	if fed == 0 {
		c.t.Error("nothing was recovered")
	}
}

func TestCentrifugeRecoversThroughKills(t *testing.T) {
	s := serve(t)
	js, py := nodeAgent(t), pythonAgent(t)
	c := newCrew(t)
	c.sail(js, py, s.Public)
	p := &judge.Publisher{Addr: s.Public}
	stop := c.publish(p, channels, 300)
	for range 4 {
		c.more(p, 300)
		s.Kill()
		before := c.counts()
		s.Start()
		c.up(before)
	}
	c.more(p, 200)
	stop()
	c.verdict(p.Acked())
	c.offsets()
}
