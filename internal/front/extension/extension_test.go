package extension

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns Extensions of list whose hooks are hook, and counts the calls.
func open(t testing.TB, hook HookFunc, list ...Config) (*Extensions, *atomic.Int64) {
	t.Helper()
	n := &atomic.Int64{}
	x := New(Options{MayChange: func(name string) error {
		if name == "Host" {
			return errors.New("Host is not to be changed")
		}
		return nil
	}})
	t.Cleanup(x.Close)
	load(t, x, func(ctx context.Context, e *Event) (*Verdict, error) { n.Add(1); return hook(ctx, e) }, list...)
	return x, n
}

func load(t testing.TB, x *Extensions, hook HookFunc, list ...Config) {
	t.Helper()
	for i := range list {
		list[i].Target = "127.0.0.1:1"
		if err := list[i].Validate(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := x.Prepare(list, func(Config) (Hook, func(), error) { return hook, func() {}, nil })
	if err != nil {
		t.Fatal(err)
	}
	c.Commit()
}

func allow(context.Context, *Event) (*Verdict, error) { return nil, nil }

var everything = []string{"request", "response", "connect", "subscribe", "publish", "disconnect"}

func TestExtensionsAreCalledInOrderWithWhatIsChanged(t *testing.T) {
	x, _ := open(t, func(_ context.Context, e *Event) (*Verdict, error) {
		return &Verdict{Data: append([]byte("<"), e.Data...), Set: []Field{{"X-Seen", string(e.Data)}}, Identity: &Identity{User: e.User + "a"}}, nil
	}, Config{Name: "one", Events: everything}, Config{Name: "two", Events: everything}, Config{Name: "three", Events: []string{"request"}})
	d := x.Decide(t.Context(), &Event{Kind: Publish, Data: []byte("x"), User: "u", Channels: []string{"c"}})
	if !d.Admit || string(d.Data) != "<<x" || string(d.Lines) != "X-Seen: <x\r\n" || d.Identity.Subject != "uaa" {
		t.Errorf("%+v %s", d, d.Lines)
	}
}

func TestTheFirstRefusalEndsIt(t *testing.T) {
	x, n := open(t, func(context.Context, *Event) (*Verdict, error) {
		return &Verdict{Refuse: &Refusal{Reason: "no", Headers: []Field{{"Retry-After", "3"}, {"Connection", "x"}}}}, nil
	}, Config{Name: "one", Events: everything}, Config{Name: "two", Events: everything})
	d := x.Decide(t.Context(), &Event{Kind: Connect})
	if d.Admit || d.Status != 403 || d.Message != "no" || string(d.Fields) != "Retry-After: 3\r\n" || n.Load() != 1 {
		t.Errorf("%+v after %d calls", d, n.Load())
	}
}

func TestOnlyConfiguredHooksAreCalled(t *testing.T) {
	x, _ := open(t, allow, Config{Name: "one", Events: []string{"request", "publish"}, Routes: []string{"a"}, Namespaces: []string{"news"}})
	f := func(k Kind, want bool, scope ...string) {
		t.Helper()
		if got := x.Handles(k, scope...); got != want {
			t.Errorf("Handles(%s, %q) = %v", k, scope, got)
		}
	}
	f(Request, true)
	f(Request, true, "a")
	f(Request, false, "b")
	f(Response, false, "a")
	f(Publish, true, "x", "news:x")
	f(Publish, false, "x")
	f(Connect, false)
	var none *Extensions
	if none.Handles(Request) || !none.Decide(t.Context(), &Event{Kind: Request}).Admit {
		t.Error("no extensions decide")
	}
}

func TestWithoutAVerdictItFailsClosedOrOpen(t *testing.T) {
	for status, hook := range map[int]HookFunc{
		503: func(context.Context, *Event) (*Verdict, error) { return nil, errors.New("down") },
		504: func(ctx context.Context, _ *Event) (*Verdict, error) { <-ctx.Done(); return nil, ctx.Err() },
		502: func(context.Context, *Event) (*Verdict, error) { return &Verdict{Set: []Field{{"Host", "x"}}}, nil },
	} {
		for _, failOpen := range []bool{false, true} {
			x, _ := open(t, hook, Config{Name: "one", Events: everything, FailOpen: failOpen, Timeout: hub.Duration(20 * time.Millisecond)})
			d := x.Decide(t.Context(), &Event{Kind: Request})
			if d.Admit != failOpen || !failOpen && (!d.Unavailable || d.Status != status) {
				t.Errorf("%d, fail_open %v: %+v", status, failOpen, d)
			}
		}
	}
	x, _ := open(t, func(context.Context, *Event) (*Verdict, error) { panic("oh") }, Config{Name: "one", Events: everything})
	if d := x.Decide(t.Context(), &Event{Kind: Request}); d.Admit || d.Status != 503 {
		t.Errorf("a panic: %+v", d)
	}
}

func TestInvalidVerdictsAreNamed(t *testing.T) {
	f := func(k Kind, v Verdict, ok bool) {
		t.Helper()
		x, _ := open(t, func(context.Context, *Event) (*Verdict, error) { return &v, nil }, Config{Name: "one", Events: everything})
		if d := x.Decide(t.Context(), &Event{Kind: k}); (d.Status != 502) != ok {
			t.Errorf("%+v: %+v", v, d)
		}
	}
	f(Request, Verdict{Set: []Field{{"A B", "x"}}}, false)
	f(Request, Verdict{Set: []Field{{"A", "x\r\nB: y"}}}, false)
	f(Request, Verdict{Remove: []string{"Host"}}, false)
	f(Request, Verdict{Identity: &Identity{User: "a\nb"}}, false)
	f(Request, Verdict{Identity: &Identity{User: "a", Subscribe: []string{""}}}, false)
	f(Request, Verdict{Refuse: &Refusal{Status: 302}}, true)
	f(Connect, Verdict{Refuse: &Refusal{Status: 302}}, false)
	f(Request, Verdict{Refuse: &Refusal{Status: 200}}, false)
	f(Request, Verdict{Refuse: &Refusal{Headers: []Field{{"A", "\n"}}}}, false)
}

func TestVerdictsLastAsLongAsTheySay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, n := open(t, func(context.Context, *Event) (*Verdict, error) { return &Verdict{TTL: time.Minute}, nil },
			Config{Name: "one", Events: []string{"request"}, Headers: []string{"authorization"}})
		f := func(e Event, calls int64) {
			t.Helper()
			e.Kind = Request
			e.Client = netip.MustParseAddr("192.0.2.1")
			if x.Decide(t.Context(), &e); n.Load() != calls {
				t.Errorf("%d calls after %+v, want %d", n.Load(), e, calls)
			}
		}
		f(Event{Path: "/a", Headers: []Field{{"Authorization", "x"}, {"traceparent", "1"}}}, 1)
		f(Event{Path: "/a", Headers: []Field{{"authorization", "x"}, {"traceparent", "2"}}, Connection: 7}, 1)
		f(Event{Path: "/a", Headers: []Field{{"Authorization", "y"}}}, 2)
		f(Event{Path: "/b", Headers: []Field{{"Authorization", "x"}}}, 3)
		f(Event{Path: "/b", User: "u", Headers: []Field{{"Authorization", "x"}}}, 4)
		time.Sleep(2 * time.Minute) // fake time
		f(Event{Path: "/a", Headers: []Field{{"Authorization", "x"}}}, 5)
		if x.Cached(&Event{Kind: Request, Path: "/none"}) != nil {
			t.Error("something was cached that was never asked")
		}
	})
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	release := make(chan struct{})
	x, _ := open(t, func(context.Context, *Event) (*Verdict, error) { <-release; return nil, nil }, Config{Name: "one", Events: everything, MaxPending: 2, Timeout: hub.Duration(time.Minute)})
	done := make(chan bool, 2)
	for range 2 {
		go func() { done <- x.Decide(context.Background(), &Event{Kind: Request}).Admit }()
	}
	trial.Eventually(t, "two calls are under way", func() bool { return x.Stats()["one"].Pending == 2 })
	if d := x.Decide(t.Context(), &Event{Kind: Request}); d.Admit || d.Status != 503 || x.Stats()["one"].Events["request"]["overloaded"] != 1 {
		t.Errorf("%+v", d)
	}
	close(release)
	for range 2 {
		if !<-done {
			t.Error("a call within the bound was refused")
		}
	}
}

func TestDisconnectEventsAreQueuedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		x, n := open(t, func(context.Context, *Event) (*Verdict, error) { <-release; return nil, nil }, Config{Name: "one", Events: []string{"disconnect"}, Queue: 8, Timeout: hub.Duration(time.Minute)})
		for range notifiers {
			x.Notify(&Event{Kind: Disconnect})
			synctest.Wait()
		}
		for range 10 {
			x.Notify(&Event{Kind: Disconnect})
		}
		if s := x.Stats()["one"]; s.Dropped != 2 || s.Queued != 8 {
			t.Errorf("%+v", s)
		}
		close(release)
		synctest.Wait()
		if n.Load() != notifiers+8 {
			t.Errorf("%d calls", n.Load())
		}
		x.Close()
	})
}

func TestReloadKeepsWhatStays(t *testing.T) {
	one, two := Config{Name: "one", Events: everything}, Config{Name: "two", Events: everything}
	x, n := open(t, func(context.Context, *Event) (*Verdict, error) { return &Verdict{TTL: time.Hour}, nil }, one)
	x.Decide(t.Context(), &Event{Kind: Request})
	load(t, x, allow, two, one)
	if x.Decide(t.Context(), &Event{Kind: Request}); n.Load() != 1 {
		t.Error("what was cached is gone")
	}
	one.Timeout = hub.Duration(time.Second)
	load(t, x, allow, one)
	if s := x.Stats(); len(s) != 1 || s["one"].Events["request"]["allowed"] != 0 {
		t.Errorf("%+v", s)
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := Config{Name: "one", Target: "127.0.0.1:9000", Events: everything}
		change(&c)
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("", func(*Config) {})
	f("", func(c *Config) { c.Target = "unix:/run/x.sock" })
	f("", func(c *Config) { c.Target = "dns:///rules.example:9000" })
	f("name", func(c *Config) { c.Name = "" })
	f("target", func(c *Config) { c.Target = "http://a:1" })
	f("target", func(c *Config) { c.Target = "a" })
	f("target", func(c *Config) { c.Target = "unix:relative" })
	f("events: the list is empty", func(c *Config) { c.Events = nil })
	f("events[0]", func(c *Config) { c.Events = []string{"body"} })
	f("headers[0]", func(c *Config) { c.Headers = []string{"a b"} })
	f("timeout", func(c *Config) { c.Timeout = hub.Duration(time.Hour) })
	f("max_message", func(c *Config) { c.MaxMessage = 1 })
	f("max_pending", func(c *Config) { c.MaxPending = -1 })
	f("cache_size", func(c *Config) { c.CacheSize = 1 })
	f("queue", func(c *Config) { c.Queue = -1 })
	f("tls: enabled is false", func(c *Config) { c.TLS.CAFile = "x" })
	f("cert_file and key_file", func(c *Config) { c.TLS = TLSConfig{Enabled: true, CertFile: "x"} })
	err := CheckAll([]Config{{Name: "a", Routes: []string{"r"}}, {Name: "a", Namespaces: []string{"n"}}}, func(string) bool { return false }, func(string) bool { return false })
	for _, want := range []string{`extensions[1].name: "a" is taken`, "extensions[0].routes[0]", "extensions[1].namespaces[0]"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
