package stdhttp

import (
	"bytes"
	"math/rand/v2"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/wire"
	"github.com/weir-gateway/weir/sse"
)

// Drain ends the event streams of upstreams, as plan says: behind an event, as if the
// upstream had ended them, with the time after which the client is to reconnect. All
// connections of HTTP/2 get a GOAWAY, so that their clients reconnect by new ones. It
// returns at once.
func (f *Front) Drain(plan wire.DrainPlan) {
	f.goAway.announce()
	s := &f.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.end.IsZero() {
		return
	}
	s.at, s.plan = time.Now(), plan
	s.end = s.at.Add(plan.Over)
	for one := range s.all {
		s.schedule(one)
	}
}

// Unfinished returns how many proxied requests are under way, without event streams.
func (f *Front) Unfinished() int64 { return f.exchanges.Load() - int64(f.Streams()) }

// Streams returns how many event streams of upstreams are followed.
func (f *Front) Streams() int {
	f.streams.mu.Lock()
	defer f.streams.mu.Unlock()
	return len(f.streams.all)
}

// streams are the event streams of upstreams that are followed.
type streams struct {
	mu  sync.Mutex
	all map[*stream]struct{}
	end time.Time // of the drain; zero: there is none
	at  time.Time // its start
	// plan is the drain's.
	plan wire.DrainPlan
}

// A stream is one of them.
type stream struct {
	cancel      func()
	coded       bool        // the body has a content coding: nothing can be added
	timer, last *time.Timer // of the drain; nil before

	mu      sync.Mutex
	tail    [3]byte // the last bytes, the newest last
	leaving bool    // it is time, behind the event on its way
}

// follow returns the stream that res is, or nil if it is none.
func (a *attempts) follow(res *http.Response) *stream {
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return nil
	}
	one := &stream{coded: res.Header.Get("Content-Encoding") != "", cancel: func() { a.cancel(errAway) }, tail: [3]byte{'\n', '\n', '\n'}}
	s := &a.x.f.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*stream]struct{}{}
	}
	s.all[one] = struct{}{}
	if !s.end.IsZero() {
		s.schedule(one)
	}
	return one
}

// schedule gives one its moment. With mu held.
func (s *streams) schedule(one *stream) {
	left := max(time.Until(s.end), 1)
	one.timer = time.AfterFunc(rand.N(left), one.leave)
	one.last = time.AfterFunc(left, one.cancel)
}

func (s *streams) leave(one *stream) {
	if one == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, one)
	if one.timer != nil {
		one.timer.Stop()
		one.last.Stop()
	}
}

// leave ends the stream now, or has take end it.
func (o *stream) leave() {
	o.mu.Lock()
	o.leaving = true
	now := o.between()
	o.mu.Unlock()
	if now {
		o.cancel()
	}
}

// last is what o's client is sent at the end of the drain.
func (s *streams) last(o *stream) []byte {
	s.mu.Lock()
	plan, at := s.plan, s.at
	s.mu.Unlock()
	if o == nil || o.coded {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.between() {
		return nil
	}
	return sse.AppendEnd(sse.AppendRetry(nil, plan.RetryMillis(time.Since(at), false)))
}

// between reports whether no event is on its way. With mu held.
func (o *stream) between() bool {
	a, b, c := o.tail[0], o.tail[1], o.tail[2]
	return c == '\n' && (b == '\n' || b == '\r' && a == '\n') || c == '\r' && b == '\r'
}

// take notes what goes out, and returns how much of b that is and whether the stream
// ends there. A nil o takes all.
func (o *stream) take(b []byte) (n int, ends bool) {
	if o == nil || len(b) == 0 {
		return len(b), false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leaving {
		for _, blank := range [...]string{"\n\n", "\n\r\n", "\r\r"} {
			if i := bytes.LastIndex(b, []byte(blank)); i >= 0 {
				n = max(n, i+len(blank))
			}
		}
		if n > 0 {
			o.tail = [3]byte{'\n', '\n', '\n'}
			return n, true
		}
	}
	for _, c := range b[max(len(b)-len(o.tail), 0):] {
		o.tail = [3]byte{o.tail[1], o.tail[2], c}
	}
	return len(b), o.leaving && o.between()
}
