package stdhttp

import (
	"bytes"
	"math/rand/v2"
	"mime"
	"net/http"
	"sync"
	"time"
)

// Drain ends the event streams of upstreams, spread over the given time: behind an
// event, as if the upstream had ended them. It returns at once.
func (f *Front) Drain(over time.Duration) {
	s := &f.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.end.IsZero() {
		return
	}
	s.end = time.Now().Add(over)
	for one := range s.all {
		s.schedule(one)
	}
}

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
}

// A stream is one of them.
type stream struct {
	cancel      func()
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
	one := &stream{cancel: func() { a.cancel(errAway) }, tail: [3]byte{'\n', '\n', '\n'}}
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
			return n, true
		}
	}
	for _, c := range b[max(len(b)-len(o.tail), 0):] {
		o.tail = [3]byte{o.tail[1], o.tail[2], c}
	}
	return len(b), o.leaving && o.between()
}
