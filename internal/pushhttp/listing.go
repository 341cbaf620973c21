package pushhttp

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/socket"
)

// A Carrier is what is under a stream when that is an event loop's connection: several
// streams of HTTP/2 share one. Methods are for any goroutine, but for Unsent.
type Carrier interface {
	// Loop is the number of the connection's loop; Post has f called there, unless the
	// loop has ended.
	Loop() int
	Post(f func()) bool
	// Unsent is what the connection has under way, here and in the kernel. On its loop.
	Unsent() int
	// Publish publishes p, to topics if there are any, as the loop would for a client of
	// its own: within the limits of the address, and in its turn if it has a class. It
	// returns false when neither applies: then nothing was done. done is called once.
	Publish(topics []string, p hub.Publication, done func(hub.Position, error)) bool
	// Replays reports whether there is time now for the history of channels.
	Replays(channels []string) bool
}

type carrierKey struct{}

// WithCarrier returns ctx for requests that c carries.
func WithCarrier(ctx context.Context, c Carrier) context.Context {
	return context.WithValue(ctx, carrierKey{}, c)
}

// CarrierOf returns what carries the requests of ctx, or nil.
func CarrierOf(ctx context.Context) Carrier {
	c, _ := ctx.Value(carrierKey{}).(Carrier)
	return c
}

// A Subscriber is one stream and how far it is behind.
type Subscriber struct {
	ID        uint64
	Loop      int // of its connection; -1: it is no loop's
	Peer      string
	Transport string // sse, websocket or stream
	Protocol  string // of an endpoint's; empty: Weir's own
	Subject   string
	Channels  []string
	Since     time.Time
	// Messages and Bytes wait for the stream, the oldest for Age seconds. Kernel is what
	// its connection has under way, that of its other streams included.
	Messages, Bytes, Kernel int
	Age                     float64
}

// A listing is what a stream shows of itself. All of it is fixed when it begins.
type listing struct {
	id        uint64
	peer      string
	transport string
	protocol  int
	since     time.Time
	carrier   Carrier // nil: no loop's
}

func (s *Server) list(ctx context.Context, peer, transport string, protocol int) listing {
	// No loop has the number 0xff.
	return listing{id: 0xff<<56 | s.ids.Add(1)&(1<<56-1), peer: peer, transport: transport, protocol: protocol, since: time.Now(), carrier: CarrierOf(ctx)}
}

// A listed is a stream in its lane's list. Its methods are for the lane's goroutine.
type listed interface {
	about() *listing
	// lag are the numbers of a Subscriber, describe adds whom and what it is about.
	lag(now time.Time) (messages, bytes int, age float64)
	describe(s *Subscriber)
	// sendAway ends it in words, so that it comes back. roomy says that history may go on.
	sendAway(reason string)
	roomy()
}

var _, _ listed = (*stream)(nil), (*link)(nil)

func (st *stream) about() *listing { return &st.listing }

func (st *stream) lag(now time.Time) (messages, bytes int, age float64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.queue.Len(), st.queue.Bytes() + int(st.sending.Load()), st.queue.Age(now).Seconds()
}

func (st *stream) describe(s *Subscriber) {
	s.Channels = st.sub.Channels()
	if st.identity != nil {
		s.Subject = st.identity.Subject
	}
}

func (st *stream) sendAway(reason string) {
	st.finish(&farewell{codeRestart, reason}, nil)
	st.signal()
}

func (st *stream) roomy() { st.feed() }

func (l *link) about() *listing { return &l.listing }

func (l *link) lag(time.Time) (messages, bytes int, age float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 0, l.bytes, 0
}

func (l *link) describe(s *Subscriber) {
	for g := l.subs; g != nil; g = g.next {
		s.Channels = append(s.Channels, g.sub.Channels()...)
	}
	if id, ok := l.session.(socket.Identified); ok && !l.deaf() {
		l.enter()
		defer l.exit()
		s.Subject = id.Subject()
	}
}

func (l *link) sendAway(reason string) { l.Close(codeRestart, reason) }

func (l *link) roomy() {
	if !l.deaf() {
		l.enter()
		defer l.exit()
		l.session.Drained()
	}
}

// Rest makes history wait, and nobody new have compression, or ends that: the process is
// short of processors.
func (s *Server) Rest(on bool) {
	if was := s.resting.Swap(on); on || !was {
		return
	}
	for _, l := range s.lanes {
		l.post(func() {
			for _, x := range l.streams {
				x.roomy()
			}
		})
	}
}

// compresses reports whether somebody new on channels may have compression.
func (s *Server) compresses(channels []string) bool {
	return s.formats.Compresses(channels) && !s.resting.Load()
}

// turnsAway reports whether a subscription that asks for history is not begun now.
func (s *Server) turnsAway(c Carrier, opt *hub.SubscribeOptions) bool {
	return c != nil && (len(opt.Since) > 0 || opt.All) && !c.Replays(opt.Channels)
}

// ranked is a stream among those that are compared.
type ranked struct {
	stream listed
	lane   *lane
	Subscriber
	rank float64
}

// Subscribers returns how many streams there are, and those limit of them whose rank is
// highest. rank sees only the numbers. A lane that does not answer before ctx is done is
// missing.
func (s *Server) Subscribers(ctx context.Context, limit int, rank func(*Subscriber) float64) (total int, worst []Subscriber) {
	all := s.numbers(ctx)
	unsent := unsentOf(ctx, all)
	for i := range all {
		r := &all[i]
		if r.Loop = -1; r.stream.about().carrier != nil {
			r.Loop, r.Kernel = r.stream.about().carrier.Loop(), unsent[r.stream.about().carrier]
		}
		r.rank = rank(&r.Subscriber)
	}
	total = len(all)
	slices.SortStableFunc(all, func(x, y ranked) int { return cmp.Compare(y.rank, x.rank) })
	return total, s.described(ctx, all[:min(limit, total)])
}

// Lags calls f with what waits for every stream.
func (s *Server) Lags(ctx context.Context, f func(messages, bytes int, age float64)) {
	for _, r := range s.numbers(ctx) {
		f(r.Messages, r.Bytes, r.Age)
	}
}

// numbers asks every lane for the numbers of its streams.
func (s *Server) numbers(ctx context.Context) (all []ranked) {
	if s.counters.sse.Load()+s.counters.ws.Load() == 0 {
		return nil
	}
	got := make(chan []ranked, len(s.lanes))
	for _, l := range s.lanes {
		l.post(func() {
			now, mine := time.Now(), make([]ranked, 0, len(l.streams))
			for _, x := range l.streams {
				r := ranked{stream: x, lane: l}
				r.Messages, r.Bytes, r.Age = x.lag(now)
				mine = append(mine, r)
			}
			got <- mine
		})
	}
	for range s.lanes {
		select {
		case mine := <-got:
			all = append(all, mine...)
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// askedAtOnce bounds the connections that a loop looks at between other work: each costs
// a system call.
const askedAtOnce = 256

// unsentOf asks the loops what the connections under all have under way.
func unsentOf(ctx context.Context, all []ranked) map[Carrier]int {
	seen, byLoop := map[Carrier]int{}, map[int][]Carrier{}
	for i := range all {
		c := all[i].stream.about().carrier
		if c == nil {
			continue
		}
		if _, ok := seen[c]; !ok {
			seen[c] = 0
			byLoop[c.Loop()] = append(byLoop[c.Loop()], c)
		}
	}
	type answer struct {
		of     []Carrier
		unsent []int
	}
	got, waiting := make(chan answer, len(seen)/askedAtOnce+len(byLoop)+1), 0
	for _, carriers := range byLoop {
		pieces := slices.Collect(slices.Chunk(carriers, askedAtOnce))
		waiting += len(pieces)
		var next func()
		next = func() {
			a := answer{of: pieces[0]}
			for _, c := range a.of {
				a.unsent = append(a.unsent, c.Unsent())
			}
			got <- a
			if pieces = pieces[1:]; len(pieces) > 0 {
				carriers[0].Post(next)
			}
		}
		if !carriers[0].Post(next) {
			waiting -= len(pieces)
		}
	}
	for ; waiting > 0; waiting-- {
		select {
		case a := <-got:
			for i, c := range a.of {
				seen[c] = a.unsent[i]
			}
		case <-ctx.Done():
			return seen
		}
	}
	return seen
}

// described has the lanes say whom worst are about. Who has left meanwhile has no channels.
func (s *Server) described(ctx context.Context, worst []ranked) []Subscriber {
	out := make([]Subscriber, len(worst))
	for i := range worst {
		x := worst[i].stream.about()
		out[i] = worst[i].Subscriber
		o := &out[i]
		o.ID, o.Peer, o.Transport, o.Since, o.Protocol = x.id, x.peer, x.transport, x.since, s.protocols[x.protocol].name
	}
	type answer struct {
		at   []int
		says []Subscriber
	}
	got := make(chan answer, len(s.lanes))
	asked := 0
	for _, l := range s.lanes {
		var at []int
		for i := range worst {
			if worst[i].lane == l {
				at = append(at, i)
			}
		}
		if len(at) == 0 {
			continue
		}
		asked++
		l.post(func() {
			a := answer{at: at, says: make([]Subscriber, len(at))}
			for k, i := range at {
				if x := worst[i].stream; l.streams[x.about().id] == x {
					x.describe(&a.says[k])
				}
			}
			got <- a
		})
	}
	for ; asked > 0; asked-- {
		select {
		case a := <-got:
			for k, i := range a.at {
				out[i].Channels, out[i].Subject = a.says[k].Channels, a.says[k].Subject
			}
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// ErrNoStream says that a stream is not there, or not any more.
var ErrNoStream = errors.New("there is no such stream")

// Subscriber returns the stream with that ID.
func (s *Server) Subscriber(ctx context.Context, id uint64) (Subscriber, error) {
	found := make(chan *ranked, len(s.lanes))
	s.find(id, found, func(l *lane, x listed) *ranked {
		r := &ranked{stream: x, lane: l}
		r.Messages, r.Bytes, r.Age = x.lag(time.Now())
		return r
	})
	for range s.lanes {
		select {
		case r := <-found:
			if r == nil {
				continue
			}
			all := []ranked{*r}
			if r.Loop = -1; r.stream.about().carrier != nil {
				all[0].Loop, all[0].Kernel = r.stream.about().carrier.Loop(), unsentOf(ctx, all)[r.stream.about().carrier]
			}
			return s.described(ctx, all)[0], nil
		case <-ctx.Done():
			return Subscriber{}, context.Cause(ctx)
		}
	}
	return Subscriber{}, ErrNoStream
}

// Disconnect sends the client of the stream with that ID away, so that it comes back
// after its own delay.
func (s *Server) Disconnect(ctx context.Context, id uint64, reason string) error {
	found := make(chan *ranked, len(s.lanes))
	s.find(id, found, func(_ *lane, x listed) *ranked {
		x.sendAway(reason)
		return &ranked{}
	})
	for range s.lanes {
		select {
		case r := <-found:
			if r != nil {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return ErrNoStream
}

// find has every lane send what f says of the stream with that ID, or nil.
func (s *Server) find(id uint64, found chan<- *ranked, f func(*lane, listed) *ranked) {
	for _, l := range s.lanes {
		l.post(func() {
			if x, ok := l.streams[id]; ok {
				found <- f(l, x)
			} else {
				found <- nil
			}
		})
	}
}
