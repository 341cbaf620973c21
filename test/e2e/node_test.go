package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A line is what a script of test/e2e/npm prints for an event. Coding is how the
// event came: a Content-Encoding, or a WebSocket's extensions.
type line struct {
	Source, Kind, ID, Data, Coding string
	Session                        int
}

// script runs a script of test/e2e/npm and gives each of its lines to on. It
// ends with the test.
func script(t *testing.T, name string, arg map[string]any, on func(line)) {
	t.Helper()
	text, err := json.Marshal(arg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", name, string(text))
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
	var wg sync.WaitGroup
	wg.Go(func() {
		sc := bufio.NewScanner(stdout)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var l line
			if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
				t.Errorf("%s %s: line %q: %v", name, text, sc.Bytes(), err)
				continue
			}
			on(l)
		}
		_, _ = io.Copy(io.Discard, stdout)
	})
	t.Cleanup(func() {
		_ = stdin.Close() // its sign to end
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		wg.Wait()
		if err := cmd.Wait(); err != nil || !late.Stop() {
			t.Errorf("%s %s: %v\n%s", name, text, err, stderr.Bytes())
		}
	})
}

// A crew is a fleet whose members are fed by scripts.
type crew struct {
	*judge.Fleet
	// coding is how every event is to come; without an entry it is not looked at.
	coding map[*judge.Member]string
	// verdict is given after the scripts have ended, since until then they report.
	verdict func()
}

// on returns what feeds m with a script's lines.
func (c *crew) on(m *judge.Member) func(line) {
	return func(l line) {
		switch l.Kind {
		case "open":
			m.Ups.Add(1)
		case "pong":
			m.Pongs.Add(1)
		case "fatal":
			c.T.Errorf("%s: %s", m.Name, l.Data)
		default:
			if want, ok := c.coding[m]; ok && !strings.HasPrefix(l.Coding, want) {
				c.T.Errorf("%s: %s %.100s came as %q, want %q", m.Name, l.Kind, l.Data, l.Coding, want)
			}
			m.On(judge.Event{Session: l.Session, Kind: l.Kind, ID: l.ID, Data: []byte(l.Data)})
		}
	}
}

// throughKills publishes while the server is killed and restarted three times,
// waiting each time until every member is back, and checks the history.
func (c *crew) throughKills(s *judge.Server) { c.through(s, s.Kill) }

// through is throughKills with ends of the kind of end.
func (c *crew) through(s *judge.Server, end func()) {
	t := c.T.(*testing.T)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 200)
	before := make([]int64, len(c.Members))
	for range 3 {
		judge.Eventually(t, 60*time.Second, "every client is connected", func() bool { return c.Connected(before) == len(c.Members) })
		n := len(p.Acked())
		judge.Eventually(t, 10*time.Second, "100 more messages are published", func() bool { return len(p.Acked()) >= n+100 })
		before = c.Sessions()
		begin := time.Now()
		end()
		s.Start()
		for i, m := range c.Members {
			judge.Eventually(t, 60*time.Second, m.Name+" is connected anew", func() bool { return m.Ups.Load() > before[i] })
		}
		t.Logf("every client is back after %s", time.Since(begin).Round(time.Millisecond))
	}
	judge.Eventually(t, 60*time.Second, "every client is connected again", func() bool { return c.Connected(before) == len(c.Members) })
	stop()
	acked := p.Acked()
	c.CaughtUp(acked, 30*time.Second)
	c.verdict = func() { c.Judge(acked) }
}

func newCrew(t *testing.T) *crew {
	c := &crew{Fleet: judge.NewFleet(t, everything)}
	t.Cleanup(func() { // registered first, so run after the scripts' ends
		if c.verdict != nil {
			c.verdict()
		}
	})
	return c
}

func TestNpmClientsResumeThroughKills(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	s := judge.New(t, judge.Options{Build: judge.Race})
	c := newCrew(t)
	c.npmClients(t, s)
	c.throughKills(s)
}

// A planned restart ends each library's streams in a way that has it come back by itself,
// with its own waits, whether connections are refused meanwhile or wait in a kept socket.
func TestNpmClientsResumeThroughPlannedRestarts(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	f := func(name string, keeper judge.Keeper) {
		t.Run(name, func(t *testing.T) {
			s := judge.New(t, judge.Options{Build: judge.Plain, Keeper: keeper})
			c := newCrew(t)
			c.npmClients(t, s)
			c.through(s, s.Terminate)
		})
	}
	f("nothing kept", judge.KeepsNothing)
	f("sockets kept", judge.DescriptorStore)
}

// npmClients follows with each library, a channel each.
func (c *crew) npmClients(t *testing.T, s *judge.Server) {
	t.Helper()
	for i, library := range []string{"eventsource", "undici EventSource", "ws", "undici WebSocket"} {
		channel := channels[i]
		m := c.Member(library, []string{channel})
		script(t, "client.mjs", map[string]any{"library": library, "url": "http://" + s.Public, "channel": channel}, c.on(m))
	}
}

func TestChromiumResumesThroughKills(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm", "chromium")
	executable, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	// The page has an origin of its own, so this is also a cross-origin client.
	pages := httptest.NewServer(http.FileServer(http.Dir(judge.Path("test", "e2e", "npm"))))
	t.Cleanup(pages.Close)
	s := judge.New(t, judge.Options{Build: judge.Race, Config: judge.Origins(pages.URL)})
	c := newCrew(t)
	sse, socket := c.Member("sse", channels[:1]), c.Member("websocket", channels[:1])
	feed := map[string]func(line){"sse": c.on(sse), "websocket": c.on(socket)}
	page := fmt.Sprintf("%s/page.html?%s", pages.URL, url.Values{"server": {"http://" + s.Public}, "channel": channels[:1]}.Encode())
	script(t, "browser.mjs", map[string]any{"executable": executable, "page": page, "profile": t.TempDir()}, func(l line) {
		if on := feed[l.Source]; on != nil {
			on(l)
		} else {
			t.Errorf("the page reports %+v", l)
		}
	})
	c.throughKills(s)
	if slices.Contains(c.Sessions(), 1) {
		t.Errorf("sessions: %v; each should have been through three kills", c.Sessions())
	}
}
