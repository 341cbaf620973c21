package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/websocket"
)

// A backend is what a server's route leads to: each WebSocket follows a channel of its own kind, on which
// numbered messages are sent, and sends each of them back.
type backend struct {
	listener  net.Listener
	published []atomic.Uint64 // the newest number, by channel
	wg        sync.WaitGroup

	mu      sync.Mutex
	sockets []*backendSocket
}

// A backendSocket is a tunnel's end at the backend.
type backendSocket struct {
	net.Conn
	channel int
	back    client // accounts for what comes back
	over    atomic.Bool
}

func newBackend(channels int) (*backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{listener: l, published: make([]atomic.Uint64, channels)}
	b.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() {
				s := &backendSocket{Conn: c}
				_ = b.serve(s)
				s.over.Store(true)
				_ = c.Close()
			})
		}
	})
	return b, nil
}

// serve answers the handshake and reads until the connection ends.
func (b *backend) serve(s *backendSocket) error {
	r := bufio.NewReaderSize(s, 1024)
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	if s.channel, err = channelOf(req.URL); err != nil || s.channel >= len(b.published) {
		return fmt.Errorf("channel %d of %d: %w", s.channel, len(b.published), err)
	}
	if _, err := s.Write(websocket.AppendHandshakeResponse(nil, []byte(req.Header.Get("Sec-WebSocket-Key")), "", "")); err != nil {
		return err
	}
	first := b.published[s.channel].Load()
	s.back.last.Store(first)
	b.mu.Lock()
	b.sockets = append(b.sockets, s)
	b.mu.Unlock()
	return readFrames(r, s.Conn, s.back.data)
}

func channelOf(u *url.URL) (int, error) { return strconv.Atoi(u.Query().Get("channel")) }

// connected is how many tunnels are open.
func (b *backend) connected() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sockets {
		if !s.over.Load() {
			n++
		}
	}
	return n
}

// publish sends rate messages a second to the channels, one after the other, until ctx is done. All
// tunnels are open.
func (b *backend) publish(ctx context.Context, rate int) {
	channels := len(b.published)
	if rate == 0 || channels == 0 {
		return
	}
	follow := make([][]*backendSocket, channels)
	b.mu.Lock()
	for _, s := range b.sockets {
		follow[s.channel] = append(follow[s.channel], s)
	}
	b.mu.Unlock()
	b.wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		var frame []byte
		for ch := 0; ; ch = (ch + 1) % channels {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n := b.published[ch].Load() + 1
			frame = websocket.AppendFrame(frame[:0], websocket.OpText, fmt.Appendf(nil, "^%d %d$", time.Now().UnixNano(), n))
			for _, s := range follow[ch] {
				if _, err := s.Write(frame); err != nil {
					s.over.Store(true)
				}
			}
			b.published[ch].Store(n)
		}
	})
}

// back reports whether all that was sent has come back.
func (b *backend) isBack() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sockets {
		if !s.over.Load() && s.back.last.Load() < b.published[s.channel].Load() {
			return false
		}
	}
	return true
}

// report ends the tunnels and adds up what has come back.
func (b *backend) report(r *result) {
	_ = b.listener.Close()
	b.mu.Lock()
	for _, s := range b.sockets {
		_ = s.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
	for _, s := range b.sockets {
		newest := b.published[s.channel].Load()
		r.Repeated += s.back.repeated
		r.Reversed += s.back.reversed
		r.Lost += s.back.lost + newest - min(s.back.last.Load(), newest)
	}
}
