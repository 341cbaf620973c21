package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/test/judge"
)

// A model is a backend that answers a POST with as many tokens as its body requests,
// one every few milliseconds, and [DONE].
type model struct {
	addr string

	mu    sync.Mutex // guards what follows
	calls map[string]int
	left  map[string]int // calls that were canceled
	most  map[string]int // tokens sent, at most over all calls
}

func newModel(t *testing.T) *model {
	m := &model{calls: map[string]int{}, left: map[string]int{}, most: map[string]int{}}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	m.addr = s.Listener.Addr().String()
	return m
}

type prompt struct {
	Name   string `json:"name"`
	Tokens int    `json:"tokens"`
	Pause  int    `json:"pause_ms"`
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var p prompt
	if r.Method == http.MethodGet {
		text = []byte(r.URL.Query().Get("q"))
	}
	if err := json.Unmarshal(text, &p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.count(m.calls, p.Name)
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(time.Duration(max(p.Pause, 1)) * time.Millisecond)
	defer tick.Stop()
	for i := range p.Tokens {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			m.count(m.left, p.Name)
			return
		}
		_, _ = fmt.Fprintf(w, "event: token\ndata: {\"i\":%d,\ndata: \"user\":%q}\n\n", i, r.Header.Get("X-Weir-User"))
		_ = http.NewResponseController(w).Flush()
		m.mu.Lock()
		m.most[p.Name] = max(m.most[p.Name], i+1)
		m.mu.Unlock()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func (m *model) count(in map[string]int, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in[name]++
}

func (m *model) of(in map[string]int, name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return in[name]
}

// recording is the configuration of a gateway before m.
func (m *model) recording(change map[string]any) map[string]any {
	rec := map[string]any{"namespace": "llm", "outlive": "30s"}
	for k, v := range change {
		rec[k] = v
	}
	return map[string]any{
		"namespaces": []any{
			map[string]any{"name": "default", "anonymous": true},
			map[string]any{"name": "llm", "durability": "stored", "history_size": 20_000},
		},
		"clusters": []any{map[string]any{"name": "model", "peers": []any{map[string]any{"address": m.addr}}}},
		"routes": []any{map[string]any{"name": "chat", "path": "/*", "cluster": "model", "record": rec,
			"auth": map[string]any{"required": true, "forward": true}}},
	}
}

// A talker requests one answer, as often as it takes.
type talker struct {
	t      *testing.T
	addr   string
	user   string
	prompt prompt
	get    bool // resumes at the recording's URL

	tokens   atomic.Int64
	sessions int
	last     string
	url      string
	ended    string // the data of the event that was the last
}

func (k *talker) body() string {
	b, _ := json.Marshal(k.prompt)
	return string(b)
}

// once makes one connection and reports whether the answer has ended.
func (k *talker) once(ctx context.Context) (done bool) {
	method, path, body := "POST", "/chat", k.body()
	if k.get && k.url != "" {
		method, path, body = "GET", k.url, ""
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+k.addr+path, strings.NewReader(body))
	if err != nil {
		k.t.Error(err)
		return true
	}
	req.Header.Set("Authorization", "Bearer "+judge.Token(judge.Claims{"sub": k.user, "exp": time.Now().Add(time.Hour).Unix()}))
	if k.last != "" {
		req.Header.Set("Last-Event-ID", k.last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // cut, or the gateway is away
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent:
		return true
	case http.StatusServiceUnavailable:
		return false
	default:
		text, _ := io.ReadAll(res.Body)
		k.t.Errorf("%s: status %d with Last-Event-ID %q: %s", k.prompt.Name, res.StatusCode, k.last, text)
		return true
	}
	k.sessions++
	k.url = res.Header.Get("Weir-Recording")
	return k.read(sse.NewReader(res.Body))
}

func (k *talker) read(r *sse.Reader) (done bool) {
	for {
		ev, err := r.Next()
		if err != nil {
			return k.ended != ""
		}
		if ev.HasID {
			k.last = string(ev.ID)
		}
		switch {
		case !ev.HasData:
		case k.ended != "":
			k.t.Errorf("%s: %q after the end", k.prompt.Name, ev.Data)
		case string(ev.Type) == "token":
			want := fmt.Sprintf("{\"i\":%d,\n\"user\":%q}", k.tokens.Load(), k.user)
			if string(ev.Data) != want {
				k.t.Errorf("%s: got %q, want %q", k.prompt.Name, ev.Data, want)
				return true
			}
			k.tokens.Add(1)
		case string(ev.Type) == "end":
			return false // the gateway goes, or sends a Retry-After
		default:
			k.ended = string(ev.Type) + ":" + string(ev.Data)
		}
	}
}

func (k *talker) run(ctx context.Context) {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for !k.once(ctx) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			k.t.Errorf("%s: no end after %d tokens in %d sessions", k.prompt.Name, k.tokens.Load(), k.sessions)
			return
		}
	}
}

// talk runs talkers until their answers have ended.
func talk(t *testing.T, all []*talker) (wait func()) {
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	var wg sync.WaitGroup
	for _, k := range all {
		wg.Go(func() { k.run(ctx) })
	}
	return func() { wg.Wait(); cancel(); judge.CloseIdle(); http.DefaultClient.CloseIdleConnections() }
}

func TestAnswersCutAnywhereAreWhole(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			m := newModel(t)
			config := m.recording(nil)
			config["eventloop"] = map[string]any{"engine": engine}
			s := judge.New(t, judge.Options{Build: judge.Race, Config: config})
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			relay := judge.NewRelay(t, s.Public, 4000, seed)
			var all []*talker
			for i := range 16 {
				// Two users ask the same, and each of them twice.
				all = append(all, &talker{t: t, addr: relay.Addr, user: fmt.Sprintf("user%d", i%2), get: i%4 >= 2,
					prompt: prompt{Name: fmt.Sprintf("p%d", i/4), Tokens: 400, Pause: 2}})
			}
			talk(t, all)()
			for _, k := range all {
				if k.tokens.Load() != 400 || k.ended != ":[DONE]" || k.sessions < 2 {
					t.Errorf("%s of %s: %d tokens, then %q, in %d sessions", k.prompt.Name, k.user, k.tokens.Load(), k.ended, k.sessions)
				}
			}
			for i := range 4 {
				if n := m.of(m.calls, fmt.Sprintf("p%d", i)); n != 2 {
					t.Errorf("p%d: %d calls, want one for each of two users", i, n)
				}
			}
			t.Logf("%d connections cut", relay.Cuts.Load())
		})
	}
}

func TestKilledGatewayKeepsWhatItRecorded(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	s := judge.New(t, judge.Options{Build: judge.Race, Config: m.recording(nil)})
	var all []*talker
	for i := range 8 {
		all = append(all, &talker{t: t, addr: s.Public, user: "ann", get: i%2 == 1,
			prompt: prompt{Name: fmt.Sprintf("k%d", i), Tokens: 1_000_000, Pause: 1 + i}})
	}
	wait := talk(t, all)
	judge.Eventually(t, 60*time.Second, "every answer has started", func() bool {
		for _, k := range all {
			if k.tokens.Load() < 30 {
				return false
			}
		}
		return true
	})
	s.Kill()
	s.Start()
	wait()
	for _, k := range all {
		if !strings.HasPrefix(k.ended, "error:") || !strings.Contains(k.ended, `"truncated":true`) || !strings.Contains(k.ended, "gateway_lost") {
			t.Errorf("%s ended with %q", k.prompt.Name, k.ended)
		}
		if n := m.of(m.calls, k.prompt.Name); n != 1 {
			t.Errorf("%s: %d calls, resuming makes none", k.prompt.Name, n)
		}
		again := &talker{t: t, addr: s.Public, user: "ann", prompt: k.prompt, get: true, url: k.url}
		talk(t, []*talker{again})()
		if again.tokens.Load() != k.tokens.Load() || again.ended != k.ended {
			t.Errorf("%s: read again it has %d tokens and ends with %q; it had %d", k.prompt.Name, again.tokens.Load(), again.ended, k.tokens.Load())
		}
	}
	// Without a position the request starts anew, once.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			k := &talker{t: t, addr: s.Public, user: "ann", prompt: all[0].prompt}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan bool)
			go func() { ended <- k.once(ctx) }()
			judge.Eventually(t, 30*time.Second, "the answer starts again", func() bool { return k.tokens.Load() >= 5 })
			cancel()
			<-ended
		})
	}
	wg.Wait()
	if n := m.of(m.calls, all[0].prompt.Name); n != 2 {
		t.Errorf("%d calls after three retries, want 2", n)
	}
}

func TestAbandonedAnswerIsCanceled(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	s := judge.New(t, judge.Options{Build: judge.Race, Config: m.recording(map[string]any{"outlive": "500ms"})})
	k := &talker{t: t, addr: s.Public, user: "ann", prompt: prompt{Name: "long", Tokens: 1_000_000, Pause: 5}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() { ended <- k.once(ctx) }()
	judge.Eventually(t, 30*time.Second, "the answer has started", func() bool { return k.tokens.Load() >= 5 })
	cancel()
	<-ended
	judge.Eventually(t, 30*time.Second, "the backend sees its call canceled", func() bool { return m.of(m.left, "long") == 1 })
	k.run(t.Context())
	if !strings.Contains(k.ended, "abandoned") || k.tokens.Load() < 5 {
		t.Errorf("%d tokens, then %q", k.tokens.Load(), k.ended)
	}
	judge.Eventually(t, 10*time.Second, "it is counted", func() bool { return s.Series("weir_recordings_ended_total", `how="abandoned"`) == 1 })
}

func TestStoppedGatewayReportsATruncatedAnswer(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	s := judge.New(t, judge.Options{Build: judge.Race, Config: m.recording(nil)})
	k := &talker{t: t, addr: s.Public, user: "ann", prompt: prompt{Name: "stop", Tokens: 1_000_000, Pause: 3}}
	wait := talk(t, []*talker{k})
	judge.Eventually(t, 30*time.Second, "the answer has started", func() bool { return k.tokens.Load() >= 20 })
	s.Signal(syscall.SIGTERM)
	judge.Eventually(t, 30*time.Second, "the gateway has ended", func() bool { return !s.Alive() })
	s.Start()
	wait()
	if !strings.Contains(k.ended, `"truncated":true`) || !strings.Contains(k.ended, "stop") {
		t.Errorf("ended with %q", k.ended)
	}
}

// An EventSource knows nothing of recordings: it resumes because that is what it does,
// and stops because of a 204.
func TestNpmEventSourceReadsAnAnswerToItsEnd(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	m := newModel(t)
	config := m.recording(nil)
	config["routes"].([]any)[0].(map[string]any)["auth"] = map[string]any{}
	config["push"] = map[string]any{"retry": "50ms"}
	s := judge.New(t, judge.Options{Build: judge.Race, Config: config})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	relay := judge.NewRelay(t, s.Public, 6000, seed)
	// undici's gives up when a body is cut off, so it goes without.
	for library, addr := range map[string]string{"eventsource": relay.Addr, "undici": s.Public} {
		q, _ := json.Marshal(prompt{Name: library, Tokens: 300, Pause: 3})
		var tokens, sessions atomic.Int64
		var done, closed atomic.Bool
		script(t, "record.mjs", map[string]any{"library": library, "url": "http://" + addr + "/feed?q=" + url.QueryEscape(string(q))}, func(l line) {
			switch l.Kind {
			case "open":
				sessions.Add(1)
			case "token":
				if want := fmt.Sprintf("{\"i\":%d,\n\"user\":\"\"}", tokens.Add(1)-1); l.Data != want {
					t.Errorf("%s: got %q, want %q", library, l.Data, want)
				}
			case "message":
				if l.Data != "[DONE]" || done.Swap(true) {
					t.Errorf("%s: got %q", library, l.Data)
				}
			case "closed":
				closed.Store(true)
			}
		})
		judge.Eventually(t, 60*time.Second, library+" has it all and has stopped", closed.Load)
		if tokens.Load() != 300 || !done.Load() || m.of(m.calls, library) != 1 {
			t.Errorf("%s: %d tokens in %d sessions, done %v, %d calls", library, tokens.Load(), sessions.Load(), done.Load(), m.of(m.calls, library))
		}
		t.Logf("%s: %d sessions", library, sessions.Load())
	}
}
