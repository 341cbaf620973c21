package app

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// An arrival is a connection from the old process, understood and not touched yet.
type arrival struct {
	number int   // by which the old process knows it
	fd     int32 // a descriptor of the process, or socket's
	socket int   // its number among those that came before the pause, plus 1; 0: it did not
	conn   *eventloop.Moving
	filter eventloop.Filter      // nil: it is not over TLS
	opened func(*eventloop.Conn) // Restore's, of filter
	open   h2.Open               // makes its handler
	// companions are the connections that come with it, of tunnels.
	companions []*arrivingSocket
}

// An arrivingSocket is the socket of a connection that comes with another one.
type arrivingSocket struct {
	fd     int32 // a descriptor of the process, or socket's
	socket int   // arrival's
	used   bool  // it became a connection, or is closed
}

// A succession is one takeover, on the new side.
type succession struct {
	app    *App
	parent *takeover.Parent
	// received is how many connections came, lists those of them that wait for arrive, by loop.
	received int
	lists    [][]arrival
	placed   bool // the descriptors in lists are sockets of the loops
	// sockets came before the pause, in the order of their numbers. What becomes a connection
	// is no longer there.
	sockets []socketAhead
}

// A socketAhead is a socket of a connection of the old process, which is served there; loop is nil if there is none.
type socketAhead struct {
	loop *eventloop.Loop
	fd   int32
	// claimed is 1 when a state names it. Atomic: several goroutines read states.
	claimed uint32
}

// logOutside reports whether the log is in no process of this node.
func (a *App) logOutside() bool { return a.nats != nil && a.cfg.Broker.NATS.URL != "" }

// logPlace identifies the log: an upgrade continues with the same.
func (a *App) logPlace() string {
	switch {
	case a.nats == nil:
		return "memory"
	case a.logOutside():
		return a.cfg.Broker.NATS.URL
	}
	return a.cfg.Broker.NATS.Dir
}

// takeLog is the first part of a takeover, for a log that lives in the process: it is had
// before the broker starts.
func (s *succession) takeLog() error {
	if s.parent == nil || s.app.logOutside() {
		return nil
	}
	if err := s.prepared(false); err != nil {
		return err
	}
	return s.receiveLog()
}

// otherFiles is room for descriptors that are no connections.
const otherFiles = 1024

// prepared reports that everything is built, and makes room for the descriptors that follow
// while clients wait.
func (s *succession) prepared(outside bool) error {
	s.app.awaitNames(context.Background())
	s.app.upgrade.collect = collectLater()
	sys.ReserveDescriptors(s.parent.Conns + otherFiles)
	return s.parent.SendPrepared(outside, s.app.logPlace())
}

// takeOver has this process, which has built and started everything and serves no client yet,
// take the connections of the old one. After an error the old one serves on.
func (s *succession) takeOver(parts *group) (err error) {
	a, p := s.app, s.parent
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if a.logOutside() {
		if err = s.prepared(true); err != nil {
			return err
		}
		if err = s.receiveLog(); err != nil {
			return err
		}
	}
	began := time.Now()
	refused, err := s.receive()
	if err != nil {
		return err
	}
	if err = p.SendReady(refused); err != nil {
		return err
	}
	if err = p.AwaitCommit(); err != nil {
		return err
	}
	n := s.arrive()
	a.loops.ResumeAccepting()
	a.upgrade.counts.Paused.Store(int64(time.Since(began)))
	a.upgrade.counts.Refused.Add(uint64(len(refused)))
	if err = p.Send(takeover.Serving, nil); err != nil {
		a.log.Warn("the old process has ended before its drain", "err", err)
		err = nil
	}
	s.discardSockets()
	a.upgrade.state.Store(&admin.Upgrade{Step: "done", PID: os.Getpid(), From: p.Peer.Build, To: a.opt.Version, Moved: n, Refused: len(refused), PauseSeconds: time.Since(began).Seconds()})
	a.log.Info("took over", "from_pid", p.Peer.PID, "from_version", p.Peer.Build, "connections", n, "refused", len(refused))
	parts.run(func() error { s.follow(); return nil })
	return nil
}

// afterFirstTurn calls start, and after a takeover later, as one of parts, when clients most likely have what they waited for: what
// start does, and collecting garbage, needs the processors, too.
func afterFirstTurn(ctx context.Context, a *App, parts *group, start func() error) error {
	if a.opt.Takeover == nil {
		return start()
	}
	parts.run(func() error {
		select {
		case <-time.After(arrivalTurn):
		case <-ctx.Done():
		}
		a.upgrade.collect() // before the governor looks at how often garbage is collected
		return start()
	})
	return nil
}

// collectAfter is how long after the connections have moved the old process collects garbage again:
// what clients waited for goes out first.
const collectAfter = 500 * time.Millisecond

// collectLater puts off garbage collections until resume: nearly all that is allocated while
// clients wait, stays. The limit of memory holds all the same. What others set meanwhile stays.
// It waits for a collection under way, so it is called before clients wait.
func collectLater() (resume func()) {
	const off = -1
	was := debug.SetGCPercent(off)
	return func() {
		if now := debug.SetGCPercent(was); now != off {
			debug.SetGCPercent(now)
		}
	}
}

// add has list wait for arrive.
func (s *succession) add(list []arrival) {
	loops := len(s.app.loops.Loops())
	if s.lists == nil {
		s.lists = make([][]arrival, loops)
		for i := range s.lists {
			s.lists[i] = make([]arrival, 0, len(s.sockets)/loops+1)
		}
	}
	for i := range list {
		at := &s.lists[list[i].conn.Loop%loops]
		*at = append(*at, list[i])
	}
}

func closeFiles(fds []int) {
	for _, fd := range fds {
		sys.Close(fd)
	}
}

// onLoops calls f on each loop with what is to arrive there, and waits.
func (s *succession) onLoops(f func(*eventloop.Loop, []arrival)) {
	var done sync.WaitGroup
	for i, list := range s.lists {
		if len(list) == 0 {
			continue
		}
		done.Add(1)
		l := s.app.loops.Loops()[i]
		posted := l.Post(func() {
			defer done.Done()
			f(l, list)
		})
		if !posted {
			done.Done()
		}
	}
	done.Wait()
}

// receiveAll makes the descriptors of what was received sockets of the loops, and returns the numbers of the connections for
// which there is no room.
func (s *succession) receiveAll() (refused []int) {
	for _, list := range s.lists {
		for i := range list {
			if at := list[i].socket; at > 0 {
				s.sockets[at-1] = socketAhead{}
			}
			for _, x := range list[i].companions {
				if x.socket > 0 {
					s.sockets[x.socket-1] = socketAhead{}
				}
			}
		}
	}
	s.placed = true
	s.onLoops(s.receiveFiles)
	for i, list := range s.lists {
		s.lists[i] = slices.DeleteFunc(list, func(x arrival) bool {
			if x.fd >= 0 {
				return false
			}
			refused = append(refused, x.number)
			return true
		})
	}
	return refused
}

// arrive makes what was received, and has sockets of the loops, this process's, and returns how many
// connections there are.
func (s *succession) arrive() int {
	var n atomic.Int64
	s.onLoops(func(l *eventloop.Loop, list []arrival) { n.Add(s.arriveOn(l, list)) })
	s.lists, s.placed = nil, false
	s.app.upgrade.counts.Arrived.Add(uint64(n.Load()))
	return int(n.Load())
}

// arriveOn makes list connections of l, and returns how many there are.
func (s *succession) arriveOn(l *eventloop.Loop, list []arrival) (arrived int64) {
	for i := range list {
		x := &list[i]
		err := l.Arrive(x.fd, x.conn, x.filter, func(c *eventloop.Conn) (eventloop.Handler, error) {
			s.app.admission.arrived(c)
			if x.opened != nil {
				x.opened(c)
			}
			return x.open(c)
		})
		for _, y := range x.companions {
			if !y.used {
				l.Discard(y.fd)
			}
		}
		if err != nil {
			s.app.log.Warn("a connection of the old process is closed", "err", err)
			continue
		}
		arrived++
	}
	return arrived
}

// receiveFiles makes the descriptors of list sockets of l. A connection of which one is not there any more has a
// negative one, and its others are closed.
func (s *succession) receiveFiles(l *eventloop.Loop, list []arrival) {
	var fds []int32
	var places []*int32 // of fds
	add := func(fd *int32, socket int) {
		if socket == 0 {
			fds, places = append(fds, *fd), append(places, fd)
		}
	}
	for i := range list {
		add(&list[i].fd, list[i].socket)
		for _, y := range list[i].companions {
			add(&y.fd, y.socket)
		}
	}
	n, err := l.Receive(fds)
	if err != nil {
		s.app.log.Warn("sockets of the old process are not taken", "sockets", len(fds)-n, "err", err)
	}
	for i, at := range places {
		if *at = fds[i]; i >= n {
			*at = -1
		}
	}
	for i := range list {
		x := &list[i]
		if x.whole() {
			continue
		}
		if x.fd >= 0 {
			l.Discard(x.fd)
			x.fd = -1
		}
		for _, y := range x.companions {
			if y.fd >= 0 {
				l.Discard(y.fd)
			}
		}
	}
}

// discardAll closes the sockets of what does not arrive on l.
func discardAll(l *eventloop.Loop, list []arrival) {
	for i := range list {
		l.Discard(list[i].fd)
		for _, y := range list[i].companions {
			l.Discard(y.fd)
		}
	}
}

// whole reports whether all sockets of x are there.
func (x *arrival) whole() bool {
	return x.fd >= 0 && !slices.ContainsFunc(x.companions, func(y *arrivingSocket) bool { return y.fd < 0 })
}

// follow takes connections as they become idle in the old process, until it ends.
func (s *succession) follow() {
	defer s.parent.Close()
	var refused []int
	for {
		t, records, err := s.parent.ReceiveConns()
		switch {
		case err != nil, t == takeover.Done:
		case t == takeover.Frozen:
			err = s.settleFollowing(append(refused, s.receiveAll()...))
			refused = nil
		default:
			f := s.frame(records)
			f.understand(s.reader(), records)
			if s.parent.Peer.Version >= takeover.VersionFollowReady {
				refused = append(refused, s.addFrame(f)...)
				continue
			}
			for _, err := range f.refused { // the old process has forgotten them
				s.app.log.Warn("a connection of the old process is closed", "err", err)
			}
			s.add(f.list)
			s.receiveAll()
			s.arrive()
		}
		if err != nil || t == takeover.Done {
			s.close()
			s.app.service.notified(s.app.opt.Service.Ready(s.app.service.status()))
			return
		}
	}
}

// settleFollowing answers which of the connections that followed stay with the old process, and has the others
// arrive when that has forgotten their keys.
func (s *succession) settleFollowing(refused []int) error {
	if err := s.parent.SendReady(refused); err != nil {
		return err
	}
	if err := s.parent.AwaitCommit(); err != nil {
		return err
	}
	s.app.upgrade.counts.Refused.Add(uint64(len(refused)))
	s.arrive()
	return nil
}

// close gives up what was received: the old process has all of it still.
func (s *succession) close() {
	if s.placed {
		s.onLoops(discardAll)
		s.lists, s.placed = nil, false
	}
	for _, list := range s.lists {
		for i := range list {
			if list[i].socket == 0 {
				sys.Close(int(list[i].fd))
			}
			for _, y := range list[i].companions {
				if y.socket == 0 {
					sys.Close(int(y.fd))
				}
			}
		}
	}
	s.lists = nil
	s.discardSockets()
}

// sendLogAhead sends what the memory broker holds while it serves on, so that the pause does not
// depend on how much that is.
func (h *handover) sendLogAhead() (*memory.Ahead, error) {
	c := h.child
	if c.Peer.Version < takeover.VersionLogAhead {
		return nil, nil //nolint:nilnil // nothing is there yet
	}
	c.SetDeadline(time.Now().Add(prepareTime))
	return h.app.memory.ExportAhead(func(piece []byte) error { return c.Send(takeover.Log, piece) })
}

// sendKeysAhead sends the idempotency keys of the embedded server's logs, which that process need not read then.
func (h *handover) sendKeysAhead() (*nats.KeysAhead, error) {
	c := h.child
	if c.Peer.Version < takeover.VersionKeysAhead {
		return nil, nil //nolint:nilnil // it reads them
	}
	c.SetDeadline(time.Now().Add(prepareTime))
	ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
	defer cancel()
	return nats.ExportKeys(ctx, h.app.nats, func(piece []byte) error { return c.Send(takeover.Keys, piece) })
}

// sendLog gives the new process the log, if it lives in this one. restore has this process
// have it again.
func (h *handover) sendLog() (restore func() error, err error) {
	a, c := h.app, h.child
	restore = func() error { return nil }
	switch {
	case a.memory != nil:
		back := a.revocations.move()
		restore = func() error {
			back()
			if h.committed { // the new process may have stored messages that ended with it
				return a.memory.Renew()
			}
			return a.memory.Resume()
		}
		if c.Peer.Version >= takeover.VersionRevoked {
			err = a.revocations.export(func(piece []byte) error { return c.Send(takeover.Revoked, piece) })
		}
		if err == nil {
			err = a.memory.Export(h.ahead, func(piece []byte) error { return c.Send(takeover.Log, piece) })
		}
	case !a.logOutside():
		restore = a.nats.Resume
		if err = c.SendOpened(a.nats.Opened()); err == nil {
			err = a.nats.Suspend(h.keys)
		}
	}
	if err != nil {
		return restore, fmt.Errorf("hand the log over: %w", err)
	}
	return restore, c.Send(takeover.LogEnd, nil)
}

// receiveLog waits for the log of the old process.
func (s *succession) receiveLog() error {
	a := s.app
	const worth = 64 << 20 // bytes of garbage
	size := 0
	return s.parent.ReceiveLog(func(kind takeover.Type, piece []byte, files []int) error {
		switch {
		case kind == takeover.Sockets:
			return s.receiveSockets(piece, files)
		case kind == takeover.Revoked:
			return a.revocations.moved(piece)
		case a.logOutside():
			return nil
		case kind == takeover.Keys:
			return nats.ImportKeys(a.nats, piece)
		case a.memory != nil:
			if size += len(piece); size > worth { // most of the log comes before the pause
				size = 0
				runtime.GC()
			}
			return a.memory.Import(piece)
		}
		opened, err := takeover.ReadOpened(piece)
		if err == nil {
			a.nats.KeepOpened(opened)
		}
		return err
	})
}

// loop is where a connection of the old process's loop of that number belongs.
func (s *succession) loop(number int) *eventloop.Loop {
	loops := s.app.loops.Loops()
	return loops[max(number, 0)%len(loops)]
}

// receiveSockets puts sockets, whose connections the old process serves meanwhile, where they belong. One for which there
// is no room stays with the old process, as its state finds none.
func (s *succession) receiveSockets(piece []byte, files []int) error {
	number, err := takeover.ReadSockets(piece)
	if err != nil {
		closeFiles(files)
		return err
	}
	if len(s.sockets) == 0 {
		conns := min(s.parent.Conns, s.app.loops.MaxConns())
		s.sockets = make([]socketAhead, 0, conns)
		warmHeap(conns)
	}
	l := s.loop(number)
	fds := make([]int32, len(files))
	for i, fd := range files {
		fds[i] = int32(fd)
	}
	received := make(chan int, 1)
	posted := l.Post(func() {
		n, err := l.Receive(fds)
		if err != nil {
			s.app.log.Warn("sockets of the old process are not taken", "sockets", len(fds)-n, "err", err)
		}
		received <- n
	})
	if !posted {
		closeFiles(files)
		return eventloop.ErrStopped
	}
	n := <-received
	for i, fd := range fds {
		at := socketAhead{fd: fd}
		if i < n {
			at.loop = l
		}
		s.sockets = append(s.sockets, at)
	}
	return nil
}

// warmHeap leaves memory for conns connections in the heap, so that none is fetched from the kernel while
// clients wait. It collects garbage.
func warmHeap(conns int) {
	const (
		each  = 3 << 10 // bytes of a connection with its state
		block = 8 << 10
		most  = 64 << 20
	)
	fill := func() {
		blocks := make([][]byte, min(conns*each, most)/block)
		for i := range blocks {
			blocks[i] = make([]byte, block)
			for at := 0; at < block; at += 4 << 10 {
				blocks[i][at] = 1 // or the kernel has not given it
			}
		}
		runtime.KeepAlive(blocks)
	}
	fill()
	runtime.GC()
}

// discardSockets closes what came before the pause and became no connection here.
func (s *succession) discardSockets() {
	for _, x := range s.sockets {
		if x.loop != nil {
			x.loop.Post(func() { x.loop.Discard(x.fd) })
		}
	}
	s.sockets = nil
}

// endTakeover ends the link to the old process when ctx is done.
func (a *App) endTakeover(ctx context.Context) (stop func()) {
	if a.opt.Takeover == nil {
		return func() {}
	}
	after := context.AfterFunc(ctx, a.opt.Takeover.Close)
	return func() { after() }
}
