package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A site is a web application: its pages, the built client, and its tokens.
type site struct {
	*httptest.Server
	life   atomic.Int64 // of a token, in seconds
	tokens atomic.Int64
}

// builtClient is clients/js as it is published.
func builtClient(t testing.TB) string {
	t.Helper()
	judge.Need(t, "npm")
	dir := t.TempDir()
	cmd := exec.Command("node_modules/.bin/esbuild", judge.Path("clients", "js", "weir.js"), judge.Path("clients", "js", "worker.js"),
		"--minify", "--format=esm", "--outdir="+dir)
	cmd.Dir = judge.Path("test", "e2e", "npm")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("esbuild: %v\n%s", err, out)
	}
	return dir
}

func gzipped(t testing.TB, b []byte) int {
	t.Helper()
	var buf bytes.Buffer
	w, _ := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Len()
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{}
	s.life.Store(3600)
	mux := http.NewServeMux()
	mux.Handle("GET /client/", http.StripPrefix("/client/", http.FileServer(http.Dir(builtClient(t)))))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, judge.Path("test", "e2e", "npm", "client.html"))
	})
	mux.HandleFunc("GET /token", func(w http.ResponseWriter, _ *http.Request) {
		s.tokens.Add(1)
		_, _ = fmt.Fprint(w, s.token())
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *site) token() string {
	now := time.Now().Unix()
	return judge.Token(judge.Claims{"sub": "someone", "iat": now, "exp": now + s.life.Load(), "weir": judge.Grants([]string{"**"}, nil)})
}

// tabs are those of one Chromium.
type tabs struct {
	*tab
	site *site
	url  string // the server's, for the pages
}

func newTabs(t *testing.T, server string) *tabs {
	t.Helper()
	return &tabs{driven(t, "tabs.mjs"), newSite(t), server}
}

// open opens a page that follows what o says.
func (b *tabs) open(name, init string, o map[string]any) {
	b.t.Helper()
	b.do(b.t, "open", map[string]string{"name": name, "url": b.site.URL, "init": init}, nil)
	b.wait(name, "window.ready")
	arg, err := json.Marshal(o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.eval(name, fmt.Sprintf("start(%q, %s)", b.url, arg), nil)
}

func (b *tabs) eval(name, code string, out any) {
	b.t.Helper()
	b.do(b.t, "evaluate", map[string]string{"name": name, "code": code}, out)
}

func (b *tabs) wait(name, code string) {
	b.t.Helper()
	defer func() {
		if b.t.Failed() {
			var log string
			b.eval(name, "JSON.stringify((window.log ?? []).slice(-50))", &log)
			b.t.Log(log)
		}
	}()
	b.do(b.t, "wait", map[string]string{"name": name, "code": code}, nil)
}

// numbered publishes n to the channel, and returns once that is answered.
func numbered(t testing.TB, s *judge.Server, channel string, n int) {
	t.Helper()
	p := &judge.Publisher{Addr: s.Public}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Publish(ctx, channel, fmt.Sprintf(`{"n":%d}`, n)); err != nil {
		t.Fatal(err)
	}
}

// inOrder waits until a tab has from..to of a channel, and fails unless it has each once
// and in order.
func (b *tabs) inOrder(name, channel string, from, to int) {
	b.t.Helper()
	b.wait(name, fmt.Sprintf("log.some((e) => e.channel === %q && e.data === %d)", channel, to))
	var got []int
	b.eval(name, fmt.Sprintf("of('message').filter((e) => e.channel === %q).map((e) => e.data)", channel), &got)
	want := make([]int, 0, to-from+1)
	for n := from; n <= to; n++ {
		want = append(want, n)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("%s: %s brought %v, want %d to %d", name, channel, got, from, to)
	}
}

// twoNamespaces is the configuration of most tests here. Pages need not be listed: they
// are on loopback.
func twoNamespaces() map[string]any {
	return map[string]any{"namespaces": []any{
		map[string]any{"name": "default", "anonymous": true, "durability": "stored", "history_size": 100_000},
		map[string]any{"name": "orders", "durability": "stored", "history_size": 100_000},
	}}
}

func connections(s *judge.Server) int {
	return int(s.Series("weir_connections", `transport="sse"`) + s.Series("weir_connections", `transport="websocket"`))
}

func TestBrowserClientResumesThroughKillsAndRenewsItsToken(t *testing.T) {
	t.Parallel()
	s := judge.New(t, judge.Options{Build: judge.Plain, Config: twoNamespaces()})
	b := newTabs(t, "http://"+s.Public)
	b.site.life.Store(4) // with the leeway of the server's: they expire while it runs
	for _, transport := range []string{"ws", "sse"} {
		b.open(transport, "", map[string]any{"channels": []string{"news", "orders:1", "orders:2"}, "token": true, "transports": []string{transport}})
		b.wait(transport, "of('open').length")
	}
	n := 0
	more := func() {
		for range 20 {
			n++
			numbered(t, s, "news", n)
			numbered(t, s, "orders:1", n)
		}
	}
	for range 3 {
		more()
		for _, tab := range []string{"ws", "sse"} { // it is connected when the server dies
			b.wait(tab, fmt.Sprintf("log.some((e) => e.data === %d)", n))
		}
		s.Kill()
		s.Start()
		more()
	}
	for _, tab := range []string{"ws", "sse"} { // by now a token has expired
		b.wait(tab, "of('end').some((e) => e.code === 4401) && asked > 1")
	}
	more()
	for _, tab := range []string{"ws", "sse"} {
		b.inOrder(tab, "news", 1, n)
		b.inOrder(tab, "orders:1", 1, n)
		var gaps, errors, opens int
		b.eval(tab, "of('gap').length", &gaps)
		b.eval(tab, "of('error').length", &errors)
		b.eval(tab, "of('open').length", &opens)
		// One at first and one after each kill; a token that expired meanwhile is renewed
		// by one of those, or by one of its own.
		if gaps+errors != 0 || opens < 4 {
			t.Errorf("%s: %d gaps, %d errors, %d connections", tab, gaps, errors, opens)
		}
	}
}

func TestSlowBrowserClientReceivesAGapEvent(t *testing.T) {
	t.Parallel()
	s := judge.New(t, judge.Options{Build: judge.Plain, Config: overlaid(
		judge.Namespace(map[string]any{"policy": "drop-oldest", "history_size": 1000}),
		map[string]any{"eventloop": map[string]any{"max_queue": 1 << 20}})})
	b := newTabs(t, "http://"+s.Public)
	for _, transport := range []string{"ws", "sse"} {
		b.open(transport, "", map[string]any{"channels": "news", "transports": []string{transport}})
		b.wait(transport, "of('open').length")
		b.eval(transport, "window.slow = 12_000", nil)
	}
	// More than the sockets, the queue and the browser hold while the pages are busy.
	text := strings.Repeat("x", 60_000)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := &judge.Publisher{Addr: s.Public}
			for k := range 100 { // what is published twice is stored once
				if err := p.Publish(t.Context(), "news", fmt.Sprintf(`{"n":%d,"text":%q}`, -i*100-k, text)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, tab := range []string{"ws", "sse"} {
		b.wait(tab, "of('gap').length")
		numbered(t, s, "news", 7)
		b.wait(tab, "log.some((e) => e.data === 7)")
		var reasons string
		b.eval(tab, "[...new Set(of('gap').map((e) => e.reason))].join()", &reasons)
		if reasons != "overflow" {
			t.Errorf("%s: gaps for %s", tab, reasons)
		}
	}
}

func overlaid(a, b map[string]any) map[string]any {
	for k, v := range b {
		a[k] = v
	}
	return a
}

func TestBrowserTabsShareAConnection(t *testing.T) {
	t.Parallel()
	s := judge.New(t, judge.Options{Build: judge.Plain, Config: twoNamespaces()})
	b := newTabs(t, "http://"+s.Public)
	shared := func(channels ...string) map[string]any {
		return map[string]any{"channels": channels, "token": true, "share": true}
	}
	b.open("one", "", shared("news"))
	b.wait("one", "of('open').length")
	b.open("two", "", shared("news", "orders:1"))
	b.open("three", "", shared("orders:1"))
	for _, tab := range []string{"two", "three"} {
		b.wait(tab, "of('open').length")
	}
	judge.Eventually(t, 30*time.Second, "one connection", func() bool { return connections(s) == 1 })
	// A tab knows its channels only once the shared stream has opened with them.
	numbered(t, s, "orders:1", 0)
	for _, tab := range []string{"two", "three"} {
		b.wait(tab, "of('message').length")
		b.eval(tab, "log = []", nil)
	}
	for n := 1; n <= 20; n++ {
		numbered(t, s, "news", n)
		numbered(t, s, "orders:1", n)
	}
	s.Kill()
	s.Start()
	for n := 21; n <= 40; n++ {
		numbered(t, s, "news", n)
		numbered(t, s, "orders:1", n)
	}
	b.inOrder("one", "news", 1, 40)
	b.inOrder("two", "news", 1, 40)
	b.inOrder("two", "orders:1", 1, 40)
	b.inOrder("three", "orders:1", 1, 40)
	var others int
	b.eval("three", "of('message').filter((e) => e.channel !== 'orders:1').length", &others)
	if others != 0 || connections(s) != 1 {
		t.Errorf("%d messages of channels that it does not follow, %d connections", others, connections(s))
	}

	// One that starts with the history catches up beside the others, and joins them.
	late := shared("news")
	late["since"] = "0"
	b.open("late", "", late)
	b.wait("late", "log.some((e) => e.data === 40)")
	numbered(t, s, "news", 41)
	b.inOrder("late", "news", 1, 41)
	judge.Eventually(t, 30*time.Second, "it has joined the others", func() bool { return connections(s) == 1 })
	numbered(t, s, "news", 42)
	b.inOrder("late", "news", 1, 42)

	// The stream continues for those that stay, and ends with the last of them.
	for _, tab := range []string{"one", "two", "late"} {
		b.do(t, "close", map[string]string{"name": tab}, nil)
	}
	numbered(t, s, "orders:1", 41)
	b.inOrder("three", "orders:1", 1, 41)
	b.eval("three", "stream.close()", nil)
	judge.Eventually(t, 30*time.Second, "no connection", func() bool { return connections(s) == 0 })
	if n := b.site.tokens.Load(); n != 1 {
		t.Errorf("%d tokens for one connection at a time", n)
	}
}

func TestBrowserClientWithoutSharedWorkerOrWebSocket(t *testing.T) {
	t.Parallel()
	s := judge.New(t, judge.Options{Build: judge.Plain})
	target, err := url.Parse("http://" + s.Public)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ws" {
			http.Error(w, "no upgrades here", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	b := newTabs(t, front.URL)
	b.open("bare", "delete window.SharedWorker", map[string]any{"channels": "news", "share": true})
	b.open("module", "const W = SharedWorker; window.SharedWorker = function (u, o) { return new W(new URL('./missing.js', u), o); }",
		map[string]any{"channels": "news", "share": true})
	for _, tab := range []string{"bare", "module"} {
		b.wait(tab, "of('open').some((e) => e.transport === 'sse')")
	}
	numbered(t, s, "news", 1)
	b.inOrder("bare", "news", 1, 1)
	b.inOrder("module", "news", 1, 1)
	if n := connections(s); n != 2 {
		t.Errorf("%d connections", n)
	}
	// What the server refuses for good is an error, in its words.
	b.eval("bare", "start(stream.url ?? "+fmt.Sprintf("%q", front.URL)+", { channels: ['nowhere:1'] })", nil)
	b.wait("bare", "of('error').some((e) => e.status === 404 && e.hint)")
}

// TestNativeEventSourceOutlivesItsToken is about pages without the client.
func TestNativeEventSourceOutlivesItsToken(t *testing.T) {
	t.Parallel()
	s := judge.New(t, judge.Options{Build: judge.Plain, Config: map[string]any{"push": map[string]any{"retry": "100ms"}}})
	b := newTabs(t, "http://"+s.Public)
	b.do(t, "open", map[string]string{"name": "native", "url": b.site.URL}, nil)
	b.site.life.Store(1)
	b.eval("native", fmt.Sprintf(`{
		window.ends = [];
		window.source = new EventSource('http://%s/sse?channel=news&token=%s');
		source.addEventListener('end', (e) => ends.push(JSON.parse(e.data)));
		source.onerror = () => { if (source.readyState === EventSource.CLOSED) ends.push('gave up'); };
	}`, s.Public, b.site.token()), nil)
	b.wait("native", "ends.length >= 2")
	var ends string
	b.eval("native", "JSON.stringify(ends) + source.readyState", &ends)
	if want := `{"code":4401,"reason":"token expired"}`; ends != "["+want+","+want+"]0" {
		t.Errorf("the page received %s", ends)
	}
}

func TestBrowserClientPackage(t *testing.T) {
	dist := builtClient(t)
	total := 0
	for _, name := range []string{"weir.js", "worker.js"} {
		b, err := os.ReadFile(filepath.Join(dist, name))
		if err != nil {
			t.Fatal(err)
		}
		total += gzipped(t, b)
	}
	if total >= 6_000 {
		t.Errorf("the client is %d bytes gzipped, want under 6,000", total)
	}
	t.Logf("%d bytes gzipped", total)
	cmd := exec.Command("npm", "pack", "--dry-run", "--json", "--ignore-scripts")
	cmd.Dir = judge.Path("clients", "js")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("npm pack: %v", err)
	}
	for _, name := range []string{"weir.js", "worker.js", "weir.d.ts", "README.md", "package.json"} {
		if !strings.Contains(string(out), `"path": "`+name+`"`) {
			t.Errorf("the package lacks %s:\n%s", name, out)
		}
	}
	var manifest map[string]any
	b, err := os.ReadFile(judge.Path("clients", "js", "package.json"))
	if err == nil {
		err = json.Unmarshal(b, &manifest)
	}
	if err != nil || manifest["dependencies"] != nil {
		t.Errorf("dependencies %v, %v", manifest["dependencies"], err)
	}
	// The types describe what a page writes.
	cmd = exec.Command("node_modules/.bin/tsc", "--noEmit", "--strict", "--module", "nodenext", "--lib", "es2022,dom", "client-types.mts")
	cmd.Dir = judge.Path("test", "e2e", "npm")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}
