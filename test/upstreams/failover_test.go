package upstreams

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// stage is a load before a gateway and its peers.
type stage struct {
	t       *testing.T
	gateway *judge.Server
	load    *load
}

// more waits until n more requests were served: they all had to come through what
// was done before.
func (s *stage) more(n int) {
	s.t.Helper()
	from := s.load.count()
	judge.Eventually(s.t, time.Minute, fmt.Sprintf("%d more requests", n), func() bool { return s.load.count() >= from+n || s.broken() })
	s.check()
}

// back waits until the peer of this name serves again.
func (s *stage) back(name string) {
	s.t.Helper()
	from := s.load.by(name)
	judge.Eventually(s.t, time.Minute, name+" serves", func() bool { return s.load.by(name) >= from+20 || s.broken() })
	s.check()
}

func (s *stage) broken() bool {
	s.load.mu.Lock()
	defer s.load.mu.Unlock()
	return len(s.load.failed) > 0
}

func (s *stage) check() {
	s.t.Helper()
	s.load.mu.Lock()
	defer s.load.mu.Unlock()
	if len(s.load.failed) > 0 {
		s.t.Fatalf("requests failed while a peer was %q", s.load.failed)
	}
}

// cluster of these peers that notices soon what has happened to them.
func cluster(name string, peers ...*peer) map[string]any {
	var list []any
	for _, p := range peers {
		list = append(list, map[string]any{"address": p.address})
	}
	return map[string]any{
		"name": name, "peers": list,
		"health":   map[string]any{"path": "/health", "interval": "200ms", "timeout": "1s"},
		"outlier":  map[string]any{"base_ejection": "500ms", "max_ejection": "1s"},
		"breaker":  map[string]any{"open_time": "500ms"},
		"timeouts": map[string]any{"connect": "1s", "first_byte": "1s"},
		"retry":    map[string]any{"on": []string{"connect-failure", "reset", "timeout", "502", "503", "504"}},
	}
}

func site(c map[string]any) map[string]any {
	return map[string]any{
		"routes":   []any{map[string]any{"name": "site", "path": "/*", "cluster": c["name"]}},
		"clusters": []any{c},
	}
}

func (s *stage) reload(config map[string]any) {
	s.t.Helper()
	s.gateway.Configure(config)
	if status, body := s.gateway.Reload(); status != 200 {
		s.t.Fatalf("reload: %d %s", status, body)
	}
}

func TestNothingFailsWhilePeersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	a, b, c := newPeer(t, "a", dir), newPeer(t, "b", dir), newPeer(t, "c", dir)
	config := site(cluster("main", a, b, c))
	config["reload"] = map[string]any{"watch": "-1s"}
	g := judge.New(t, judge.Options{Memory: true, Config: config})
	s := &stage{t, g, startLoad(t, g.Public, "/x", 8, 10*time.Millisecond)}
	s.load.post(g.Public, "/p", 3, 10*time.Millisecond)
	s.more(200)

	s.load.enter("stopped gracefully")
	a.end(syscall.SIGTERM)
	s.more(200)
	s.load.enter("started again")
	a.start("a")
	s.back("a")

	s.load.enter("killed")
	b.end(syscall.SIGKILL)
	s.more(200)
	b.start("b")
	s.back("b")

	s.load.enter("frozen")
	c.signal(syscall.SIGSTOP)
	s.more(300)
	s.load.enter("thawed")
	c.signal(syscall.SIGCONT)
	s.back("c")

	s.load.enter("removed by reload")
	config["clusters"] = []any{cluster("main", b, c)}
	s.reload(config)
	s.more(100) // what had started before is over
	left := s.load.by("a")
	s.more(200)
	if now := s.load.by("a"); now != left {
		t.Errorf("a peer that was removed still served %d requests", now-left)
	}
	s.load.enter("killed after it was removed")
	a.end(syscall.SIGKILL)
	s.more(100)

	s.load.enter("added by reload")
	d := newPeer(t, "d", dir)
	config["clusters"] = []any{cluster("main", b, c, d)}
	s.reload(config)
	s.back("d")

	s.load.enter("replaced at its address")
	d.end(syscall.SIGKILL)
	d.start("e")
	s.back("e")

	for _, p := range []struct {
		*peer
		name string
	}{{b, "b2"}, {c, "c2"}, {d, "d2"}} {
		s.load.enter("restarted one by one as " + p.name)
		p.end(syscall.SIGTERM)
		p.start(p.name)
		s.back(p.name)
	}
	s.load.stop()
	s.check()
	once(t, s.load, dir)
	t.Logf("%d requests, none failed; %d posts answered, %d not", s.load.count(), len(s.load.posted), len(s.load.unsure))
}

// once holds the arrivals at the backends against the posts sent.
func once(t *testing.T, l *load, dir string) {
	t.Helper()
	arrived := posts(t, dir)
	for _, id := range l.posted {
		if arrived[id] != 1 {
			t.Errorf("post %s was answered and arrived %d times", id, arrived[id])
		}
	}
	for _, id := range l.unsure {
		if arrived[id] > 1 {
			t.Errorf("post %s failed and arrived %d times", id, arrived[id])
		}
	}
	if len(l.posted) < 100 {
		t.Errorf("only %d posts were answered", len(l.posted))
	}
}
