package simulate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

const linger = 5 * time.Second

// maxPiece bounds the messages of a channel in one piece of history: a ring or a page.
const maxPiece = 8

// A setup is what a schedule runs on; it follows from the seed.
type setup struct {
	memory   bool // one node with the memory broker, else nodes on a store
	nodes    int
	loops    int
	keep     int // messages retained per channel
	ring     int // recent messages of a channel in memory
	page     int // messages of a page of history
	queue    int // messages that wait for a slow client
	recent   int64
	policies map[string]hub.Policy
}

func newSetup(seed uint64) setup {
	r := rand.New(rand.NewPCG(seed, 3))
	policies := []hub.Policy{hub.Disconnect, hub.DropOldest}
	return setup{
		memory: r.IntN(3) == 0, nodes: 1 + r.IntN(3), loops: 1 + r.IntN(2), keep: 3 + r.IntN(25), ring: 1 + r.IntN(maxPiece),
		page: 1 + r.IntN(6), queue: 3 + r.IntN(12), recent: int64(r.IntN(2) * (1 + r.IntN(5000))),
		policies: map[string]hub.Policy{"default": policies[r.IntN(2)], "o": policies[r.IntN(2)]},
	}
}

const (
	historyTTL = 10 * time.Minute
	keyWindow  = 2 * time.Minute
)

// namespaces are the hub's. unbounded leaves the backlogs without their bound.
func (s *setup) namespaces(unbounded bool) (list []hub.Namespace) {
	queue := s.queue
	if unbounded {
		queue = 100_000
	}
	for _, name := range []string{"default", "o"} {
		list = append(list, hub.Namespace{
			Name: name, HistorySize: s.keep, HistoryTTL: hub.Duration(historyTTL), IdempotencyWindow: hub.Duration(keyWindow), Recent: s.ring,
			MaxMessageBytes: 256, QueueMessages: queue, QueueBytes: 64 << 10, Policy: s.policies[name], Anonymous: true,
		})
	}
	return list
}

func (s *setup) policy(namespace string) hub.Policy { return s.policies[namespace] }

// A world is one run of a schedule.
type world struct {
	setup  setup
	plant  plant
	shared *shared
	ledger *ledger
	store  *store // nil with the memory broker

	nodes   []*node
	clients []*client
	pubs    []*publication
	booted  int

	missed  bool           // messages were removed before they were delivered
	gaps    map[string]int // gap events by reason
	acked   int
	done    [numKinds]int // operations that did something
	tracing bool
	trace   []string
	began   time.Time
	step    int

	mu        sync.Mutex
	violation string
}

func newWorld(seed uint64, p plant, sh *shared) *world {
	w := &world{setup: newSetup(seed), plant: p, shared: sh, ledger: newLedger(), gaps: map[string]int{}, began: time.Now()}
	for _, ns := range w.names() {
		s := &space{name: ns, keep: w.setup.keep, window: keyWindow}
		if w.setup.memory {
			s.ttl = historyTTL
		}
		w.ledger.spaces[ns] = s
	}
	if w.setup.memory {
		w.setup.nodes = 1
	} else {
		w.store = newStore(w)
	}
	return w
}

func (w *world) names() []string { return []string{"default", "o"} }

var channels = []string{"a", "b", "c", "o:x", "o:y"}

func (w *world) planted(p plant) bool { return w.plant == p }

// fail keeps the first violation. Any goroutine.
func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.violation != ""
}

// logf adds to the trace. Only the goroutine of the schedule may call it.
func (w *world) logf(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%3d %9.3fs  ", w.step, time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
	}
}

// wait lets everything run that can, timers of this instant included.
func (w *world) wait() {
	time.Sleep(time.Microsecond)
	synctest.Wait()
}

// settle lets everything run and has the clients read what has arrived.
func (w *world) settle() {
	w.wait()
	for _, c := range w.clients {
		c.receive()
	}
}

// learn notes the epochs of a node's own log.
func (w *world) learn(n *node) {
	if n.memory == nil {
		return
	}
	for _, ns := range w.names() {
		top, err := n.memory.Top(n.w.background(), &hub.Namespace{Name: ns})
		if err != nil {
			w.fail("%s: top of %s: %v", n.name, ns, err)
			return
		}
		w.ledger.begin(w.ledger.spaces[ns], top.Epoch)
	}
}

// named returns the entry with these data at one of the positions of id, or nil.
func (w *world) named(id, data string) *entry {
	ps, err := hub.ParsePositions(id)
	if err != nil {
		return nil
	}
	for _, p := range ps {
		if e := w.ledger.epochs[p.Epoch]; e != nil {
			if x := e.find(p.Offset); x != nil && x.data == data {
				return x
			}
		}
	}
	return nil
}

// place writes positions with the labels of their epochs, which are the same in every run.
func (w *world) place(id string) string {
	ps, err := hub.ParsePositions(id)
	if err != nil {
		return strconv.Quote(id)
	}
	var parts []string
	for _, p := range ps {
		label := "?"
		if e := w.ledger.epochs[p.Epoch]; e != nil {
			label = e.label()
		}
		parts = append(parts, label+"-"+itoa(p.Offset))
	}
	return strings.Join(parts, "~")
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

// A publication is one that its publisher publishes again while the outcome is not known.
type publication struct {
	p     hub.Publication
	state outcome
}

type outcome uint8

const (
	waits outcome = iota
	acknowledged
	uncertain
	refused
)

// publish publishes on a node.
func (w *world) publish(n *node, x *publication) {
	x.state = waits
	w.logf("publish %s on %s by %s", x.p.Data, x.p.Channel, n.name)
	n.hub.Publish(x.p, func(at hub.Position, err error) { w.answered(x, at, err) })
}

// fresh makes a publication that was not published yet.
func (w *world) fresh(r *rand.Rand, channel string) *publication {
	data := `"m` + strconv.Itoa(len(w.pubs)) + strings.Repeat("x", r.IntN(40)) + `"`
	x := &publication{p: hub.Publication{Channel: channel, Data: []byte(data)}}
	if r.IntN(4) > 0 {
		x.p.IdempotencyKey = "k" + strconv.Itoa(len(w.pubs))
	}
	w.pubs = append(w.pubs, x)
	return x
}

// answered checks an answer to a publisher.
func (w *world) answered(x *publication, at hub.Position, err error) {
	w.logf("answered %s: %s, %v", x.p.Data, w.place(at.String()), err)
	if err != nil {
		x.state = refused
		if _, ok := errors.AsType[*hub.UncertainError](err); ok {
			x.state = uncertain
		}
		return
	}
	x.state = acknowledged
	w.acked++
	e := w.ledger.epochs[at.Epoch]
	switch {
	case e == nil:
		w.fail("false acknowledgement: %s in an epoch that does not exist", x.p.Data)
	case w.store == nil: // it is stored by this answer
		if wrong := w.ledger.add(&entry{epoch: e, channel: x.p.Channel, data: string(x.p.Data), offset: at.Offset, at: time.Now()}); wrong != "" {
			w.fail("%s", wrong)
		}
	default:
		if y := e.find(at.Offset); y == nil || y.data != string(x.p.Data) {
			w.fail("false acknowledgement: %s at %s, where the log has %v", x.p.Data, w.place(at.String()), y)
		}
	}
}
