// Package nats is a hub.Broker on NATS JetStream: on a server inside this
// process with its files in a directory, or on NATS servers elsewhere.
//
// A durable namespace is one stream. Its RePublish sends every message on after
// it is stored, with its sequence and the previous sequence of its subject, and
// this package listens to that with plain subscriptions on just the channels
// that are subscribed here. All of a namespace's subscriptions feed one Go
// channel read by one goroutine, so messages come in the order of the log.
//
// What a plain subscription may lose is found and fetched from the stream before
// anything later is delivered: after a reconnect, after the client's queue was
// full, after a replicated stream changed its leader, and when a message names a
// predecessor that was not seen. Where servers lose something among themselves
// without any of these signs, a check of the quiet channels every few seconds
// finds it; such a message is the only one that may come after a later one of
// another channel.
//
// A namespace can be subscribed as a whole: one subscription more, whose messages
// are contiguous in the log but for what was removed, so that every hole shows with
// the message after it. What is subscribed twice that way is delivered once.
//
// Lookup finds messages by their publishers' ids in an index that this node makes
// when it is asked for the first time. Remove leaves a mark in the log by which all
// nodes know that something is missing. The Bus is plain messages between nodes.
package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var (
	_ hub.Broker  = (*Broker)(nil)
	_ hub.Opener  = (*Broker)(nil)
	_ hub.Resumer = (*Broker)(nil)
)

// Broker is a hub.Broker on NATS. The zero value is not usable: see New.
type Broker struct {
	connection
	streams
	bus *bus // fixed by New

	// Fixed by Start, before state says that it started.
	server *embedded  // nil with an external NATS
	marks  *highWater // nil with an external NATS; keep's, then Close's
	out    *outbox
	room   *room // nil with an external NATS

	deliver func(*hub.Message) // Start's

	// Written by Start and Add.
	outside atomic.Pointer[outsideMarks] // nil with a server in this process, and without logs
	pulse   atomic.Pointer[pulse]        // nil without a cluster of external servers
	// changes lets one Add or Change run at a time; marking requests the marks from keep.
	changes sync.Mutex
	marking chan chan<- error
	onKeeps chan func()
	// suspended says that another process has the directory, see Suspend.
	suspended atomic.Bool

	retriedReads atomic.Uint64 // reads made again because no replica answered, or no server served the log
	serversLeft  atomic.Uint64 // servers left because they seemed to be cut off
	opened       atomic.Int64  // see Opened, in Unix milliseconds; 0 for the zero Time
	// bridgedPublishes counts the times that a publish was kept to be sent again.
	bridgedPublishes atomic.Uint64
	leadAtStart      atomic.Bool // see Promote

	wg sync.WaitGroup

	mu       sync.Mutex // serialises Start and Close
	starting bool
	// waitStarted and waitLogged are for what is logged while Start waits.
	waitStarted, waitLogged time.Time
	started                 bool
}

// streams are those of all namespaces.
type streams struct {
	byName atomic.Pointer[map[string]*stream] // replaced, not changed
}

// A connection is the one to the NATS servers, and the requests on it.
type connection struct {
	// Fixed by New.
	cfg  Config
	log  *slog.Logger
	ctx  context.Context // ends with Close; bounds all goroutines
	stop context.CancelFunc
	// how long reads wait for the next connection: reconnectPatience, but in tests of other things
	patience time.Duration
	// fewKeys, but in tests
	fewKeys uint64
	// handed are the keys that another process has sent, by log, until newStream.
	handed map[string]*handedKeys

	// Fixed by Start, before state says that it started.
	nc    *natsgo.Conn
	reads *reads

	// Written by its callbacks.
	generation atomic.Uint64 // counts the connections made, before each is used
	connected  atomic.Bool
	link       atomic.Pointer[link]
	departures departures
	socket     atomic.Pointer[net.Conn] // of the last connection to an external server
	elections  elections
	denials    sync.Map // subjects that may not be published to, of the account's permissions

	state atomic.Pointer[error] // why nothing works; points to nil while started
}

var errNotStarted = fmt.Errorf("%w: not started", hub.ErrUnavailable)

// New returns a broker that is not started. log may be nil.
func New(cfg Config, log *slog.Logger) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Broker{
		connection: connection{cfg: cfg.withDefaults(), log: log, patience: reconnectPatience, fewKeys: fewKeys},
		marking:    make(chan chan<- error), onKeeps: make(chan func()),
	}
	b.byName.Store(&map[string]*stream{})
	b.bus = newBus(b)
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.setState(errNotStarted)
	return b, nil
}

func (b *connection) setState(err error) { b.state.Store(&err) }

// waitLogEvery is how often it is logged what Start waits for.
const waitLogEvery = 10 * time.Second

// waits makes err what Ready reports while Start waits, and logs it now and then. Add waits
// as well, without that.
func (b *Broker) waits(what string, err error) {
	if was := b.stateErr(); was != nil && !errors.Is(was, hub.ErrClosed) { // not for a namespace that is added: the others work
		b.setState(fmt.Errorf("%w: starting, %s: %w", hub.ErrUnavailable, what, err))
	}
	if now := time.Now(); now.Sub(b.waitLogged) >= waitLogEvery {
		b.waitLogged = now
		b.log.Warn("waiting for NATS", "for", what, "url", b.cfg.URL, "err", err, "since", now.Sub(b.waitStarted).Round(time.Second))
	}
}

// retryAfter is how long to wait before the next try, after n of them: 0.1 to 1 s.
func retryAfter(n int) time.Duration  { return min(retryEvery<<min(n/4, 4), time.Second) }
func (b *connection) stateErr() error { return *b.state.Load() }

// Start starts the embedded server or connects to the external one, creates or
// adjusts the streams and begins delivery. It waits for servers and clusters
// that are not ready yet as long as ctx lasts.
func (b *Broker) Start(ctx context.Context, namespaces []hub.Namespace, deliver func(*hub.Message)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.stateErr(); errors.Is(err, hub.ErrClosed) {
		return err
	}
	if b.starting {
		return errors.New("start nats broker: it was started already")
	}
	if err := b.cfg.check(namespaces); err != nil {
		return fmt.Errorf("start nats broker: %w", err)
	}
	b.starting, b.waitStarted = true, time.Now()
	if b.cfg.URL == "" && b.cfg.Cluster.Name == "" {
		b.opened.CompareAndSwap(0, b.waitStarted.UnixMilli())
	}
	if err := b.start(ctx, namespaces, deliver); err != nil {
		return errors.Join(fmt.Errorf("start nats broker: %w", err), b.shut())
	}
	b.setState(nil)
	return nil
}

func (b *Broker) start(ctx context.Context, namespaces []hub.Namespace, deliver func(*hub.Message)) (err error) {
	if b.cfg.URL == "" {
		if err := b.startServer(ctx, namespaces); err != nil {
			return err
		}
	}
	b.out, b.reads = newOutbox(b), newReads(b)
	if err := b.connect(ctx); err != nil {
		return err
	}
	if err := errors.Join(b.out.listen(), b.reads.listen()); err != nil {
		return err
	}
	if err := b.prepareMarks(ctx, namespaces); err != nil {
		return err
	}
	b.deliver = deliver
	for _, n := range namespaces {
		s, err := b.newLog(ctx, n)
		if err != nil {
			return err
		}
		b.include(s)
	}
	if o := b.outside.Load(); o != nil {
		o.create(ctx)
	}
	if !b.room.readOnly() {
		if err := b.mark(false); err != nil {
			return err
		}
	}
	for _, s := range b.all() {
		if err := s.listen(); err != nil {
			return err
		}
		b.wg.Go(s.run)
	}
	if err := errors.Join(b.startPulse(), listenForSites(b)); err != nil {
		return err
	}
	if o := b.outside.Load(); o != nil {
		b.wg.Go(o.run)
	}
	b.wg.Go(b.out.send)
	b.wg.Go(b.bus.send)
	b.wg.Go(b.bus.dispatch)
	b.wg.Go(b.keep)
	b.wg.Go(b.watchStorage)
	if b.server != nil && b.cfg.Cluster.Name != "" {
		b.wg.Go(func() { watchRoutes(b) })
	}
	b.started = true
	return nil
}

// newLog makes the stream of a namespace and its log. Marks of logs were prepared before.
func (b *Broker) newLog(ctx context.Context, n hub.Namespace) (*stream, error) {
	s := newStream(b, n.WithDefaults(), b.deliver)
	if !s.durable() {
		return s, nil
	}
	return s, s.prepare(ctx)
}

// all are the streams by namespace; they must not be changed.
func (b *streams) all() map[string]*stream { return *b.byName.Load() }

// include adds a stream to all.
func (b *streams) include(s *stream) {
	more := maps.Clone(b.all())
	more[s.opts.Load().LogName()] = s
	b.byName.Store(&more)
}

// startPulse looks whether the server is cut off, from the first replicated log on.
func (b *Broker) startPulse() error {
	if b.pulse.Load() != nil {
		return nil
	}
	p := newPulse(b)
	if p == nil {
		return nil
	}
	if err := p.listen(); err != nil {
		return err
	}
	b.pulse.Store(p)
	b.wg.Go(p.run)
	return nil
}

// startServer starts the embedded server. It waits for space for files that it cannot
// do without; with those it also starts on a full disk, and only reads.
func (b *Broker) startServer(ctx context.Context, namespaces []hub.Namespace) (err error) {
	for n := 0; ; n++ {
		if b.server, err = startEmbedded(b.cfg, namespaces, b.log); err == nil {
			break
		}
		if d, derr := spaceOf(b.cfg.Dir); !notWritable(err) && (derr != nil || !d.full) {
			return err
		}
		b.waits("space in the data directory", err)
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(retryAfter(n)):
		}
	}
	if b.marks, err = openHighWater(b.cfg.Dir); err != nil {
		return err
	}
	if b.room, err = newRoom(b.cfg); err != nil {
		return err
	}
	b.room.report(time.Now(), b.log)
	return nil
}

// keepEvery is how often timeouts, the disk and the high-water marks are looked at.
const (
	keepEvery = 100 * time.Millisecond
	markEvery = time.Second
)

// keep does what time alone brings.
func (b *Broker) keep() {
	t := time.NewTicker(keepEvery)
	defer t.Stop()
	marked := time.Now()
	for {
		var kick <-chan struct{}
		var reopened <-chan error
		if b.room != nil {
			kick, reopened = b.room.kick, b.room.reopened
		}
		select {
		case <-b.ctx.Done():
			return
		case err := <-reopened:
			b.reopenedWith(err)
		case done := <-b.marking:
			err := error(nil)
			if !b.room.readOnly() {
				err = b.mark(false)
			}
			done <- err
			continue
		case f := <-b.onKeeps:
			f()
			continue
		case <-kick:
		case <-t.C:
		}
		now := time.Now()
		b.out.expire(now)
		if b.suspended.Load() {
			continue
		}
		if b.room != nil {
			b.keepRoom(now)
		}
		if now.Sub(marked) >= markEvery && !b.room.readOnly() {
			marked = now
			if err := b.mark(false); err != nil {
				b.room.doubt()
				b.log.Error("high-water marks cannot be written", "err", err)
			}
		}
	}
}

// mark writes the high-water marks of the logs.
func (b *Broker) mark(clean bool) error {
	logs := map[string]mark{}
	if b.marks != nil {
		maps.Copy(logs, b.marks.last.Logs) // also of namespaces that are not served now
	}
	for name, s := range b.all() {
		if s.durable() {
			logs[name] = s.mark()
		}
	}
	if b.marks != nil {
		return b.marks.write(logs, clean)
	}
	if o := b.outside.Load(); o != nil {
		return o.write(logs)
	}
	return nil
}

// stream returns the started stream of ns.
func (b *Broker) stream(ns *hub.Namespace) (*stream, error) {
	if err := b.stateErr(); err != nil {
		return nil, err
	}
	s := b.all()[ns.LogName()]
	if s == nil {
		return nil, fmt.Errorf("%w: %s", hub.ErrUnknownNamespace, ns.Title())
	}
	return s, nil
}

// Ready returns nil while the connection is open, every log is verified after
// the last reconnect and the disk has room. Of a partitioned namespace one log is enough.
func (b *Broker) Ready() error {
	if err := b.stateErr(); err != nil {
		return err
	}
	if b.room != nil && b.room.full() {
		return b.room.refusal()
	}
	if !b.connected.Load() {
		return errDisconnected
	}
	for _, s := range b.all() {
		if err := b.ready(s); err != nil {
			return err
		}
	}
	return nil
}

// KeepOpened has Opened return at: another process has had the directory locked since then and
// gives it to this one. Before Start only.
func (b *Broker) KeepOpened(at time.Time) { b.opened.Store(at.UnixMilli()) }

// Opened returns when Start was called on a server in this process that is not part of
// a cluster: its directory is locked.
func (b *Broker) Opened() time.Time {
	if ms := b.opened.Load(); ms != 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// Top returns the end of the namespace's log.
func (b *Broker) Top(ctx context.Context, ns *hub.Namespace) (hub.Position, error) {
	s, err := b.stream(ns)
	if err != nil || !s.durable() {
		return hub.Position{}, err
	}
	s.site.see(ctx)
	var in info
	err = b.again(ctx, func() (err error) {
		in, err = s.info(ctx)
		return err
	})
	return in.top(), err
}

// Close answers what is pending with hub.ErrClosed, ends delivery, and shuts the
// embedded server down last. When it returns, deliver is not running and will
// not be called again; the same is true of the bus's listeners. Do not call it
// from either.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.stateErr(), hub.ErrClosed) {
		return nil
	}
	return b.shut()
}

// recount counts the logs for their last marks, as far as a second allows. It reads, so
// it comes before the context of reads ends.
func (b *streams) recount() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, s := range b.all() {
		if !s.durable() {
			continue
		}
		if in, err := s.look(ctx); err == nil {
			s.seen(in)
		}
	}
}

// writeLastMarks sends the last marks to external servers.
func (b *Broker) writeLastMarks() {
	if b.server != nil {
		return // its file is written when it has ended
	}
	err := b.mark(true)
	if o := b.outside.Load(); err == nil && o != nil {
		err = o.settle()
	}
	if err != nil {
		b.log.Warn("high-water marks cannot be written", "err", err)
	}
}

// shut undoes start, or as much of it as was done. b.mu is held.
func (b *Broker) shut() error {
	closed := fmt.Errorf("nats broker: %w", hub.ErrClosed)
	b.setState(closed)
	if b.out != nil {
		b.out.close(closed)
	}
	if b.started && b.connected.Load() {
		b.recount()
	}
	b.bus.mu.Lock() // a listener is added before this, or not at all
	b.stop()
	b.bus.mu.Unlock()
	b.wg.Wait()
	if b.started && b.connected.Load() {
		b.writeLastMarks()
	}
	if b.nc != nil {
		b.nc.Close()
	}
	if b.reads != nil {
		b.reads.fail(closed)
	}
	if b.server == nil {
		return nil
	}
	var err error
	if b.suspended.Load() {
		return b.server.lock.Close()
	}
	if b.server.stopServer() && b.started {
		if err = b.mark(true); notWritable(err) { // it started without, and can again
			b.log.Warn("high-water marks cannot be written", "err", err)
			err = nil
		}
	}
	return errors.Join(err, b.server.lock.Close())
}
