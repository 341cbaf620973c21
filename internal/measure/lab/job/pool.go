package job

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A counted server knows how many connections it has and had.
type counted struct {
	http.Server
	open, opened atomic.Int64
	addr         string
	ended        chan struct{}
}

// startCounted serves requests that take d each.
func startCounted(d time.Duration) (*counted, error) {
	l, err := net.Listen("tcp", loopback.String())
	if err != nil {
		return nil, err
	}
	s := &counted{addr: "http://" + l.Addr().String(), ended: make(chan struct{})}
	s.ReadHeaderTimeout = 5 * time.Second
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "ok")
	})
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.open.Add(1)
			s.opened.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.open.Add(-1)
		}
	}
	go func() {
		defer close(s.ended)
		_ = s.Serve(l) // until stop
	}()
	return s, nil
}

func (s *counted) stop() {
	_ = s.Close()
	<-s.ended
}

// get makes one request.
func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// atOnce makes n requests at the same time.
func atOnce(ctx context.Context, c *http.Client, url string, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = get(ctx, c, url) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pool makes bursts of 40 parallel requests every 200 ms through a pool of a real
// client, whose idle connections end after the setting idle (seconds), and counts
// how many stand when the next burst comes. The model of the source gives the
// number from the share of requests that found one.
func pool(ctx context.Context, p Params) (Values, error) {
	const n, every = 40, 200 * time.Millisecond
	s, err := startCounted(5 * time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	idle := time.Duration(p.number("idle", 0.1) * float64(time.Second))
	t := &http.Transport{MaxIdleConnsPerHost: n, IdleConnTimeout: idle}
	defer t.CloseIdleConnections()
	c := &http.Client{Transport: t}
	var standing []float64
	requests := 0.0
	tick := time.NewTicker(every)
	defer tick.Stop()
	_, err = repeat(ctx, max(p.Duration, 5*every), func() error {
		if err := atOnce(ctx, c, s.addr, n); err != nil {
			return err
		}
		requests += n
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		standing = append(standing, float64(s.open.Load()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	hit := 1 - float64(s.opened.Load())/requests
	model := func(fin float64) float64 { return n * hit * idle.Seconds() / (idle.Seconds() + fin) }
	return Values{
		"standing": quantile(standing, 0.5), "hit": hit,
		// On loopback a closed connection is gone at once; 60 s is the kernel's
		// tcp_fin_timeout, which is what the model seems to mean.
		"model_at_once": model(0.001), "model_60s": model(60),
	}, nil
}

// clients makes requests from 100 goroutines through a client that keeps a number
// of idle connections (setting keep; 2 is what net/http has by itself).
func clients(ctx context.Context, p Params) (Values, error) {
	s, err := startCounted(time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	t := &http.Transport{MaxIdleConnsPerHost: int(p.number("keep", 2)), MaxIdleConns: 1000}
	defer t.CloseIdleConnections()
	c := &http.Client{Transport: t}
	used, began := sys.CPUTime(), time.Now()
	var wg sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, 100)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = repeat(ctx, p.Duration, func() error {
				defer done.Add(1)
				return get(ctx, c, s.addr)
			})
		})
	}
	wg.Wait()
	n, took := float64(done.Load()), time.Since(began).Seconds()
	return Values{
		"requests_per_second": n / took, "cpu_seconds": (sys.CPUTime() - used).Seconds() / n,
		"connections_per_1k": float64(s.opened.Load()) / n * 1000,
	}, errors.Join(errs...)
}
