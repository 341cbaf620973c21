package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A store is the model of a replicated log that several nodes share. A publication is stored
// when it is committed: from then on it has its offset, survives a change of leader, and may
// be acknowledged. Loss of power removes the end of the log and starts another epoch.
type store struct {
	w       *world
	logs    map[string]*storeLog
	links   []*link
	stopped bool // the leader answers nothing
}

type storeLog struct {
	space   *space
	cur     *epoch
	last    uint64
	keys    map[hub.KeyID]storedKey
	removed map[string]uint64 // newest removed offset of a channel
}

type storedKey struct {
	x  *entry
	at time.Time
}

func newStore(w *world) *store {
	s := &store{w: w, logs: map[string]*storeLog{}}
	for _, ns := range w.names() {
		sp := w.ledger.spaces[ns]
		l := &storeLog{space: sp}
		l.reset(w.ledger.begin(sp, ns+"0"), 0)
		s.logs[ns] = l
	}
	return s
}

func (l *storeLog) reset(e *epoch, base uint64) {
	l.cur, l.last, l.keys, l.removed = e, base, map[hub.KeyID]storedKey{}, map[string]uint64{}
}

// A link is one node's connection to the store: a hub.Broker without waiting.
type link struct {
	s        *store
	name     string
	deliver  func(*hub.Message)
	next     map[string][]*entry // by namespace: stored and not delivered yet
	recent   []*entry            // delivered
	known    map[*epoch]bool     // delivered
	cut      bool                // no byte passes
	closed   bool
	requests []*request

	mu       sync.Mutex
	followed map[string]bool
}

var _ hub.Broker = (*link)(nil)

// A request is a publication on its way.
type request struct {
	link     *link
	ns       string
	p        hub.Publication
	done     func(hub.Position, error)
	x        *entry // once it is committed
	answered bool
}

func (s *store) connect(name string) *link {
	l := &link{s: s, name: name, followed: map[string]bool{}, next: map[string][]*entry{}, known: map[*epoch]bool{}}
	s.links = append(s.links, l)
	return l
}

func (x *entry) position() hub.Position {
	return hub.Position{Epoch: x.epoch.name, Offset: x.offset, Check: hub.NewCheck(x.offset, x.at)}
}

func (x *entry) message() *hub.Message {
	p := x.position()
	return &hub.Message{Channel: x.channel, Data: []byte(x.data), Time: x.at.UnixMilli(), Epoch: p.Epoch, Offset: p.Offset, Check: p.Check, Prev: x.prev}
}

// commit stores what q publishes, or finds that it is stored already.
func (s *store) commit(q *request) {
	l := s.logs[q.ns]
	id := q.p.KeyID()
	if k, ok := l.keys[id]; ok && q.p.IdempotencyKey != "" && time.Since(k.at) < l.space.window {
		q.x = k.x
		return
	}
	l.last++
	q.x = &entry{epoch: l.cur, channel: q.p.Channel, data: string(q.p.Data), offset: l.last, at: time.Now()}
	if wrong := s.w.ledger.add(q.x); wrong != "" {
		s.w.fail("%s", wrong)
	}
	if q.p.IdempotencyKey != "" {
		l.keys[id] = storedKey{q.x, q.x.at}
	}
	s.trim(l, q.p.Channel, l.space.keep)
	for _, k := range s.links {
		if k.follows(q.p.Channel) && !k.closed {
			k.next[q.ns] = append(k.next[q.ns], q.x)
		}
	}
	s.w.logf("stored %v", q.x)
}

// trim keeps the newest messages of a channel.
func (s *store) trim(l *storeLog, channel string, keep int) {
	kept := 0
	for _, x := range slices.Backward(l.cur.list) {
		if x.channel != channel || x.gone {
			continue
		}
		if kept++; kept > keep {
			x.gone = true
			l.removed[channel] = max(l.removed[channel], x.offset)
		}
	}
}

// step takes q further: to the log, then back with its acknowledgement.
func (s *store) step(r *rand.Rand, q *request) {
	k := q.link
	switch {
	case k.closed:
		k.drop(q)
	case k.cut || s.stopped:
		if r.IntN(3) == 0 { // patience ends; what is under way may arrive later
			k.answer(q, hub.Position{}, s.uncertain(q))
		}
	case q.x == nil && r.IntN(12) == 0: // lost on its way
		k.answer(q, hub.Position{}, s.uncertain(q))
		k.drop(q)
	case q.x == nil:
		s.commit(q)
		if s.w.planted(ackBeforeStore) && r.IntN(2) == 0 {
			return // it was answered when it came
		}
		if r.IntN(8) == 0 { // its acknowledgement is late
			k.answer(q, hub.Position{}, s.uncertain(q))
		}
	default:
		k.answer(q, q.x.position(), nil)
		k.drop(q)
	}
}

func (s *store) uncertain(q *request) error {
	return &hub.UncertainError{Key: q.p.IdempotencyKey, Err: hub.ErrUnavailable}
}

func (k *link) answer(q *request, at hub.Position, err error) {
	if !q.answered {
		q.answered = true
		q.done(at, err)
	}
}

func (k *link) drop(q *request) {
	k.requests = slices.DeleteFunc(k.requests, func(x *request) bool { return x == q })
}

// elect makes another server the leader: what was not committed may be lost.
func (s *store) elect(r *rand.Rand) {
	s.stopped = false
	for _, k := range s.links {
		for _, q := range slices.Clone(k.requests) {
			if q.x == nil && r.IntN(2) == 0 {
				k.drop(q)
				k.answer(q, hub.Position{}, s.uncertain(q))
			}
		}
	}
	if s.w.planted(forgetKeys) {
		for _, l := range s.logs {
			clear(l.keys)
		}
	}
}

// lose removes the newest entries of a log, as a loss of power does, and starts another epoch.
func (s *store) lose(r *rand.Rand, ns string) {
	l := s.logs[ns]
	old := l.cur
	base := uint64(r.IntN(2) * r.IntN(30))
	name := fmt.Sprintf("%s%d", ns, len(l.space.epochs))
	l.reset(s.w.ledger.begin(l.space, name), base)
	for _, k := range s.links {
		if !k.known[old] { // an epoch that is over does not start
			k.next[ns] = slices.DeleteFunc(k.next[ns], func(x *entry) bool { return x.epoch == old })
		}
		for _, q := range slices.Clone(k.requests) {
			if q.ns == ns && q.x != nil {
				k.answer(q, hub.Position{}, s.uncertain(q))
				k.drop(q)
			}
		}
	}
}

// hand delivers the next message of a namespace, or one that came before again.
func (k *link) hand(r *rand.Rand, ns string) {
	if k.closed || k.cut || k.deliver == nil {
		return
	}
	if n := len(k.recent); n > 0 && r.IntN(12) == 0 {
		k.deliver(k.recent[n-1-r.IntN(min(n, 4))].message())
		return
	}
	if len(k.next[ns]) == 0 {
		return
	}
	x := k.next[ns][0]
	k.next[ns] = k.next[ns][1:]
	if !k.follows(x.channel) {
		return
	}
	m := x.message()
	if x.gone { // nothing is left to deliver
		k.s.w.missed = true
		// Prev says so if the next one is of the channel. A message of another channel in between
		// would take a stream of both past what is missing, see docs/design/simulation.md.
		next := len(k.next[ns]) > 0 && k.next[ns][0].epoch == x.epoch && k.next[ns][0].channel == x.channel && !k.next[ns][0].gone
		if next && r.IntN(2) == 0 {
			return
		}
		m = &hub.Message{Channel: x.channel, Epoch: x.epoch.name, Offset: x.offset, Missing: true}
	} else {
		k.recent = append(k.recent, x)
		k.known[x.epoch] = true
	}
	k.s.w.logf("%s delivers %v, missing %v", k.name, x, m.Missing)
	k.deliver(m)
}

// Start implements hub.Broker.
func (k *link) Start(_ context.Context, _ []hub.Namespace, deliver func(*hub.Message)) error {
	k.deliver = deliver
	return nil
}

// maxRequests bounds the publications of a node that are under way.
const maxRequests = 40

// Publish implements hub.Broker.
func (k *link) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	switch {
	case k.closed:
		done(hub.Position{}, hub.ErrClosed)
		return
	case len(k.requests) >= maxRequests:
		done(hub.Position{}, hub.ErrOverloaded)
		return
	}
	q := &request{link: k, ns: ns.Name, p: p, done: done}
	k.requests = append(k.requests, q)
	if k.s.w.planted(ackBeforeStore) {
		l := k.s.logs[ns.Name]
		k.answer(q, hub.Position{Epoch: l.cur.name, Offset: l.last + 1}, nil)
	}
}

// channel returns what is retained of a channel.
func (l *storeLog) channel(name string) (kept []*entry) {
	for _, x := range l.cur.list {
		if x.channel == name && !x.gone {
			kept = append(kept, x)
		}
	}
	return kept
}

func (l *storeLog) top() hub.Position { return hub.Position{Epoch: l.cur.name, Offset: l.last} }

func messages(list []*entry) (out []*hub.Message) {
	for _, x := range list {
		out = append(out, x.message())
	}
	return out
}

// Subscribe implements hub.Broker.
func (k *link) Subscribe(_ context.Context, ns *hub.Namespace, channel string, tail int) (hub.Snapshot, error) {
	l := k.s.logs[ns.Name]
	kept := l.channel(channel)
	from := max(0, len(kept)-tail)
	snap := hub.Snapshot{Top: l.top(), Messages: messages(kept[from:]), FirstRetained: l.removed[channel] + 1}
	if from > 0 {
		snap.Floor = kept[from-1].offset
	}
	k.mu.Lock()
	k.followed[channel] = true
	k.mu.Unlock()
	return snap, nil
}

func (k *link) follows(channel string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.followed[channel]
}

// Unsubscribe implements hub.Broker.
func (k *link) Unsubscribe(_ *hub.Namespace, channel string) {
	k.mu.Lock()
	delete(k.followed, channel)
	k.mu.Unlock()
}

// History implements hub.Broker.
func (k *link) History(_ context.Context, ns *hub.Namespace, channel string, since uint64, limit int) (hub.Page, error) {
	l := k.s.logs[ns.Name]
	page := hub.Page{Epoch: l.cur.name, Covered: l.last, FirstRetained: l.removed[channel] + 1}
	var list []*entry
	for _, x := range l.channel(channel) {
		if x.offset > since {
			list = append(list, x)
		}
	}
	if n := min(limit, k.s.w.setup.page); n < len(list) {
		list = list[:n]
		page.Covered = list[n-1].offset
	}
	page.Messages = messages(list)
	return page, nil
}

// Prove implements hub.Broker.
func (k *link) Prove(_ context.Context, ns *hub.Namespace, p hub.Position) (hub.Check, error) {
	l := k.s.logs[ns.Name]
	if p.Epoch != l.cur.name || p.Offset > l.last {
		return 0, nil
	}
	x := l.cur.find(p.Offset)
	if x == nil || x.gone {
		return p.Check, nil
	}
	return x.position().Check, nil
}

// Top implements hub.Broker.
func (k *link) Top(_ context.Context, ns *hub.Namespace) (hub.Position, error) {
	return k.s.logs[ns.Name].top(), nil
}

// Ready implements hub.Broker.
func (k *link) Ready() error { return nil }

// Close implements hub.Broker.
func (k *link) Close() error {
	k.closed = true
	for _, q := range slices.Clone(k.requests) {
		k.answer(q, hub.Position{}, k.s.uncertain(q))
	}
	k.requests = nil
	k.s.links = slices.DeleteFunc(k.s.links, func(x *link) bool { return x == k })
	return nil
}
