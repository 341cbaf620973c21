package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// subscribers are connections with SSE streams.
type subscribers struct {
	conns []*conn
	n     int
}

// openAtOnce bounds the connections being opened.
const openAtOnce = 64

// subscribe opens n streams over w's connections.
func subscribe(ctx context.Context, addr string, w way, n int) (*subscribers, error) {
	s := &subscribers{conns: make([]*conn, (n+w.streams-1)/w.streams), n: n}
	errs := make([]error, len(s.conns))
	slots := make(chan struct{}, openAtOnce)
	var all sync.WaitGroup
	for i := range s.conns {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			c, err := dial(ctx, addr, w, 4096)
			if err == nil {
				s.conns[i] = c
				err = c.subscribe(ctx, min(w.streams, n-i*w.streams))
			}
			errs[i] = err
		})
	}
	all.Wait()
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) == 0 {
		return s, nil
	}
	return s, fmt.Errorf("%d of %d connections: the first: %w", len(failed), len(s.conns), failed[0])
}

func (s *subscribers) reset() {
	for _, c := range s.conns {
		if c != nil {
			c.reset()
		}
	}
}

// idleMemory measures what idle subscribers hold.
func (b *bench) idleMemory(ctx context.Context, w way) (sample, error) {
	n := b.idle
	if w.tls && w.streams == 1 {
		n = b.idleTLS
	}
	g, err := b.start(ctx, w, "")
	if err != nil {
		return nil, err
	}
	defer g.Kill()
	first, err := subscribe(ctx, g.addr, w, 2*w.streams) // what is there once is there
	first.reset()
	if err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	if _, err := g.runtimeState(ctx); err != nil { // and so is what looking leaves behind
		return nil, err
	}
	state, err := g.runtimeState(ctx)
	if err != nil {
		return nil, err
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	s, err := subscribe(ctx, g.addr, w, n)
	defer s.reset()
	if err != nil {
		return nil, err
	}
	opened, err := g.usage()
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Second)
	after, err := g.usage()
	if err != nil {
		return nil, err
	}
	now, err := g.runtimeState(ctx)
	if err != nil {
		return nil, err
	}
	per := func(name string) float64 { return (now[name] - state[name]) / float64(n) }
	return sample{
		"rss":  (after.rss - before.rss) / float64(n),
		"live": per("go_memstats_alloc_bytes") + per("go_memstats_stack_inuse_bytes"), "goroutines": per("go_goroutines"),
		"connect": (opened.cpu - before.cpu).Seconds() * 1e6 / float64(n), "others": othersPercent(before, opened),
	}, nil
}

// fanout measures deliveries.
func (b *bench) fanout(ctx context.Context, w way) (sample, error) {
	g, err := b.start(ctx, w, "")
	if err != nil {
		return nil, err
	}
	defer g.Kill()
	s, err := subscribe(ctx, g.addr, w, b.subscribers)
	defer s.reset()
	if err != nil {
		return nil, err
	}
	p, err := dial(ctx, g.addr, way{1, w.tls, 1}, 4096)
	if err != nil {
		return nil, err
	}
	defer p.reset()
	d := s.deliveries()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		if err := d.publish(p); err != nil {
			return nil, err
		}
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	published := 0
	for end := before.at.Add(b.seconds); time.Now().Before(end); published++ {
		if err := d.publish(p); err != nil {
			return nil, err
		}
	}
	after, err := g.usage()
	if err != nil {
		return nil, err
	}
	n := float64(published * b.subscribers)
	return sample{"cpu": (after.cpu - before.cpu).Seconds() * 1e6 / n, "rate": n / after.at.Sub(before.at).Seconds(), "others": othersPercent(before, after)}, nil
}

// deliveries counts what subscribers get.
type deliveries struct {
	each   int64
	want   atomic.Int64
	got    atomic.Int64
	all    chan struct{}
	failed chan error
}

// deliveries starts reading. It ends when the connections are reset.
func (s *subscribers) deliveries() *deliveries {
	d := &deliveries{each: int64(s.n), all: make(chan struct{}, 1), failed: make(chan error, len(s.conns))}
	for _, c := range s.conns {
		go func() {
			d.failed <- c.count(func(n int) {
				if n > 0 && d.got.Add(int64(n)) == d.want.Load() {
					d.all <- struct{}{}
				}
			})
		}()
	}
	return d
}

// publish sends a message and waits until all subscribers have it.
func (d *deliveries) publish(c *conn) error {
	body := `{"channel":"c","data":"` + string(mark) + strings.Repeat("x", 127) + `"}`
	d.want.Add(d.each)
	if _, err := fmt.Fprintf(c, "POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		apiKey, len(body), body); err != nil {
		return err
	}
	if err := answered(c.r); err != nil {
		return err
	}
	select {
	case <-d.all:
		return nil
	case err := <-d.failed:
		return fmt.Errorf("a subscriber's connection ended: %w", err)
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%d of %d deliveries within 10s", d.got.Load(), d.want.Load())
	}
}

// answered reads a whole answer of HTTP/1.1, which has to be 200.
func answered(r *bufio.Reader) error {
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New("the answer is " + res.Status)
	}
	return nil
}
