package governor

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

const (
	// socketsOf is the share of connections that is sampled each second when there are
	// many; socketsWanted is how many it should not fall below.
	socketsOf     = 64
	socketsWanted = 32
	// socketsHold is for how many seconds the same ones are sampled, so that there is
	// something to compare with.
	socketsHold = 4
	// socketsKept bounds what is remembered.
	socketsKept = 8192
	socketsAge  = 5 * time.Minute
)

// stallSampler samples why a share of the sockets wait. One goroutine samples, any
// reads.
type stallSampler struct {
	ask func(dst []SocketSample, phase, of int) []SocketSample

	// Owned by its goroutine.
	samples            []SocketSample
	seen               map[uint64]socketSeen
	unsent, rtt, queue []float64
	turn               int

	mu  sync.Mutex
	out Stalls
	at  time.Time
}

type socketSeen struct {
	tcp sys.TCPInfo
	at  time.Time
}

// sample queries the kernel and sums up. conns decides which share.
func (s *stallSampler) sample(now time.Time, conns int) {
	of := min(max(conns/socketsWanted, 1), socketsOf)
	s.samples = s.ask(s.samples[:0], s.turn/socketsHold%of, of)
	s.turn++
	v := s.sum(time.Now(), of)
	s.mu.Lock()
	s.out, s.at = v, now
	s.mu.Unlock()
}

func (s *stallSampler) sum(now time.Time, of int) Stalls {
	if s.seen == nil {
		s.seen = map[uint64]socketSeen{}
	}
	v := Stalls{Sampled: len(s.samples), Of: of}
	var busy, reader, buffer time.Duration
	var segments, again uint64
	s.unsent, s.rtt, s.queue = s.unsent[:0], s.rtt[:0], s.queue[:0]
	for i := range s.samples {
		one := &s.samples[i]
		t, was := &one.TCP, s.seen[one.ID]
		if t.Busy < was.tcp.Busy || t.Segments < was.tcp.Segments { // the number's second life
			was = socketSeen{}
		}
		b, r := t.Busy-was.tcp.Busy, t.ReaderLimited-was.tcp.ReaderLimited
		busy, reader, buffer = busy+b, reader+r, buffer+t.BufferLimited-was.tcp.BufferLimited
		segments += uint64(t.Segments - was.tcp.Segments)
		again += uint64(t.Retransmits - min(was.tcp.Retransmits, t.Retransmits))
		if t.Unsent > 0 && r > b/2 && r > 0 {
			v.Stopped++
		}
		s.unsent = append(s.unsent, float64(t.Unsent))
		s.rtt = append(s.rtt, t.RTT.Seconds())
		s.queue = append(s.queue, float64(one.Queued))
		s.seen[one.ID] = socketSeen{tcp: *t, at: now}
	}
	v.Reader, v.Buffer = share(reader, busy), share(buffer, busy)
	if segments > 0 {
		v.Retransmits = min(float64(again)/float64(segments), 1)
	}
	v.Unsent, v.RTT, v.Queued = spread(s.unsent), spread(s.rtt), spread(s.queue)
	s.forget(now)
	return v
}

// forget drops what is old, once in a while, and any when there are too many: then
// down to three quarters, so that it is not done again at once.
func (s *stallSampler) forget(now time.Time) {
	bound := len(s.seen)
	if bound > socketsKept {
		bound = socketsKept * 3 / 4
	} else if s.turn%60 != 0 {
		return
	}
	for id, was := range s.seen {
		if now.Sub(was.at) > socketsAge || len(s.seen) > bound {
			delete(s.seen, id)
		}
	}
}

// latest is the last sum; stale when the source has not answered for too long.
func (s *stallSampler) latest(now time.Time) Stalls {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.out
	v.Stale = s.ask != nil && now.Sub(s.at) > SourcePatience+2*time.Second
	return v
}

func share(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return min(max(part.Seconds()/whole.Seconds(), 0), 1)
}

// spread sorts xs.
func spread(xs []float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	slices.Sort(xs)
	at := func(q float64) float64 { return xs[max(int(math.Ceil(q*float64(len(xs))))-1, 0)] }
	return Spread{P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
}
