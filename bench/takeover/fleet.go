package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// fleet is the clients of a server, and who publishes to them.
type fleet struct {
	server         *server
	rate, channels int
	backend        *backend // of tunnels

	clients   []*client
	wg        sync.WaitGroup
	ending    atomic.Bool
	published []atomic.Uint64 // the newest number, by channel
	failed    atomic.Pointer[error]
}

// connect connects n clients and waits until the stream of each is open.
func (f *fleet) connect(ctx context.Context, o *options, n int) error {
	f.published = make([]atomic.Uint64, f.channels)
	tunnels := 0
	for i := range n {
		c := &client{channel: i % f.channels}
		switch at := float64(i%100) / 100; {
		case at >= o.sse+o.ws+o.tunnels:
			c.way = stream
		case at >= o.sse+o.ws:
			c.way = tunnel
		case at >= o.sse:
			c.way = socket
		}
		if c.newest = &f.published[c.channel]; c.way == tunnel {
			c.channel = i % len(f.backend.published)
			c.newest = &f.backend.published[c.channel]
			tunnels++
		}
		if err := c.dial(f.server); err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		f.clients = append(f.clients, c)
		f.wg.Go(func() {
			err := c.follow()
			_ = c.conn.Close()
			if !f.ending.Load() {
				c.disconnected.Store(true)
				err = fmt.Errorf("a client (%d) was disconnected: %w", c.way, err)
				f.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	for end := time.Now().Add(o.patience); ; {
		open := 0
		for _, c := range f.clients {
			open += int(c.up.Load())
		}
		switch {
		case open == n && f.backend.connected() == tunnels:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d of %d clients are connected", open, n)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

const publishers = 16

// publish publishes until stop is called. Each channel has one publisher, which waits for each
// answer, so that numbers rise.
func (f *fleet) publish(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	http1 := &http.Transport{MaxIdleConnsPerHost: publishers, TLSClientConfig: f.server.tls}
	var wg sync.WaitGroup
	errs := make(chan error, publishers)
	f.backend.publish(ctx, f.rate*len(f.backend.published)/f.channels)
	for p := range publishers {
		if f.rate == 0 || p >= f.channels {
			continue
		}
		every := time.Duration(min(publishers, f.channels)) * time.Second / time.Duration(f.rate)
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for ch := p; ; ch += publishers {
				if ch >= f.channels {
					ch = p
				}
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := f.send(&http.Client{Transport: http1, Timeout: 20 * time.Second}, ch); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	return func() error {
		cancel()
		wg.Wait()
		http1.CloseIdleConnections()
		select {
		case err := <-errs:
			return err
		default:
			return nil
		}
	}
}

// send publishes the next message of a channel. It tries again, with the same key, where the
// server requests that or does not answer.
func (f *fleet) send(via *http.Client, ch int) error {
	n := f.published[ch].Load() + 1
	data := fmt.Sprintf("^%d %d$", time.Now().UnixNano(), n)
	body, err := json.Marshal(map[string]any{"channel": channelName(ch), "data": data, "idempotency_key": fmt.Sprintf("%d.%d", ch, n)})
	if err != nil {
		return err
	}
	scheme := "http://"
	if f.server.tls != nil {
		scheme = "https://"
	}
	for tries := 0; ; tries++ {
		req, err := http.NewRequest(http.MethodPost, scheme+f.server.addr+"/api/publish", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-API-Key", apiKey)
		res, err := via.Do(req)
		status := 0
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			status = res.StatusCode
		}
		switch {
		case status == http.StatusOK:
			f.published[ch].Store(n)
			return nil
		case tries == 1000, status != 0 && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests:
			return errors.Join(fmt.Errorf("publish: status %d", status), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// await waits until every client has the newest message of its channel.
func (f *fleet) await(patience time.Duration) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		all := true
		for _, c := range f.clients {
			all = all && (c.disconnected.Load() || c.last.Load() >= c.newest.Load())
		}
		if all && f.backend.isBack() {
			return
		}
	}
}

// report ends the clients and adds up what they have seen.
func (f *fleet) report(r *result) {
	f.ending.Store(true)
	for _, c := range f.clients {
		_ = c.conn.Close()
	}
	f.wg.Wait()
	for _, c := range f.clients {
		if c.disconnected.Load() {
			r.Disconnected++
		}
		r.Received += c.received
		r.Repeated += c.repeated
		r.Reversed += c.reversed
		r.Lost += c.lost + c.newest.Load() - min(c.last.Load(), c.newest.Load())
		r.late = append(r.late, c.late...)
		r.Silence = max(r.Silence, c.longest)
	}
	for i := range f.published {
		r.Published += f.published[i].Load()
	}
	for i := range f.backend.published {
		r.Published += f.backend.published[i].Load()
	}
	f.backend.report(r)
	r.finish()
}
