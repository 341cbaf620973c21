package protocols

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// stopped stops the agent's process, as a laptop that is shut, until the returned
// function is called.
func stopped(t *testing.T, a *agent) (resume func()) {
	t.Helper()
	signal := func(s syscall.Signal) {
		if err := a.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	return func() { signal(syscall.SIGCONT) }
}

// big is a payload with a number.
func big(n int) string { return strconv.Itoa(n) + " " + strings.Repeat("x", 250_000) }

// until publishes until that many clients were ended because they were slow, and
// returns how many messages that took.
func until(t *testing.T, s *judge.Server, clients float64, publish func(n int), slow ...string) (messages int) {
	t.Helper()
	for messages < 1000 && s.Series(slow[0], slow[1:]...) < clients {
		for range 10 {
			publish(messages)
			messages++
		}
	}
	if got := s.Series(slow[0], slow[1:]...); got != clients {
		t.Fatalf("after %d messages of 250 kB %g clients were ended as slow, want %g", messages, got, clients)
	}
	return messages
}

const protocolEvents = "weir_protocol_events_total"

func TestStoppedCentrifugeReader(t *testing.T) {
	// What a client may recover at once has the bound of its queue.
	s := serve(t, obj{"centrifuge": obj{"max_queue": "256MiB"}})
	fast := nodeAgent(t)
	c := newCrew(t)
	add := func(a *agent, tr transport, name string) *member {
		m := c.member(name, "c0")
		a.sink(name+"/c0", c.centrifuge(m))
		tr.connect(a, s.Public, name, obj{"token": userToken(name, time.Hour, nil)})
		subscribe(a, name, "c0", obj{"recoverable": true, "positioned": true})
		return m
	}
	all := transports(s.Public)
	add(fast, all[0], "fast websocket")
	add(fast, all[2], "fast sse")
	slow := map[*agent]*member{}
	for _, tr := range []transport{all[0], all[3]} {
		a := nodeAgent(t)
		slow[a] = add(a, tr, "stopped "+tr.name)
	}
	py := pythonAgent(t)
	slow[py] = c.member("stopped python", "c0")
	py.sink("py/c0", c.centrifuge(slow[py]))
	pythonClient(py, s.Public, "py", "py", true)
	py.name("py/c0", "py", "new_subscription", "c0", obj{"recoverable": true, "positioned": true})
	py.call("py/c0", "subscribe")
	c.up(make([]int64, len(c.members)))
	before := c.counts()

	p := &judge.Publisher{Addr: s.Public}
	n := 0
	publish := func(count int, payload func(n int) string) {
		for range count {
			n++
			if err := p.Publish(t.Context(), "c0", payload(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(20, strconv.Itoa)
	var resume []func()
	for a := range slow {
		resume = append(resume, stopped(t, a))
	}
	took := until(t, s, 3, func(int) { publish(1, big) }, protocolEvents, `protocol="centrifuge"`, `event="too_slow"`)
	for _, f := range resume {
		f()
	}
	judge.Eventually(t, 2*patience, "those that were stopped are subscribed anew", func() bool {
		for _, m := range slow {
			if m.ups.Load() < 2 {
				return false
			}
		}
		return true
	})
	publish(20, strconv.Itoa)
	c.verdict(p.Acked())
	for i, m := range c.members[:2] {
		if m.ups.Load() != before[i] {
			t.Errorf("%s lost its subscription", m.name)
		}
	}
	for a, m := range slow {
		client := strings.Replace(m.name, "stopped python", "py", 1)
		a.next(client, "connecting") // the first
		expect(t, "why "+m.name+" lost its connection", field(t, a.next(client, "connecting"), "code"), 3008)
	}
	t.Logf("%d messages of 250 kB until all three were ended as slow", took)
}

func TestStoppedMercureReader(t *testing.T) {
	s := serve(t)
	fast, slow := nodeAgent(t), nodeAgent(t)
	const topic = "https://example.com/n"
	publisher := token07([]string{"*"}, nil)
	readers := map[string]*reader{}
	update(t, s, publisher, form("topic", topic, "data", "0", "retry", "100"))
	for name, a := range map[string]*agent{"fast": fast, "slow": slow} {
		r := &reader{}
		readers[name] = r
		a.sink(name, r.on)
		a.make("EventSource", name, "http://"+s.Public+hubPath+"?"+form("topic", topic, "lastEventID", "earliest").Encode(), obj{}, on("addEventListener", "open", "message", "error"))
		judge.Eventually(t, patience, name+" reads", func() bool { return r.last() == 0 })
	}
	numbers := []int{0}
	publish := func(data string, n int) {
		update(t, s, publisher, form("topic", topic, "data", data))
		numbers = append(numbers, n)
	}
	resume := stopped(t, slow)
	n := 1
	took := until(t, s, 1, func(int) { publish(big(n), n); n++ }, "weir_subscribers_closed_total", `reason="too_slow"`)
	t.Logf("%d updates of 250 kB until the stopped reader was ended as slow", took)
	resume()
	for end := n + 20; n < end; n++ {
		publish(strconv.Itoa(n), n)
	}
	for name, r := range readers {
		judge.Eventually(t, 2*patience, name+" has the newest", func() bool { return r.last() == n-1 })
		r.judge(t, name, numbers)
	}
	if readers["fast"].sessions() != 1 || readers["slow"].sessions() < 2 {
		t.Errorf("connections: fast %d, slow %d; want 1 and more", readers["fast"].sessions(), readers["slow"].sessions())
	}
}

func TestStoppedPusherReader(t *testing.T) {
	s := serve(t, obj{"pusher": obj{"max_event_data": "300KiB"}})
	fast, slow := nodeAgent(t), nodeAgent(t)
	pusherApp(fast, s.Public)
	pusherApp(slow, s.Public)
	pusherClient(fast, "BrowserPusher", s.Public, "fast", "1")
	one, _ := join(fast, "fast", "presence-r", "pusher:member_added", "pusher:member_removed", "made")
	pusherClient(slow, "BrowserPusher", s.Public, "slow", "2")
	two, _ := join(slow, "slow", "presence-r", "made", "end")
	fast.next(one, "pusher:member_added")
	resume := stopped(t, slow)
	n := until(t, s, 1, func(i int) { fast.call("app", "trigger", "presence-r", "made", big(i)) }, protocolEvents, `protocol="pusher"`, `event="too_slow"`)
	for i := range n {
		if got := text(fast.next(one, "made")); got != short(big(i)) {
			t.Fatalf("the reader beside it got %.40q, want %.40q", got, short(big(i)))
		}
	}
	resume()
	slow.next("slow", "connected")
	slow.next(two, "pusher:subscription_succeeded")
	fast.call("app", "trigger", "presence-r", "end", "x")
	expect(t, "after it is back", slow.next(two, "end"), "x")
	fast.none("fast", "connected")
	slow.mu.Lock()
	t.Logf("of %d events of 250 kB the stopped reader has seen %d; the protocol has no resume", n, len(slow.queues[two+" made"]))
	slow.mu.Unlock()
}
