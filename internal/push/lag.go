package push

import (
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A Lag is how far one subscriber is behind, for the admin API.
type Lag struct {
	Conn      uint64    `json:"conn"`
	Loop      int       `json:"loop"`
	Peer      string    `json:"peer"`
	Transport string    `json:"transport"`
	Protocol  string    `json:"protocol,omitempty"` // of an endpoint's; empty: Weir's own
	HTTP2     bool      `json:"http2,omitempty"`    // its connection is a stream of HTTP/2
	HTTP3     bool      `json:"http3,omitempty"`    // of HTTP/3
	Subject   string    `json:"subject,omitempty"`
	Channels  []string  `json:"channels"`
	Since     time.Time `json:"connected_at"`
	Messages  int       `json:"lag_messages"`
	Bytes     int       `json:"lag_bytes"`
	Kernel    int       `json:"kernel_bytes"`
	Age       float64   `json:"lag_seconds"`
}

// Lags is what one loop answers: how many subscribers it has, and those with the
// highest rank, highest first.
type Lags struct {
	Loop  int
	Total int
	Worst []Lag
	// Ended reports that the loop runs no more; it has no subscribers then.
	Ended bool
}

// A lagging is a handler that is a subscriber.
type lagging interface {
	// numbers are the parts of a Lag that it can be ranked by. It costs a system call.
	numbers() Lag
	// describe adds to it what it is about.
	describe(g Lag) Lag
	// count adds it to h.
	count(h *LagHistograms, now time.Time)
}

// lagChunk is how many subscribers are looked at between other work of a loop:
// each costs a system call.
const lagChunk = 256

// Lags makes every loop look at its subscribers and call f, on its goroutine,
// with the limit of them whose rank is highest. rank sees only the numbers. It
// returns at once; f is called Loops times, if the loops run.
func (all loopStates) Lags(limit int, rank func(*Lag) float64, f func(Lags)) {
	for _, loopState := range all {
		s := &lagScan{loopState: loopState, limit: limit, rank: rank, f: f}
		if !loopState.loop.Post(s.begin) {
			f(Lags{Loop: loopState.loop.ID(), Ended: true})
		}
	}
}

// lagScan is a walk over one loop's subscribers.
type lagScan struct {
	loopState *LoopState
	limit     int
	rank      func(*Lag) float64
	f         func(Lags)
	left      []*eventloop.Conn
	total     int
	worst     []ranked
}

type ranked struct {
	s    lagging
	lag  Lag
	rank float64
}

func (a *lagScan) begin() {
	a.loopState.loop.Conns(func(c *eventloop.Conn) bool {
		if _, ok := c.Handler().(lagging); ok {
			a.left = append(a.left, c)
		}
		return true
	})
	a.next()
}

// next looks at some subscribers and posts itself for the rest.
func (a *lagScan) next() {
	n := min(len(a.left), lagChunk)
	for _, c := range a.left[:n] {
		if h, ok := c.Handler().(lagging); ok && !c.Closing() { // it may have gone meanwhile
			r := ranked{s: h, lag: h.numbers()}
			r.rank = a.rank(&r.lag)
			a.worst = append(a.worst, r)
			a.total++
		}
	}
	a.left = a.left[n:]
	if len(a.worst) > a.limit {
		slices.SortStableFunc(a.worst, func(x, y ranked) int {
			switch {
			case x.rank > y.rank:
				return -1
			case x.rank < y.rank:
				return 1
			}
			return 0
		})
		clear(a.worst[a.limit:])
		a.worst = a.worst[:a.limit]
	}
	if len(a.left) > 0 && a.loopState.loop.Post(a.next) {
		return
	}
	out := Lags{Loop: a.loopState.loop.ID(), Total: a.total, Worst: make([]Lag, len(a.worst))}
	for i := range a.worst {
		out.Worst[i] = a.worst[i].s.describe(a.worst[i].lag)
	}
	a.f(out)
}

// numbers implements lagging.
func (s *session) numbers() Lag {
	g := Lag{Transport: "sse", HTTP2: HTTPVersion(s.conn) == 2, HTTP3: HTTPVersion(s.conn) == 3, Bytes: s.conn.Unsent(), Kernel: s.conn.UnsentKernel()}
	if wire.IsFrame(s.format) {
		g.Transport = "websocket"
	}
	if c := s.custom(); c != nil {
		g.Protocol = s.loopState.push.protocols[c.protocol].name
	}
	if q := s.backlog; q != nil {
		g.Messages = q.Len()
		g.Bytes += q.Bytes()
		g.Age = q.Age(time.Now()).Seconds()
	}
	return g
}

// describe adds to g whose connection it is.
func describe(g Lag, c *eventloop.Conn) Lag {
	g.Conn, g.Loop, g.Peer = c.ID(), c.Loop().ID(), c.Peer().String()
	g.Since = c.Loop().Time(c.Accepted())
	return g
}

// describe implements lagging.
func (s *session) describe(g Lag) Lag {
	g = describe(g, s.conn)
	g.Channels = s.sub.Channels()
	if id := s.identity(); id != nil {
		g.Subject = id.Subject
	}
	return g
}

// Loops returns how many loops Lags will answer for.
func (all loopStates) Loops() int { return len(all) }
