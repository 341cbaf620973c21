package observe

import (
	"cmp"
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// snapshots makes the state of everything: for the page, `weir top`, expvar. Rates are
// over the time since the one before, which is why there is one maker.
type snapshots struct {
	*Node
	clients  *clients
	degraded *degraded

	mu   sync.Mutex
	was  reading
	last *admin.Snapshot
	took time.Duration

	// top is the last census of channels and when it was taken: it queries every shard.
	census   map[string]uint64
	top      []admin.Channel
	censusAt time.Time

	listeners atomic.Int32
	events    atomic.Uint64
	bytes     atomic.Int64
}

// reading is what rates are made of.
type reading struct {
	at      time.Time
	traffic admin.Traffic
	loops   []loopReading
	classes []limit.ClassStats
}

type loopReading struct {
	stats     eventloop.Stats
	ticks     eventloop.Ticks
	delivered uint64
	depth     int64
}

const (
	// freshFor is how long a snapshot is good enough for another request.
	freshFor = 200 * time.Millisecond
	// slowest is how many subscribers a snapshot shows.
	slowest     = 20
	topChannels = 20
	// Above cheapChannels the census is taken more rarely.
	cheapChannels = 10_000
	maxCensus     = 200_000
)

// get returns a snapshot, at most freshFor old, with that many seconds of heat maps; 0
// means all there are.
func (s *snapshots) get(ctx context.Context, seconds int) *admin.Snapshot {
	s.mu.Lock()
	if s.last == nil || time.Since(s.last.Time) >= freshFor {
		s.last = s.make(ctx)
	}
	v := *s.last
	s.mu.Unlock()
	v.Heat = s.Governor.HeatMaps(seconds)
	return &v
}

// make looks at everything. s.mu is held.
func (s *snapshots) make(ctx context.Context) *admin.Snapshot {
	a, now := s, time.Now()
	r := a.read(now)
	v := &admin.Snapshot{Time: now, Process: a.process(now), Governor: a.Governor.Snapshot(), Upstreams: a.upstreamsView()}
	v.Degraded, v.Drain = a.degraded.list(), a.Drain()
	rv := a.Revocations()
	v.Revocations = admin.RevocationsNow{Subjects: rv.Subjects, Tokens: rv.Tokens, InForce: rv.Subjects + rv.Tokens, Refused: rv.Refused, Closed: rv.Closed}
	v.Traffic = r.traffic
	if !s.was.at.IsZero() {
		v.Interval = now.Sub(s.was.at).Seconds()
	}
	rates(&v.Traffic, &s.was.traffic, v.Interval)
	v.Loops = loopViews(&r, &s.was, v.Interval)
	v.Admission = admissionViews(r.classes, s.was.classes, v.Interval)
	v.Connections = a.connected()
	v.Lag = a.lag()
	v.Slowest = []admin.Connection{}
	if c, err := a.clients.connections(ctx, "lag", slowest); err == nil {
		v.Slowest = c.Connections
	}
	s.countChannels(ctx, now)
	v.Channels = admin.ChannelsNow{Count: a.Hub.Stats().Channels, Top: s.top}
	s.was = r
	s.took = time.Since(now)
	spans := a.Telemetry.Stats()
	v.Self = admin.Self{
		Listeners: int(s.listeners.Load()), Events: s.events.Load(), SnapshotSeconds: s.took.Seconds(), SnapshotBytes: int(s.bytes.Load()),
		SpansDropped: spans.Dropped, SpansExported: spans.Exported,
	}
	return v
}

// read takes the counters.
func (s *snapshots) read(now time.Time) reading {
	r := reading{at: now, classes: s.AdmissionStats()}
	t := &r.traffic
	h, p := s.Hub.Stats(), s.Push.Stats()
	t.Published, t.PublishErrors = h.Published, p.PublishErrors
	t.Delivered, t.Replayed, t.Encoded, t.Gaps = h.Delivered, h.Replayed, h.Encoded, h.Gaps+p.Gaps
	t.Requests = s.Front.Stats().Requests
	t.Dropped, t.Conflated = p.Dropped, p.Conflated
	t.Disconnected = p.TooSlow + p.Expired + p.Drained + p.ClientErrors + p.Panics + p.Failed + s.clients.byHand.Load()
	shards := s.Push.Shards()
	for i, l := range s.Loops.Loops() {
		lr := loopReading{stats: l.Stats(), ticks: l.Ticks(), delivered: shards[i].Delivered(), depth: shards[i].Depth()}
		t.Accepted += lr.stats.Accepted
		t.BytesIn += lr.stats.BytesIn
		t.BytesOut += lr.stats.BytesOut
		t.Sends += lr.stats.Sends
		t.Stalls += lr.stats.Stalls
		r.loops = append(r.loops, lr)
	}
	return r
}

// rates fills in what happened per second since was.
func rates(t, was *admin.Traffic, seconds float64) {
	if seconds <= 0 {
		return
	}
	per := func(now, then uint64) float64 { return float64(now-min(then, now)) / seconds }
	t.PublishedRate, t.ErrorRate = per(t.Published, was.Published), per(t.PublishErrors, was.PublishErrors)
	t.DeliveredRate, t.RequestRate = per(t.Delivered, was.Delivered), per(t.Requests, was.Requests)
	t.AcceptRate, t.InRate, t.OutRate = per(t.Accepted, was.Accepted), per(t.BytesIn, was.BytesIn), per(t.BytesOut, was.BytesOut)
	t.SendRate, t.StallRate = per(t.Sends, was.Sends), per(t.Stalls, was.Stalls)
	if t.PublishedRate > 0 {
		t.FanOut, t.EncodesPerMessage = t.DeliveredRate/t.PublishedRate, per(t.Encoded, was.Encoded)/t.PublishedRate
	}
	if t.SendRate > 0 {
		t.BytesPerSend = t.OutRate / t.SendRate
	}
}

// loopViews are the loops' shares of the work.
func loopViews(r, was *reading, seconds float64) []admin.Loop {
	views := make([]admin.Loop, len(r.loops))
	for i := range r.loops {
		l := &r.loops[i]
		v := admin.Loop{
			Loop: i, Connections: l.stats.Open, Inbox: l.ticks.Inbox, Queue: l.depth, Current: l.ticks.Current.Seconds(),
		}
		if i < len(was.loops) && seconds > 0 {
			w := &was.loops[i]
			per := func(now, then uint64) float64 { return float64(now-min(then, now)) / seconds }
			v.Messages, v.Ticks = per(l.delivered, w.delivered), per(l.stats.Ticks, w.stats.Ticks)
			v.BytesIn, v.BytesOut, v.Sends = per(l.stats.BytesIn, w.stats.BytesIn), per(l.stats.BytesOut, w.stats.BytesOut), per(l.stats.Sends, w.stats.Sends)
			v.Busy = min(max((l.ticks.Busy-w.ticks.Busy).Seconds()/seconds, 0), 1)
			times := l.ticks.Times.Since(&w.ticks.Times)
			v.TickP50, v.TickP99 = times.Quantile(0.5), times.Quantile(0.99)
		}
		views[i] = v
	}
	return views
}

func (s *snapshots) process(now time.Time) admin.Process {
	p := admin.Process{
		Version: s.Version, Go: runtime.Version(), PID: os.Getpid(), Started: s.Started, Uptime: now.Sub(s.Started).Seconds(),
		Listen: s.Addr().String(), Engine: s.Loops.Engine(), Broker: s.Broker, Ready: "yes",
	}
	if bus := s.Hub.Bus(); bus != nil {
		p.Node = bus.Node()
	}
	if err := s.Push.Ready(); err != nil {
		p.Ready = err.Error()
	}
	return p
}

// connected is who is connected, by what they do.
func (s *snapshots) connected() admin.Connected {
	c := admin.Connected{Open: s.Loops.Open(), Max: s.Loops.MaxConns(), ByProtocol: s.byTransport(), Suites: []admin.Suite{}}
	if s.TLS != nil {
		for _, x := range s.TLS.Stats().Suites {
			c.Suites = append(c.Suites, admin.Suite{Protocol: x.Protocol, Suite: x.Suite, Handshakes: x.Count})
		}
	}
	return c
}

// lag is how the subscribers lag now.
func (s *snapshots) lag() admin.Lag {
	all := s.lagHistograms()
	spread := func(bounds [6]float64, h push.Histogram) admin.Spread {
		return admin.Spread{Bounds: bounds[:], Counts: h.Counts[:], Sum: h.Sum}
	}
	l := admin.Lag{
		Messages: spread(push.LagMessageBounds, all.Messages), Bytes: spread(push.LagByteBounds, all.Bytes), Seconds: spread(push.LagSecondBounds, all.Seconds),
	}
	for i, n := range all.Bytes.Counts {
		if l.Subscribers += n; i > 0 {
			l.Lagging += n
		}
	}
	return l
}

// countChannels takes the census of the channels, if the last is old. s.mu is held.
func (s *snapshots) countChannels(ctx context.Context, now time.Time) {
	age, wait := now.Sub(s.censusAt), time.Second
	if s.Hub.Stats().Channels > cheapChannels {
		wait = 10 * time.Second
	}
	if !s.censusAt.IsZero() && age < wait {
		return
	}
	all, counted, err := s.channelsSince(ctx, s.census, age)
	if err != nil {
		return // the loops are busy: the next will have it
	}
	s.census, s.censusAt = counted, now
	sortChannels(all, "rate")
	s.top = all[:min(len(all), topChannels)]
}

// channelsSince returns the channels with subscribers, with rates over the time since
// was was counted, and what was counted now.
func (s *snapshots) channelsSince(ctx context.Context, was map[string]uint64, age time.Duration) ([]admin.Channel, map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	all, counted := []admin.Channel{}, map[string]uint64{}
	err := s.Hub.Channels(ctx, func(st hub.ChannelStats) bool {
		c := admin.Channel{Name: st.Name, Subscribers: int64(st.Subscribers), Messages: st.Messages}
		if then, ok := was[st.Name]; ok && age > 0 && st.Messages >= then {
			c.Rate = float64(st.Messages-then) / age.Seconds()
		}
		counted[st.Name] = st.Messages
		all = append(all, c)
		return len(all) < maxCensus
	})
	return all, counted, err
}

var channelSorts = []string{"rate", "subscribers", "messages", "name"}

func sortChannels(all []admin.Channel, by string) {
	slices.SortFunc(all, func(x, y admin.Channel) int {
		order := 0
		switch by {
		case "rate":
			order = cmp.Compare(y.Rate, x.Rate)
		case "subscribers":
			order = cmp.Compare(y.Subscribers, x.Subscribers)
		case "messages":
			order = cmp.Compare(y.Messages, x.Messages)
		}
		return cmp.Or(order, cmp.Compare(x.Name, y.Name))
	})
}

// channels is what /api/channels answers. Rates are over the time since the last census
// that a snapshot took; without one, since just now.
func (s *snapshots) channels(ctx context.Context, sort string, limit int) (*admin.Channels, error) {
	s.mu.Lock()
	if s.censusAt.IsZero() {
		s.countChannels(ctx, time.Now())
	}
	was, at := s.census, s.censusAt
	s.mu.Unlock()
	all, _, err := s.channelsSince(ctx, was, time.Since(at))
	if err != nil {
		return nil, err
	}
	sortChannels(all, sort)
	return &admin.Channels{Total: s.Hub.Stats().Channels, Sort: sort, Channels: all[:min(limit, len(all))]}, nil
}
