package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/sse"
)

// errTopRefused: the token is missing, or not the right one.
var errTopRefused = errors.New("the admin listener requires a token")

// A topSnapshot is a snapshot as it came, and read.
type topSnapshot struct {
	admin.Snapshot
	// Upstreams replaces the field above, which may be anything.
	Upstreams topUpstreams `json:"upstreams"`

	raw []byte
	at  time.Time // when it came
}

type topUpstreams struct {
	Clusters []upstream.ClusterStats `json:"clusters"`
	Splits   []upstream.SplitStats   `json:"splits"`
}

// A topSource follows /api/live and keeps the newest snapshot.
type topSource struct {
	// Fixed when made.
	base, token string
	client      *http.Client
	stop        context.CancelFunc
	wg          sync.WaitGroup
	came        chan struct{} // holds one: there is news

	mu   sync.Mutex
	last *topSnapshot
	err  error // why nothing comes; nil while it does
}

// maxSnapshot bounds an event: the page is sent less than a tenth of it.
const maxSnapshot = 8 << 20

func newTopSource(base, token string) *topSource {
	return &topSource{base: base, token: token, client: &http.Client{Transport: &http.Transport{Proxy: nil, ResponseHeaderTimeout: 10 * time.Second}}, came: make(chan struct{}, 1), stop: func() {}}
}

// start follows the stream until close, or ctx is done.
func (s *topSource) start(ctx context.Context) {
	ctx, s.stop = context.WithCancel(ctx)
	s.wg.Go(func() {
		for ctx.Err() == nil {
			err := s.follow(ctx, func(v *topSnapshot) bool { s.set(v, nil); return true })
			if ctx.Err() != nil {
				return
			}
			s.set(nil, err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
}

func (s *topSource) close() {
	s.stop()
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

func (s *topSource) set(v *topSnapshot, err error) {
	s.mu.Lock()
	if s.err = err; v != nil {
		s.last = v
	}
	s.mu.Unlock()
	select {
	case s.came <- struct{}{}:
	default:
	}
}

// newest returns the last snapshot, nil before the first, and why there is none newer.
func (s *topSource) newest() (*topSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.err
}

// second waits for the second snapshot of a stream: its rates are between the two.
func (s *topSource) second(ctx context.Context) (*topSnapshot, error) {
	n := 0
	var got *topSnapshot
	err := s.follow(ctx, func(v *topSnapshot) bool {
		n++
		got = v
		return n < 2
	})
	if n >= 2 {
		return got, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", s.base, ctx.Err())
	}
	return nil, err
}

// follow gives on the snapshots of one stream, until on returns false or it ends.
func (s *topSource) follow(ctx context.Context, on func(*topSnapshot) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := s.get(ctx, "/api/live")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	// A server that is gone without a word must not look like one that stops.
	silence := time.AfterFunc(30*time.Second, cancel)
	defer silence.Stop()
	events := sse.NewReader(io.Reader(r.Body))
	for {
		e, err := events.Next()
		if err != nil {
			return fmt.Errorf("%s: the stream ended: %w", s.base, err)
		}
		silence.Reset(30 * time.Second)
		if t := string(e.Type); t != "" && t != "message" || len(e.Data) == 0 || len(e.Data) > maxSnapshot {
			continue
		}
		v := &topSnapshot{raw: append([]byte(nil), e.Data...), at: time.Now()}
		if err := json.Unmarshal(v.raw, v); err != nil {
			return fmt.Errorf("%s: not a snapshot: %w", s.base, err)
		}
		if !on(v) {
			return nil
		}
	}
}

// get sends a request; any answer but 200 is an error in its own words.
func (s *topSource) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := s.do(ctx, s.client, http.MethodGet, path)
	if err != nil || r.StatusCode == http.StatusOK {
		return r, err
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	return nil, s.refusal(r.StatusCode, r.Status, b)
}

// do sends an empty request.
func (s *topSource) do(ctx context.Context, client *http.Client, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	r, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, fmt.Errorf("%s: %w", s.base, err)
	}
	return r, nil
}

// read gets the answer to a request into v.
func (s *topSource) read(ctx context.Context, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := s.get(ctx, path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if err := json.NewDecoder(io.LimitReader(r.Body, maxSnapshot)).Decode(v); err != nil {
		return fmt.Errorf("%s: %w", s.base, err)
	}
	return nil
}

// refusal is the error of an answer that is not what was asked for.
func (s *topSource) refusal(code int, status string, body []byte) error {
	switch code {
	case http.StatusUnauthorized:
		return fmt.Errorf("%s: %w", s.base, errTopRefused)
	case http.StatusNotFound:
		return fmt.Errorf("%s: %s: is it the admin listener?", s.base, status)
	}
	var e admin.Error
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return fmt.Errorf("%s: %s", s.base, legible(e.Error.Message))
	}
	return fmt.Errorf("%s: %s", s.base, status)
}

// connections are the subscribers with most of sort.
func (s *topSource) connections(ctx context.Context, sort string, limit int) ([]admin.Connection, error) {
	var c admin.Connections
	err := s.read(ctx, "/api/connections?sort="+url.QueryEscape(sort)+"&limit="+strconv.Itoa(limit), &c)
	return c.Connections, err
}
