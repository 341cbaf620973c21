package app

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// reloadable is a gateway whose configuration the test changes while it runs.
type reloadable struct {
	*gateway
	src *source
}

func startLive(t *testing.T, change func(*config.Config), opt Options) *reloadable {
	t.Helper()
	src := &source{}
	opt.Load = src.load
	g := startApp(t, func(c *config.Config) {
		if change != nil {
			change(c)
		}
		src.cfg = *c
	}, opt)
	return &reloadable{g, src}
}

// change reloads with a changed configuration, all of which has to take effect.
func (g *reloadable) change(t *testing.T, change func(*config.Config)) Reloaded {
	t.Helper()
	g.src.set(func(c *config.Config) {
		deepCopy(c)
		change(c)
	})
	done, err := g.Reload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Waiting) > 0 || len(done.Applied) == 0 {
		t.Errorf("applied %v, waiting for a restart %v", done.Applied, done.Waiting)
	}
	return done
}

// refused reloads with a changed configuration that is wrong, and restores it.
func (g *reloadable) refused(t *testing.T, want string, change func(*config.Config)) {
	t.Helper()
	was, _ := g.src.load()
	inForce := *g.reload.now()
	g.src.set(func(c *config.Config) {
		deepCopy(c)
		change(c)
	})
	if done, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%+v %v, want an error with %q", done, err, want)
	}
	if d := config.Diff(inForce, *g.reload.now()); len(d) > 0 {
		t.Errorf("a refused reload changed %+v", d)
	}
	g.src.set(func(c *config.Config) { *c = was })
}

// deepCopy keeps what a test changes apart from what runs.
func deepCopy(c *config.Config) { copyValue(reflect.ValueOf(c).Elem()) }

func copyValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				copyValue(f)
			}
		}
	case reflect.Slice:
		if !v.IsNil() {
			s := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(s, v)
			for i := range s.Len() {
				copyValue(s.Index(i))
			}
			v.Set(s)
		}
	case reflect.Map:
		if !v.IsNil() {
			m := reflect.MakeMapWithSize(v.Type(), v.Len())
			for k, e := range v.Seq2() {
				x := reflect.New(e.Type()).Elem()
				x.Set(e)
				copyValue(x)
				m.SetMapIndex(k, x)
			}
			v.Set(m)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			p := reflect.New(v.Type().Elem())
			p.Elem().Set(v.Elem())
			copyValue(p.Elem())
			v.Set(p)
		}
	}
}

// lines is a buffer that goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestAReloadSetsTheLogLevel(t *testing.T) {
	var out lines
	level := &slog.LevelVar{}
	g := startLive(t, nil, Options{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})), Level: level})
	f := func(name string, want slog.Level) {
		t.Helper()
		g.change(t, func(c *config.Config) { c.Log.Level = name })
		if got := level.Level(); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	f("debug", slog.LevelDebug)
	f("error", slog.LevelError)
	if g.log.Enabled(context.Background(), slog.LevelWarn) {
		t.Error("warnings are still logged")
	}
	f("info", slog.LevelInfo)
	if !strings.Contains(out.String(), "configuration reloaded") {
		t.Error(out.String())
	}
}

func TestAReloadOpensTheAccessLogAgain(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	g := startLive(t, func(c *config.Config) {
		c.Routes = []policy.RouteConfig{{Name: "r", Path: "/*", Reply: policy.Reply{Status: 200, Body: "x"}}}
	}, Options{})
	visit := func(path string) {
		t.Helper()
		if status, body := g.get(t, path); status != 200 {
			t.Fatal(status, body)
		}
	}
	logged := func(file string, paths ...string) {
		t.Helper()
		var got []string
		trial.Eventually(t, "the lines are written", func() bool {
			b, _ := os.ReadFile(file)
			got = nil
			for l := range strings.Lines(string(b)) {
				var line struct{ Path string }
				_ = json.Unmarshal([]byte(l), &line)
				got = append(got, line.Path)
			}
			return len(got) >= len(paths)
		})
		if !reflect.DeepEqual(got, paths) {
			t.Errorf("%s: %v, want %v", filepath.Base(file), got, paths)
		}
	}
	visit("/none")
	g.change(t, func(c *config.Config) { c.AccessLog.File = first })
	visit("/a")
	logged(first, "/a")
	if err := os.Rename(first, first+".1"); err != nil { // as logrotate does
		t.Fatal(err)
	}
	visit("/b")
	logged(first+".1", "/a", "/b")
	if _, err := g.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	visit("/c")
	logged(first, "/c")
	g.change(t, func(c *config.Config) { c.AccessLog.File = second })
	visit("/d")
	logged(second, "/d")
	g.refused(t, "no such file or directory", func(c *config.Config) { c.AccessLog.File = filepath.Join(dir, "missing", "log") })
	visit("/e")
	logged(second, "/d", "/e")
	g.change(t, func(c *config.Config) { c.AccessLog.File = "" })
	visit("/f")
	logged(second, "/d", "/e")
	logged(first, "/c")
}

func TestAReloadSetsTheLimits(t *testing.T) {
	g := startLive(t, nil, Options{})
	ok := func(w *wiretest.Conn) bool {
		if _, err := w.Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
			return false
		}
		res, err := http.ReadResponse(w.R, nil)
		if err != nil {
			return false
		}
		_, err = w.R.Discard(int(res.ContentLength))
		return err == nil && res.StatusCode == http.StatusOK
	}
	held := []*wiretest.Conn{g.dial(t), g.dial(t)} // from before there was a limit
	for _, w := range held {
		if !ok(w) {
			t.Fatal("refused without a limit")
		}
	}
	http.DefaultClient.CloseIdleConnections()
	g.change(t, func(c *config.Config) { c.Limits.PerAddress.Connections = 3 })
	trial.Eventually(t, "the open connections count", func() bool {
		a, b := g.dial(t), g.dial(t)
		defer a.Close()
		defer b.Close()
		return ok(a) && !ok(b)
	})
	for _, w := range held {
		if !ok(w) {
			t.Error("a connection that was open is refused")
		}
	}
	g.change(t, func(c *config.Config) {
		c.Limits.PerAddress.Connections = 0
		c.Limits.PerIdentity.PublishRate = limit.Rate{PerSecond: 0.001, Burst: 2}
	})
	publish := func(want ...int) {
		t.Helper()
		for i, status := range want {
			if got, body := g.post(t, "/api/publish", `{"channel":"news","data":1}`); got != status {
				t.Errorf("publication %d: %d %s, want %d", i, got, body, status)
			}
		}
	}
	publish(200, 200, 429)
	g.refused(t, "per_second", func(c *config.Config) { c.Limits.PerIdentity.PublishRate.PerSecond = -1 })
	g.refused(t, "not a network", func(c *config.Config) {
		c.Limits.PerIdentity.PublishRate, c.Limits.Exempt = limit.Rate{}, []string{"nonsense"}
	})
	publish(429)
	g.change(t, func(c *config.Config) { c.AccessLog.File = "stderr" }) // what was used stays used
	publish(429)
	g.change(t, func(c *config.Config) { c.Limits.PerIdentity.PublishRate = limit.Rate{} })
	publish(200, 200, 200, 200)
	for _, w := range held {
		if !ok(w) {
			t.Error("a connection that was open is refused")
		}
	}
}
