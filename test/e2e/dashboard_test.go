package e2e

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A tab is a page in Chromium that does what it is given, one thing after another.
type tab struct {
	t     testing.TB
	stdin io.Writer
	out   *bufio.Scanner
}

func newTab(t testing.TB) *tab { return driven(t, "dashboard.mjs") }

// driven starts a script of test/e2e/npm that drives Chromium by lines. flags are
// Chromium's, besides those of the script.
func driven(t testing.TB, script string, flags ...string) *tab {
	t.Helper()
	judge.Need(t, "npm", "chromium")
	executable, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	arg, err := json.Marshal(map[string]any{"executable": executable, "profile": t.TempDir(), "flags": append([]string{}, flags...)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", script, string(arg))
	cmd.Dir = judge.Path("test", "e2e", "npm")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // its sign to end
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil || !late.Stop() {
			t.Errorf("%s: %v\n%s", script, err, stderr.Bytes())
		}
	})
	sc := bufio.NewScanner(stdout)
	sc.Buffer(nil, 4<<20)
	return &tab{t: t, stdin: stdin, out: sc}
}

// do does one thing and returns its result, into out unless that is nil.
func (p *tab) do(t testing.TB, what string, arg, out any) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"do": what, "arg": arg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdin.Write(append(b, '\n')); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() {
		t.Fatalf("%s: the browser is gone: %v", what, p.out.Err())
	}
	var answer struct {
		Result json.RawMessage
		Error  string
	}
	if err := json.Unmarshal(p.out.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %q: %v", what, p.out.Bytes(), err)
	}
	if answer.Error != "" {
		t.Fatal(answer.Error)
	}
	if out != nil {
		if err := json.Unmarshal(answer.Result, out); err != nil {
			t.Fatalf("%s: %s: %v", what, answer.Result, err)
		}
	}
}

func (p *tab) text(t testing.TB, selector string) (s string) {
	t.Helper()
	p.do(t, "text", selector, &s)
	return s
}

// clean fails the test if the page has complained, or broken its policy.
func (p *tab) clean(t testing.TB) {
	t.Helper()
	var troubles []string
	p.do(t, "troubles", nil, &troubles)
	for _, s := range troubles {
		// The browser itself writes down what was refused, which a test here causes.
		if !strings.Contains(s, "the server responded with a status of 40") {
			t.Errorf("the page: %s", s)
		}
	}
}

// fill and submit a form of the page.
func (p *tab) submit(t testing.TB, form string, fields ...string) {
	t.Helper()
	for i := 0; i < len(fields); i += 2 {
		p.do(t, "fill", map[string]string{"selector": form + " [name=" + fields[i] + "]", "text": fields[i+1]}, nil)
	}
	p.do(t, "click", form+" button", nil)
}

func (p *tab) has(t testing.TB, selector, text string) {
	t.Helper()
	p.do(t, "has", map[string]string{"selector": selector, "text": text}, nil)
}

// A crowd are subscribers that read and forget, and who publishes for them.
type crowd struct {
	received atomic.Int64
	wg       sync.WaitGroup
}

// join adds a subscriber that reads by default. Its connection ends with
// the test.
func (c *crowd) join(t testing.TB, addr, channel string, reads bool) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET /sse?%s HTTP/1.1\r\nHost: %s\r\n\r\n", url.Values{"channel": {channel}}.Encode(), addr)
	if reads {
		c.wg.Go(func() {
			buf := make([]byte, 4096)
			for {
				n, err := conn.Read(buf)
				c.received.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	return conn
}

// publish publishes for the rest of the test, every pause.
func (c *crowd) publish(t testing.TB, addr string, pause time.Duration, channels ...string) {
	stop := make(chan struct{})
	c.wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = post(addr, channels[n%len(channels)], fmt.Sprintf(`{"n":%d}`, n)) // the server may be away
			}
		}
	})
	t.Cleanup(func() { close(stop) })
}

var posting = &http.Client{Timeout: 10 * time.Second}

func post(addr, channel, data string) error {
	body, err := json.Marshal(map[string]any{"channel": channel, "data": json.RawMessage(data)})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/api/publish", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("X-API-Key", judge.APIKey)
	r, err := posting.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(r.Body)
		return fmt.Errorf("publish on %q: %s: %s", channel, r.Status, b)
	}
	return nil
}

// onAdmin is what the admin listener answers.
func onAdmin(t testing.TB, s *judge.Server, path string) []byte {
	t.Helper()
	r, err := posting.Get("http://" + s.Admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s, %v", path, r.Status, b, err)
	}
	return b
}

// watched is a server whose dashboard is tested, and its address.
func watched(t testing.TB, change map[string]any) (*judge.Server, string) {
	t.Helper()
	o := judge.Options{Build: judge.Race, Memory: true, Config: map[string]any{
		"governor": map[string]any{"evidence": map[string]any{"dir": filepath.Join(t.TempDir(), "evidence"), "profile": "200ms"}},
	}}
	for k, v := range change {
		o.Config[k] = v
	}
	s := judge.New(t, o)
	return s, "http://" + s.Admin + "/"
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	s, address := watched(t, nil)
	var c crowd
	t.Cleanup(c.wg.Wait) // after all connections are closed
	const readers = 40
	for i := range readers {
		c.join(t, s.Public, []string{"news", "weather"}[i%2], true)
	}
	c.publish(t, s.Public, 10*time.Millisecond, "news", "weather")
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address}, nil)
	// One after the other on one page: what fails leaves it as it is, and the rest could
	// only wait for things that do not come.
	run := func(name string, f func(t *testing.T)) {
		if !t.Failed() {
			t.Run(name, f)
		}
	}

	run("numbers move under load", func(t *testing.T) {
		p.do(t, "moves", map[string]any{"selector": `[data-v="traffic.delivered_per_second|rate"]`, "least": 1}, nil)
		p.do(t, "moves", map[string]any{"selector": `[data-v="traffic.published|count"]`, "least": 10}, nil)
		p.has(t, "#protocols", fmt.Sprint(readers))
		p.has(t, "#channel-table tbody", "weather")
		// The band of states has one colour while there was one state.
		for canvas, least := range map[string]int{`[data-heat="delivery"]`: 3, `[data-heat="sched"]`: 3, `[data-spark="out"]`: 3, `[data-chart="gpm"]`: 3, "[data-band]": 1} {
			judge.Eventually(t, 30*time.Second, canvas+" shows something", func() bool {
				var n int
				p.do(t, "colours", canvas, &n)
				return n >= least
			})
		}
		var state string
		p.do(t, "evaluate", `document.getElementById("state").dataset.state`, &state)
		if state != "steady" && state != "alert" && state != "inflection" {
			t.Errorf("state %q", state)
		}
	})
	run("a button disconnects a client", func(t *testing.T) { disconnects(t, p, s, &c) })
	run("a message is traced to its sockets", func(t *testing.T) { traces(t, p) })
	run("hostile names do no harm", func(t *testing.T) { resists(t, p, s, &c) })
	run("publish and subscribe by hand", func(t *testing.T) { byHand(t, p) })
	run("a bundle is captured and downloaded", func(t *testing.T) { bundles(t, p) })
	run("keys", func(t *testing.T) { keys(t, p) })
	p.clean(t)
	run("it queries its own listener alone", func(t *testing.T) {
		var requests []string
		p.do(t, "requests", nil, &requests)
		for _, r := range requests {
			if !strings.HasPrefix(r, address) {
				t.Errorf("it requests %s", r)
			}
		}
	})
	run("every width and theme", func(t *testing.T) { looks(t, p, address) })
}

func disconnects(t *testing.T, p *tab, s *judge.Server, c *crowd) {
	conn := c.join(t, s.Public, "big", false)
	who := "sse " + conn.LocalAddr().String()
	// It does not read, so the kernel holds what it was sent: the most of all.
	payload := `"` + strings.Repeat("x", 60_000) + `"`
	judge.Eventually(t, 20*time.Second, "it is subscribed", func() bool {
		return bytes.Contains(onAdmin(t, s, "/api/connections?limit=100"), []byte(conn.LocalAddr().String()))
	})
	for range 3 {
		if err := post(s.Public, "big", payload); err != nil {
			t.Fatal(err)
		}
	}
	p.do(t, "wait", fmt.Sprintf("[aria-label=%q]", "Inspect "+who), nil)
	p.do(t, "click", fmt.Sprintf("[aria-label=%q]", "Inspect "+who), nil)
	p.has(t, "#inspect", "TCP_INFO")
	p.has(t, "#inspect", "big")
	p.do(t, "press", "Escape", nil)
	p.do(t, "gone", "#inspect", nil)

	p.do(t, "click", fmt.Sprintf("[aria-label=%q]", "Disconnect "+who), nil)
	p.has(t, "#confirm-text", who)
	p.do(t, "click", "#confirm button[value=no]", nil)
	p.do(t, "gone", "#confirm", nil)
	if !bytes.Contains(onAdmin(t, s, "/api/connections?limit=100"), []byte(conn.LocalAddr().String())) {
		t.Fatal("it was disconnected although the answer was no")
	}
	p.do(t, "click", fmt.Sprintf("[aria-label=%q]", "Disconnect "+who), nil)
	p.do(t, "click", "#confirm-yes", nil)
	p.has(t, "#toast", "Disconnected "+who)
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || !bytes.Contains(b, []byte("disconnected by the operator")) {
		t.Errorf("the client read %d bytes ending in %.100q, then %v", len(b), b[max(0, len(b)-100):], err)
	}
}

func traces(t *testing.T, p *tab) {
	p.submit(t, "#trace-form", "channel", "news", "data", `{"traced":true}`)
	p.do(t, "wait", `#waterfall ol[data-state="done"]`, nil)
	var rows [][]string
	p.do(t, "evaluate", `[...document.querySelectorAll("#waterfall li")].map((li) => [li.firstChild.textContent, li.lastChild.textContent])`, &rows)
	loops := 0
	for _, r := range rows {
		if r[1] == "" || r[1] == "0" || r[1] == "–" {
			t.Errorf("%s took %q", r[0], r[1])
		}
		if strings.HasPrefix(r[0], "Loop ") {
			loops++
		}
	}
	if loops == 0 || len(rows) < 4 {
		t.Errorf("the waterfall is %v", rows)
	}
	var n int // with what else came in the same turn of a loop
	note := p.text(t, "#trace-note")
	if _, err := fmt.Sscanf(note, "%d deliveries in ", &n); err != nil || n < 20 {
		t.Errorf("it says %q; 20 subscribers follow news", note)
	}
}

// resists gives the page names and payloads that would be markup, if they were set as it.
func resists(t *testing.T, p *tab, s *judge.Server, c *crowd) {
	const image, script = `<img/src=x/onerror=window.owned=1>`, `"><script>window.owned=2</script>`
	for _, ch := range []string{image, script, `javascript:window.owned=3`[11:], `..`, "\u202eevil", `'-alert(1)-'`} {
		c.join(t, s.Public, ch, true)
		c.join(t, s.Public, ch, true)
	}
	data, err := json.Marshal(map[string]string{image: script, "proto": "__proto__"})
	if err != nil {
		t.Fatal(err)
	}
	c.publish(t, s.Public, 50*time.Millisecond, image, script)
	if err := post(s.Public, image, string(data)); err != nil {
		t.Fatal(err)
	}
	p.has(t, "#channel-table tbody", image)
	p.has(t, "#channel-table tbody", script)
	p.submit(t, "#recent-form", "channel", image)
	p.has(t, "#recent", `"n":`)
	p.submit(t, "#sub-form", "channels", image)
	p.has(t, "#sub", image)
	if err := post(s.Public, image, string(data)); err != nil {
		t.Fatal(err)
	}
	p.has(t, "#sub", "window.owned=2")
	p.submit(t, "#trace-form", "channel", script, "data", image)
	p.do(t, "wait", `#waterfall ol[data-state="done"]`, nil)
	p.submit(t, "#pub-form", "channel", "<b>bold</b>:x", "data", image)
	p.has(t, "#pub-note", "<b>bold</b>")
	p.do(t, "click", "#sub-button", nil)
	var found []string
	p.do(t, "evaluate", `[window.owned, ...[...document.querySelectorAll("main img, main script, main b[onclick], [onerror]")].map((e) => e.outerHTML)].filter(Boolean).map(String)`, &found)
	if len(found) > 0 {
		t.Errorf("names became markup: %q", found)
	}
}

func byHand(t *testing.T, p *tab) {
	p.submit(t, "#sub-form", "channels", "hand other")
	p.has(t, "#sub-note", "subscribed to 2")
	p.submit(t, "#pub-form", "channel", "hand", "data", "just text", "key", "k1")
	p.has(t, "#pub-note", "published on hand at offset")
	p.has(t, "#sub", `[k1] "just text"`)
	p.do(t, "click", "#sub-button", nil)
	p.has(t, "#sub-note", "not subscribed")
	p.submit(t, "#sub-form", "channels", "nowhere:x")
	p.has(t, "#sub-note.bad", "nowhere")
}

func bundles(t *testing.T, p *tab) {
	p.do(t, "click", "#capture", nil)
	p.do(t, "wait", "#bundles a", nil)
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	var name string
	p.do(t, "download", map[string]string{"selector": "#bundles a", "to": path}, &name)
	if !strings.HasSuffix(name, ".tar.gz") {
		t.Errorf("it is called %q", name)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]int64{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(h.Name)] = h.Size
	}
	if len(files) < 4 {
		t.Errorf("it holds only %v", files)
	}
}

func keys(t *testing.T, p *tab) {
	p.do(t, "evaluate", "document.activeElement.blur()", nil)
	p.do(t, "press", "?", nil)
	p.do(t, "wait", "#keys[open]", nil)
	p.do(t, "press", "Escape", nil)
	p.do(t, "gone", "#keys", nil)
	p.do(t, "press", "m", nil)
	var focus string
	p.do(t, "evaluate", "document.activeElement.form?.id", &focus)
	if focus != "trace-form" {
		t.Errorf("m focuses a control of %q", focus)
	}
	p.do(t, "press", "p", nil) // a letter of what is typed
	p.do(t, "press", "Escape", nil)
	p.do(t, "press", "p", nil)
	p.do(t, "wait", `html[data-live="held"]`, nil)

	var k struct {
		Controls               int
		Missed, Bare, Nameless []string
	}
	p.do(t, "keyboard", nil, &k) // while the numbers are held, no row comes or goes
	if k.Controls < 30 || len(k.Missed) > 0 || len(k.Bare) > 0 || len(k.Nameless) > 0 {
		t.Errorf("%d controls\nnot reached: %q\nwithout a ring: %q\nwithout a name: %q", k.Controls, k.Missed, k.Bare, k.Nameless)
	}
	p.do(t, "click", "#pause", nil)
	p.do(t, "wait", `html[data-live="yes"]`, nil)
}

func looks(t *testing.T, p *tab, address string) {
	defer p.clean(t)
	grounds := map[string]string{}
	for _, scheme := range []string{"dark", "light"} {
		for _, width := range []int{390, 768, 1280, 1920} {
			p.do(t, "open", map[string]any{"url": address, "width": width, "height": 844, "scheme": scheme}, nil)
			p.do(t, "frames", 1, nil)
			var got struct {
				Scroll, Inner int
				Ground        string
			}
			p.do(t, "evaluate", `({ scroll: document.documentElement.scrollWidth, inner: innerWidth, ground: getComputedStyle(document.body).backgroundColor })`, &got)
			if got.Scroll > got.Inner {
				t.Errorf("%s at %d: %d wide", scheme, width, got.Scroll)
			}
			grounds[scheme] = got.Ground
		}
	}
	if grounds["dark"] == grounds["light"] {
		t.Errorf("dark and light have the same ground, %s", grounds["dark"])
	}
	// The switch: from what the system has to dark, and it stays.
	p.do(t, "click", "#theme", nil)
	var ground string
	p.do(t, "evaluate", `getComputedStyle(document.body).backgroundColor`, &ground)
	if ground != grounds["dark"] {
		t.Errorf("switched to dark, the ground is %s", ground)
	}
	p.do(t, "evaluate", `location.reload()`, nil)
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	p.do(t, "evaluate", `getComputedStyle(document.body).backgroundColor`, &ground)
	if ground != grounds["dark"] {
		t.Errorf("after a reload the ground is %s", ground)
	}
}

// The page shows that it is not live while the server is away, and continues by itself.
func TestDashboardReconnects(t *testing.T) {
	t.Parallel()
	s, address := watched(t, nil)
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address}, nil)
	s.Kill()
	p.do(t, "wait", `html[data-live="no"] #stale:not([hidden])`, nil)
	p.has(t, "#stale", "Not live")
	s.Start()
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	p.do(t, "gone", "#stale", nil)
	p.do(t, "frames", 3, nil)
}

func TestDashboardRequiresTheToken(t *testing.T) {
	t.Parallel()
	const token = "dashboard-operator-token"
	_, address := watched(t, map[string]any{"admin": map[string]any{"token": token}})
	p := newTab(t)
	var opened struct{ URL string }
	p.do(t, "open", map[string]any{"url": address, "live": false}, &opened)
	if opened.URL != address+"login" {
		t.Fatalf("it shows %s", opened.URL)
	}
	p.submit(t, "form", "token", token)
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	p.do(t, "wait", "#logout", nil)
	p.do(t, "click", "#logout button", nil)
	p.do(t, "wait", "#token", nil)
}

// With thousands of connections the page stays small and quick: what it requests, what
// it holds and what it draws do not grow with them.
func TestDashboardWithThousandsOfConnections(t *testing.T) {
	const conns = 2000
	s, address := watched(t, nil)
	var c crowd
	t.Cleanup(c.wg.Wait)
	for i := range conns {
		c.join(t, s.Public, fmt.Sprintf("room.%d", i%400), true)
	}
	c.publish(t, s.Public, 10*time.Millisecond, "room.1", "room.2", "room.3")
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address}, nil)
	p.has(t, "#protocols", "2,000")
	p.do(t, "frames", 10, nil)
	var got struct{ Nodes, Slow, Channels int }
	p.do(t, "evaluate", `({ nodes: document.querySelectorAll("*").length, slow: document.querySelectorAll("#slow tbody tr").length, channels: document.querySelectorAll("#channel-table tbody tr").length })`, &got)
	if got.Nodes > 2500 || got.Slow != 20 || got.Channels != 20 {
		t.Errorf("the page holds %+v", got)
	}
	p.do(t, "press", "?", nil)
	p.do(t, "wait", "#keys[open]", nil)
	p.do(t, "press", "Escape", nil)
	var requests []string
	p.do(t, "requests", nil, &requests)
	for _, r := range requests {
		if u, err := url.Parse(r); err != nil || strings.Contains(u.Path, "/api/connections") || u.Query().Get("limit") != "" && u.Query().Get("limit") != "20" {
			t.Errorf("it requests %s", r)
		}
	}
	p.clean(t)
}
