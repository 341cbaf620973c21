package pusher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// taker is an application that answers as f says.
type taker func(r *http.Request) (int, error)

func (f taker) RoundTrip(r *http.Request) (*http.Response, error) {
	status, err := f(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// ending is a webhook with so many events queued when ctx ends; it returns when run does.
func ending(t *testing.T, queued int, f taker) (s *Server, log string, took time.Duration) {
	t.Helper()
	var out bytes.Buffer
	s = &Server{log: slog.New(slog.NewTextHandler(&out, nil)), deps: Deps{Client: &http.Client{Transport: f}}}
	h := &hook{Webhook: Webhook{URL: "http://app.example/"}, s: s, queue: make(chan hookEvent, queued)}
	s.settings.Store(&settings{cfg: Config{}.WithDefaults()})
	h.app.Store(&app{})
	for i := range queued {
		if !h.offer(hookEvent{Name: hookClientEvent, Data: strconv.Itoa(i)}) {
			t.Fatal("no room")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	h.run(ctx)
	if n := h.bytes.Load(); n != 0 || len(h.queue) != 0 {
		t.Errorf("%d events, %d bytes are left", len(h.queue), n)
	}
	return s, out.String(), time.Since(began)
}

func TestWhatIsQueuedAtTheEndIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		got := 0
		s, log, took := ending(t, 250, func(r *http.Request) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			var body hookBody
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			for _, e := range body.Events {
				if e.Data != strconv.Itoa(got) {
					t.Errorf("%q is at %d", e.Data, got)
				}
				got++
			}
			return http.StatusOK, nil
		})
		if got != 250 || took > time.Second || log != "" || s.counts.hooksD.Load() != 0 || s.counts.hooksSent.Load() != 3 {
			t.Errorf("%d came in %v, %d requests, %d dropped: %s", got, took, s.counts.hooksSent.Load(), s.counts.hooksD.Load(), log)
		}
	})
}

func TestWhatTheEndHasNoTimeForIsCounted(t *testing.T) {
	for name, f := range map[string]taker{
		"hangs":   func(r *http.Request) (int, error) { <-r.Context().Done(); return 0, r.Context().Err() },
		"refuses": func(*http.Request) (int, error) { return 0, errors.New("refused") },
		"is busy": func(*http.Request) (int, error) { return http.StatusServiceUnavailable, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log, took := ending(t, 250, f)
				if n := s.counts.hooksD.Load(); n != 250 || took > lastWords+time.Second || !strings.Contains(log, "events=250") {
					t.Errorf("%d of 250 are counted after %v: %s", n, took, log)
				}
			})
		})
	}
}

func TestTheEndTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		s, log, took := ending(t, 1, func(*http.Request) (int, error) {
			if tries++; tries < 3 {
				return http.StatusBadGateway, nil
			}
			return http.StatusOK, nil
		})
		if s.counts.hooksSent.Load() != 1 || s.counts.hooksD.Load() != 0 || took > lastWords {
			t.Errorf("after %d tries and %v: %s", tries, took, log)
		}
	})
}
