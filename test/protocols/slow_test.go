package protocols

import (
	"encoding/json"
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

// big is a payload with a number. The kernel may hold 40 MB for a reader that is
// stopped, here.
func big(n int) string { return strconv.Itoa(n) + " " + strings.Repeat("x", 250_000) }

func TestStoppedCentrifugeReader(t *testing.T) {
	s := serve(t)
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
	m := c.member("stopped python", "c0")
	py.sink("py/c0", c.centrifuge(m))
	pythonClient(py, s.Public, "py", "py", true)
	py.name("py/c0", "py", "new_subscription", "c0", obj{"recoverable": true, "positioned": true})
	py.call("py/c0", "subscribe")
	slow[py] = m
	c.up(make([]int64, len(c.members)))
	present := func() int {
		return decode[struct {
			NumClients int `json:"num_clients"`
		}](t, centrifugo(t, s, "presence_stats", obj{"channel": "c0"})).NumClients
	}
	judge.Eventually(t, patience, "all are present", func() bool { return present() == 5 })
	p := &judge.Publisher{Addr: s.Public}
	n := 0
	publish := func(payload func(n int) string) {
		n++
		if err := p.Publish(t.Context(), "c0", payload(n)); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		publish(strconv.Itoa)
	}
	var resume []func()
	before := c.counts()
	for a := range slow {
		resume = append(resume, stopped(t, a))
	}
	begin := time.Now()
	for present() > 2 && n < 1000 {
		publish(big)
	}
	t.Logf("the stopped readers were let go after %d messages of 250 kB and %s", n-20, time.Since(begin).Round(time.Millisecond))
	if got := present(); got != 2 {
		t.Fatalf("%d clients are present, want the 2 that read", got)
	}
	for i, m := range c.members[:2] {
		if m.ups.Load() != before[i] {
			t.Errorf("%s lost its subscription", m.name)
		}
	}
	for _, f := range resume {
		f()
	}
	judge.Eventually(t, 2*patience, "those that were stopped have recovered", func() bool {
		for _, m := range slow {
			if m.ups.Load() < 2 {
				return false
			}
		}
		return true
	})
	for range 20 {
		publish(strconv.Itoa)
	}
	c.verdict(p.Acked())
	for _, m := range slow {
		m.ends.Range(func(k, _ any) bool { t.Logf("%s: %v", m.name, k); return true })
	}
}

func TestStoppedMercureReader(t *testing.T) {
	s := serve(t)
	fast, slow := nodeAgent(t), nodeAgent(t)
	const topic = "https://example.com/n"
	publisher := token07([]string{"*"}, []string{"*"})
	readers := map[string]*reader{}
	update(t, s, publisher, form("topic", topic, "data", "0", "retry", "100"))
	for name, a := range map[string]*agent{"fast": fast, "slow": slow} {
		r := &reader{}
		readers[name] = r
		a.sink(name, r.on)
		a.make("EventSource", name, "http://"+s.Public+hubPath+"?"+form("topic", topic, "lastEventID", "earliest").Encode(), obj{}, on("addEventListener", "open", "message", "error"))
		judge.Eventually(t, patience, name+" reads", func() bool { return r.last() == 0 })
	}
	present := func() int {
		req := newGet(t, "http://"+s.Public+hubPath+"/subscriptions")
		status, body := send(t, req, []string{"Authorization", "Bearer " + publisher})
		if status != 200 {
			t.Fatalf("subscriptions: %d %s", status, body)
		}
		return len(decode[struct{ Subscriptions []json.RawMessage }](t, body).Subscriptions)
	}
	judge.Eventually(t, patience, "both are present", func() bool { return present() == 2 })
	numbers := []int{0}
	publish := func(data string, n int) {
		update(t, s, publisher, form("topic", topic, "data", data))
		numbers = append(numbers, n)
	}
	resume := stopped(t, slow)
	n := 1
	for ; present() == 2 && n < 1000; n++ {
		publish(big(n), n)
	}
	t.Logf("the stopped reader was let go after %d updates of 250 kB", n)
	if present() != 1 {
		t.Fatal("the stopped reader was not let go")
	}
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
	there := func() bool {
		fast.mu.Lock()
		defer fast.mu.Unlock()
		return len(fast.queues[one+" pusher:member_removed"]) == 0
	}
	resume := stopped(t, slow)
	n := 0
	for ; there() && n < 1000; n++ {
		fast.call("app", "trigger", "presence-r", "made", big(n))
	}
	t.Logf("the stopped reader was let go after %d events of 250 kB", n)
	fast.next(one, "pusher:member_removed")
	for i := range n {
		if got := text(fast.next(one, "made")); got != short(big(i)) {
			t.Fatalf("the reader beside it got %.20q, want %.20q", got, short(big(i)))
		}
	}
	resume()
	slow.next("slow", "connected")
	slow.next(two, "pusher:subscription_succeeded")
	expect(t, "back", field(t, fast.next(one, "pusher:member_added"), "id"), "2")
	fast.call("app", "trigger", "presence-r", "end", "x")
	expect(t, "after it is back", slow.next(two, "end"), "x")
	fast.none("fast", "connected")
}
