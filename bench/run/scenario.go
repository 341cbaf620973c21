package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A metric is one number of a run and what is asked of it.
type metric struct {
	Key   string // of the load client's report
	Label string
	// Target is the most that is accepted: of weir ÷ reference, or, with
	// Absolute, of weir itself. 0 means no target.
	Target   float64
	Absolute bool
	// Against names a peer to be the reference; empty means the limit.
	Against string
}

// A scenario is one load, and how servers are compared under it.
type scenario struct {
	Name    string
	About   string // one line for the report
	Metrics []metric

	n, channels, publishers, window, batch int
	handshakes, echo, missed, slow         int
	payload                                int
	rate                                   float64
	sse, storm, half                       bool
	// twice doubles the measured time, for what happens seldom.
	twice bool
	// withItself compares weir under slow readers with weir without them.
	withItself bool
	// singleReference lets the limit publish one by one where weir has batches.
	singleReference bool
	// tls: everything over TLS, by clients of this program; the reference is net/http.
	tls bool
	// owners prints which part of weir holds the memory.
	owners bool
	extra  bool // only run when named
}

func (s *scenario) publishes() bool { return s.window > 0 || s.rate > 0 || s.half || s.missed > 0 }

var (
	perDelivery = func(target float64) metric {
		return metric{Key: "cpu_us", Label: "CPU µs per delivery", Target: target}
	}
	p99 = metric{Key: "p99_us", Label: "p99 µs"}
)

// scenarios is every scenario in the order of the report.
func scenarios() []*scenario {
	idle := []metric{{Key: "bytes_per_conn", Label: "user bytes per connection", Target: 450, Absolute: true},
		{Key: "connect_cpu_us", Label: "CPU µs per connect"}, {Key: "idle_cpu_percent", Label: "idle CPU %"}}
	half := []metric{perDelivery(1.2), p99, {Key: "p99_us", Label: "p99 µs, against uwebsockets", Target: 1, Against: "uwebsockets"}}
	storm := func(target float64) []metric {
		return []metric{{Key: "storm_cpu_us", Label: "CPU µs per reconnect", Target: target}, {Key: "storm_seconds", Label: "seconds until all are back"}}
	}
	all := []*scenario{
		{Name: "idle-sse", About: "10,000 SSE subscribers that receive nothing", n: 10000, sse: true, owners: true, Metrics: idle},
		{Name: "idle-ws", About: "10,000 WebSocket subscribers that receive nothing", n: 10000, owners: true, Metrics: idle},
		{Name: "fanout-1k", About: "1,000 subscribers of one channel, 2 publishes outstanding", n: 1000, window: 2, Metrics: []metric{perDelivery(1.15), p99}},
		{Name: "fanout-10k", About: "10,000 subscribers of one channel, 2 publishes outstanding", n: 10000, window: 2, Metrics: []metric{perDelivery(1.2), p99}},
		{Name: "half-1k", About: "the same 1,000 at half the rate that weir carries", n: 1000, half: true, twice: true, publishers: 4, Metrics: half},
		{Name: "half-10k", About: "the same 10,000 at half the rate that weir carries", n: 10000, half: true, twice: true, publishers: 4, Metrics: half},
		{Name: "backlog-10k", About: "10,000 subscribers of one channel, 32 publishes outstanding", n: 10000, window: 32, publishers: 32,
			Metrics: []metric{perDelivery(0.6), {Key: "per_read", Label: "messages per client read"}}},
		{Name: "channels-10k", About: "10,000 channels with one subscriber each, publishes one by one", n: 10000, channels: 10000, publishers: 64, window: 256,
			Metrics: []metric{{Key: "cpu_publish_us", Label: "CPU µs per publish", Target: 1.25}, p99}},
		{Name: "channels-10k-batch", About: "the same with 100 publishes in a request; the limit publishes one by one", n: 10000, channels: 10000, publishers: 4, window: 400, batch: 100,
			singleReference: true, Metrics: []metric{{Key: "cpu_publish_us", Label: "CPU µs per message", Target: 0.55}, p99}},
		{Name: "echo-1", About: "1,000 WebSockets, 1 message in flight on each", n: 1000, echo: 1, Metrics: []metric{{Key: "cpu_us", Label: "CPU µs per echo", Target: 1.1}, p99}},
		{Name: "echo-10", About: "1,000 WebSockets, 10 messages in flight on each", n: 1000, echo: 10, Metrics: []metric{{Key: "cpu_us", Label: "CPU µs per echo", Target: 1.3}, p99}},
		{Name: "storm", About: "10,000 WebSockets reset at once and back", n: 10000, storm: true, handshakes: 2000, Metrics: storm(1.4)},
		{Name: "storm-replay", About: "10,000 SSE subscribers of 100 channels reset at once and back, with 100 missed messages each", n: 10000, channels: 100, sse: true, storm: true,
			handshakes: 2000, missed: 100, publishers: 16, Metrics: storm(0)},
		{Name: "storm-tls", About: "2,000 SSE subscribers over TLS 1.3 reset at once and back; the reference is net/http, and both use crypto/tls", n: 2000, sse: true, tls: true, extra: true,
			Metrics: []metric{{Key: "full_us", Label: "CPU µs per full handshake and subscription"}, {Key: "resumed_us", Label: "the same per resumed one"},
				{Key: "full_per_core", Label: "full ones per second and core"}, {Key: "resumed_per_core", Label: "resumed ones per second and core"},
				{Key: "not_resumed_percent", Label: "of those that came back, not resumed, %", Target: 10, Absolute: true},
				{Key: "storm_seconds", Label: "seconds until all are back"}, {Key: "bytes_per_conn", Label: "user bytes per connection"}}},
		{Name: "slow-readers", About: "1,000 subscribers, 100 messages of 4 KiB a second, 10 % stop reading; the reference is weir without them", n: 1000, slow: 10, payload: 4096, rate: 100,
			publishers: 4, twice: true, withItself: true, Metrics: []metric{{Key: "p99_us", Label: "p99 µs of the others", Target: 1.2},
				{Key: "slow_bytes", Label: "memory per stopped reader, bytes", Target: 256 << 10, Absolute: true},
				{Key: "slow_ended", Label: "stopped readers that were disconnected"}}},
	}
	for _, s := range slices.Clone(all) {
		if s.window > 0 && s.channels == 0 || s.half {
			sse := *s
			sse.Name, sse.About, sse.sse, sse.extra = s.Name+"-sse", s.About+", over SSE", true, true
			sse.Metrics = slices.DeleteFunc(slices.Clone(s.Metrics), func(m metric) bool { return m.Against != "" })
			all = append(all, &sse)
		}
	}
	return all
}

// choose returns the scenarios named in list, joined by commas or spaces; "" and
// "default" are the default set. n, if not 0, is the most subscribers of each.
func choose(list string, n int) ([]*scenario, error) {
	all := scenarios()
	if n > 0 {
		for _, s := range all {
			s.shrink(n)
		}
	}
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 || slices.Equal(names, []string{"default"}) {
		return slices.DeleteFunc(all, func(s *scenario) bool { return s.extra }), nil
	}
	var chosen []*scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s *scenario) bool { return s.Name == name })
		if i < 0 {
			var known []string
			for _, s := range all {
				known = append(known, s.Name)
			}
			return nil, hinted(fmt.Errorf("no scenario %q", name), "there are "+strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// shrink is for trying the bench out: its numbers say nothing.
func (s *scenario) shrink(n int) {
	if s.n <= n {
		return
	}
	s.n = n
	s.channels = min(s.channels, n)
	if s.channels > 0 {
		s.n = n / s.channels * s.channels
	}
	for s.batch > 1 && (s.batch > s.channels || s.channels%s.batch != 0) {
		s.batch--
	}
}

// options are the load client's for this scenario, whatever the server.
func (s *scenario) options(seconds float64, rate float64, batch, slow bool) []string {
	if s.twice {
		seconds *= 2
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	o := []string{"--n", strconv.Itoa(s.n), "--seconds", number(seconds), "--warm", number(min(0.5, seconds/2)), "--settle", number(min(1, seconds))}
	add := func(name string, v int) {
		if v > 0 {
			o = append(o, name, strconv.Itoa(v))
		}
	}
	add("--channels", s.channels)
	add("--handshakes", s.handshakes)
	add("--publishers", s.publishers)
	add("--window", s.window)
	add("--echo", s.echo)
	add("--missed", s.missed)
	add("--payload", s.payload)
	if s.batch > 1 && batch {
		add("--batch", s.batch)
	}
	if s.slow > 0 && slow {
		add("--slow", s.slow)
	}
	if s.storm {
		add("--storm", 1)
	}
	if rate > 0 {
		o = append(o, "--rate", number(math.Round(rate*1000)/1000))
	}
	return o
}
