package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// hostile is what a client may call itself or a channel.
const hostile = "\x1b]0;owned\x07\x1b[2J\u202egnihton\u009b31m\tpresto"

// topSample is a server with something in every table.
func topSample() *topSnapshot {
	s := &topSnapshot{at: time.Unix(1_790_000_000, 0)}
	s.Time = s.at
	s.Process = admin.Process{Listen: "127.0.0.1:8000", Ready: "yes", Uptime: 90, Engine: "epoll", Broker: "memory", Version: "test"}
	s.Connections = admin.Connected{Open: 3, Max: 100, ByProtocol: map[string]int64{"sse": 2, "websocket": 1, "http": 0}}
	for i := range 30 {
		s.Loops = append(s.Loops, admin.Loop{Loop: i, Busy: float64(i) / 30, Current: 0.2})
		s.Slowest = append(s.Slowest, admin.Connection{Peer: hostile, Transport: "sse", Subject: hostile, Channels: []string{hostile, "漢字漢字漢字漢字"}, Bytes: 1 << 20, Messages: 9, Age: 2})
		s.Channels.Top = append(s.Channels.Top, admin.Channel{Name: hostile + strings.Repeat("漢", 60), Rate: 1e6, Subscribers: 15_000, Messages: 1e12})
	}
	s.Slowest[0].Protocol, s.Slowest[0].HTTP2, s.Slowest[0].Loop = "mercure", true, -1
	s.Admission = []admin.Admission{{Class: "control"}, {Class: "order", Offered: 9, OfferedRate: 300, AdmittedRate: 300, DelayP99: 0.0001},
		{Class: "market" + hostile, Offered: 1e12, OfferedRate: 1.13e4, AdmittedRate: 7.15e3, RejectedRate: 4.27e3, DelayP50: 0.005, DelayP95: 0.015, DelayP99: 0.025}}
	s.Governor = &governor.Snapshot{Enabled: true, State: governor.State{
		Now: stat.Inflection, Since: s.Time.Add(-time.Minute), Causes: []governor.Cause{{Name: "loop-stuck", Text: "loop 3 stuck for 2 s" + hostile, State: stat.Inflection, Loop: 3}},
	}}
	for range 50 {
		s.Governor.Timeline = append(s.Governor.Timeline, governor.Transition{Time: s.Time, To: stat.Alert, Causes: s.Governor.State.Causes, Evidence: hostile})
	}
	s.Upstreams.Clusters = []upstream.ClusterStats{{Name: hostile, Peers: []upstream.PeerStats{{Address: "a:1", State: "up"}, {Address: "b:1", State: "down"}}}}
	return s
}

// columns are how many a rendered line takes; escape sequences of colour take none.
func columns(t *testing.T, line string) int {
	t.Helper()
	n := 0
	for rest := line; rest != ""; {
		if strings.HasPrefix(rest, "\x1b[") {
			end := strings.IndexByte(rest, 'm')
			if end < 0 || strings.Trim(rest[2:end], "0123456789;") != "" {
				t.Errorf("%q has a sequence that is not a colour", line)
				return n
			}
			rest = rest[end+1:]
			continue
		}
		for i, r := range rest {
			if i > 0 {
				rest = rest[i:]
				break
			}
			if !unicode.IsPrint(r) {
				t.Errorf("%q holds %q", line, r)
			}
			n += draw.RuneWidth(r)
			if i+len(string(r)) == len(rest) {
				rest = ""
			}
		}
	}
	return n
}

func TestTopFitsEveryScreenAndShowsNoSequenceOfOthers(t *testing.T) {
	sample := topSample()
	for view := range topViews {
		for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 3}, {1, 1}} {
			for _, help := range []bool{false, true} {
				v := topView{view: view, full: true, help: help, width: size[0], height: size[1], snapshot: sample, rows: sample.Slowest, problem: errors.New("gone" + hostile)}
				lines := v.lines()
				if len(lines) != size[1] {
					t.Errorf("%s at %v: %d lines", topViews[view], size, len(lines))
				}
				for _, l := range lines {
					if n := columns(t, l.render(size[0], true)); n > size[0] {
						t.Errorf("%s at %v: %d columns: %q", topViews[view], size, n, l.render(size[0], false))
					}
				}
			}
		}
	}
}

func TestTopShowsWhatMatters(t *testing.T) {
	f := func(view string, wants ...string) {
		t.Helper()
		s := topSample()
		v := topView{view: slices.Index(topViews, view), full: true, width: 100, height: 80, snapshot: s, rows: s.Slowest}
		var b strings.Builder
		for _, l := range v.lines() {
			b.WriteString(l.render(100, false) + "\n")
		}
		for _, want := range wants {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s does not say %q:\n%s", view, want, b.String())
			}
		}
	}
	f("overview", "CLASS", "4.27k", "mercure sse h2", "INFLECTION for 1m0s", "loop 3 stuck for 2 s", "sse 2  websocket 1", "SLOWEST CONSUMERS", "CHANNELS", "BACKENDS")
	f("loops", "97 %", "200 ms")
	f("consumers", "CONSUMERS BY LAG", "1 MiB")
	f("channels", "15,000")
	f("backends", "down", "b:1")
	f("timeline", "alert")
}

// Every cause can be read, however narrow the screen is.
func TestTopShowsEveryCause(t *testing.T) {
	for _, width := range []int{40, 80, 200} {
		s := topSample()
		s.Governor.State.Causes = nil
		for _, text := range []string{"CPU starved: others run, we wait 0.42 s/s per P", "readers stopped: 12 of 300", "gc assists 9 % of cpu"} {
			s.Governor.State.Causes = append(s.Governor.State.Causes, governor.Cause{Text: text, State: stat.Alert})
		}
		v := topView{full: true, width: width, height: 24, snapshot: s}
		var b strings.Builder
		for _, l := range v.lines() {
			b.WriteString(l.render(width, false))
		}
		for _, c := range s.Governor.State.Causes {
			if !strings.Contains(b.String(), c.Text) {
				t.Errorf("%d columns do not say %q:\n%s", width, c.Text, b.String())
			}
		}
	}
}

// What is down comes before what is up: a short screen must not hide it.
func TestTopShowsBrokenPeersFirst(t *testing.T) {
	v := topView{width: 80, snapshot: topSample()}
	if l := v.backends(1)[1].render(80, false); !strings.Contains(l, "down") {
		t.Errorf("the first peer is %q", l)
	}
}

func TestTopKeys(t *testing.T) {
	v := topView{snapshot: topSample()}
	f := func(k byte, view string, sort int, end bool) {
		t.Helper()
		if got := v.key(k); got != end || topViews[v.view] != view || v.sort != sort {
			t.Errorf("%q: end %v, view %s, sort %d", k, got, topViews[v.view], v.sort)
		}
	}
	f('l', "loops", 0, false)
	f('\t', "consumers", 0, false)
	f('s', "consumers", 1, false)
	f('u', "backends", 1, false)
	f('s', "consumers", 2, false)
	f('x', "consumers", 2, false)
	f('q', "consumers", 2, true)
	f(3, "consumers", 2, true)
}

// A snapshot with things that this version does not know is read all the same.
func TestTopReadsSnapshots(t *testing.T) {
	in := admin.Snapshot{Traffic: admin.Traffic{Published: 7}, Governor: &governor.Snapshot{Enabled: true, State: governor.State{Now: stat.Alert}}, Upstreams: map[string]any{"clusters": []upstream.ClusterStats{{Name: "c"}}, "later": 1}}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out topSnapshot
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if out.Traffic.Published != 7 || out.Governor.State.Now != stat.Alert || len(out.Upstreams.Clusters) != 1 || out.Upstreams.Clusters[0].Name != "c" {
		t.Errorf("read %+v", out)
	}
}
