package poller

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Uring is the Poller on an io_uring of its own: sends are gathered and handed
// over many at a time, and accepting and receiving is requested once.
//
// Connections are direct descriptors: entries of the ring's own table, which do
// not count as descriptors of the process. The fd of Accepted is such an entry
// plus directBase; no system call but the ring's takes it, and it is closed by
// Close even when it was never added.
//
// A connection's entry in the table is closed only after every request for it
// has ended, so that no result can be treated as its successor's.
//
// The ring belongs to a thread. The first Wait locks its goroutine to its
// thread; from then on every method but Wake is for that goroutine, and Release
// unlocks it.
type Uring struct {
	// Fixed at NewUring.
	ring    *sys.Ring
	buffers *sys.Buffers
	wake    int
	files   int
	reads   bool // receive by PrepRead

	// Owned by the loop's goroutine. No lock.
	accepting
	locked  bool
	used    int // entries of the table that are taken or may be by an armed accept
	conns   uringConns
	sends   inflights
	batch   uint32 // counts submissions
	copies  copyPool
	held    heldInputs
	bulk    bulk
	orphans []orphan
	// dials are the addresses of Connect, by entry of the table, until it is over.
	dials map[uint32]*sys.Address
	// install are descriptors that Adopt puts into the table.
	install *[maxInstall]int32
	late    lates
	lending

	// Events that wait for the next dispatch.
	ready     []sys.CQE
	notes     []note
	notesNext []note // the other half of notes, swapped at dispatch
	starved   bool   // a receive found no buffer
	resting   resting
	unsent    int32
	option    int32 // the value that SetOption sets; the kernel reads it
	optionErr int32
	err       syscall.Errno
}

var _ Poller = (*Uring)(nil)

const (
	directBase = 1 << 30

	// ringEntries is how many sends leave in one system call at most. It also
	// bounds how long that call keeps the thread from a stop of the world.
	ringEntries = 128
	ringResults = 4096

	// A busy loop ends up with more buffers than it starts with: it gets twice
	// as many whenever none was left.
	bufferSize   = 8 << 10
	firstBuffers = 32
	maxBuffers   = 2048

	maxDirectFiles = 1 << 20

	// maxInstall is how many sockets a request puts into the table.
	maxInstall = 256
)

// What a result is of, in the top byte of its user data. Below it are 24 bits
// of generation and the number of the connection, send or accept.
const (
	opWake uint64 = (iota + 1) << 56
	opAccept
	opRecv
	opSend
	opHangup
	opShutdown
	opUnsent
	opOption
	opInstall
	opConnect
	opBulk
	opIgnore
	opMask uint64 = 0xff << 56
)

// uringConn is the state of an entry of the table.
type uringConn struct {
	key   Key
	send  int32  // 1 + the index of the send in flight; 0 for none
	gen   uint16 // counts the connections that had this entry
	state connState
}

// uringConns are the entries of the table, by their index there.
type uringConns []uringConn

// enter starts the life of a connection in an entry.
func (cs *uringConns) enter(idx uint32) (gen uint16) {
	for len(*cs) <= int(idx) {
		*cs = append(*cs, uringConn{})
	}
	c := &(*cs)[idx]
	*c = uringConn{gen: c.gen + 1, state: connTaken | connOpen}
	return c.gen
}

// userData names a request of a connection.
func (cs uringConns) userData(op uint64, idx uint32) uint64 {
	return op | uint64(cs[idx].gen)<<32 | uint64(idx)
}

// note makes a note about a connection.
func (cs uringConns) note(kind noteKind, idx uint32, err syscall.Errno) note {
	return note{kind: kind, idx: idx, gen: cs[idx].gen, err: err}
}

// inFlight reports what is in flight for connections that are not read from.
func (cs uringConns) inFlight() (receiving, sending bool) {
	for i := range cs {
		if c := &cs[i]; c.state&(connOpen|connAdded|connReading) == connOpen|connAdded {
			receiving = receiving || c.state&connRecv != 0
			sending = sending || c.send != 0
		}
	}
	return receiving, sending
}

// endOfStream reports that the peer sends no more.
func (c *uringConn) endOfStream(h Handler) {
	c.state = c.state&^connReading | connEOF
	h.Received(c.key, nil, 0)
}

type connState uint16

const (
	connTaken      connState = 1 << iota // the entry is in use
	connOpen                             // accepted and not yet closed by the loop
	connAdded                            // Add was called: key is valid
	connReading                          // the loop wants to receive
	connRecv                             // a receive is in flight
	connCancel                           // and being cancelled
	connHangup                           // a wait for a hang-up is in flight
	connStalled                          // Send took too little: Writable must come
	connShut                             // Shutdown waits for the send in flight
	connShutting                         // a shutdown is in flight
	connBroken                           // a send failed; the loop is notified in the next dispatch
	connHeld                             // held has input that came while not reading
	connEOF                              // the loop knows that the peer sends no more
	connReset                            // close with a reset
	connGiveUp                           // what is left of the send in flight is lost
	connConnecting                       // a connect is in flight
)

// A note is an event that is not a result.
type note struct {
	kind noteKind
	gen  uint16
	err  syscall.Errno
	idx  uint32
}

type noteKind uint8

const (
	noteBroken noteKind = iota
	noteWritable
	noteResumed
	noteFull // a listener has no room in the table
)

// NewUring opens a Poller on io_uring that has room for conns connections, or as
// many as RLIMIT_NOFILE allows when that is less; 0 means as many as it allows.
// The error says in words what the system lacks.
func NewUring(conns int) (*Uring, error) { return newUring(conns, ringEntries, ringResults) }

func newUring(conns, entries, results int) (_ *Uring, err error) {
	limit := int(min(sys.MaxFiles(), maxDirectFiles))
	if conns <= 0 || conns > limit {
		conns = limit
	}
	p := &Uring{wake: -1, files: conns, held: heldInputs{}, dials: map[uint32]*sys.Address{}, install: new([maxInstall]int32)}
	p.accepting.p, p.lending.p = p, p
	if p.ring, err = sys.OpenRing(entries, results); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Release()
		}
	}()
	if op, ok := p.ring.Supports(sys.OpPollAdd, sys.OpAccept, sys.OpAsyncCancel, sys.OpConnect, sys.OpClose,
		sys.OpFilesUpdate, sys.OpSend, sys.OpRecv, sys.OpShutdown, sys.OpSendZC); !ok {
		if op == 0 {
			return nil, errors.New("io_uring_register is refused: a seccomp filter or a security module forbids it")
		}
		return nil, fmt.Errorf("io_uring of this kernel lacks operation %d: Linux 6.0 is needed", op)
	}
	_, p.reads = p.ring.Supports(sys.OpReadMultishot)
	if err = p.ring.RegisterFiles(conns); err != nil {
		return nil, err
	}
	if p.buffers, err = sys.NewBuffers(p.ring, 0, maxBuffers, bufferSize, firstBuffers); err != nil {
		return nil, err
	}
	p.ring.LimitWorkers(2)
	if p.wake, err = sys.EventFD(); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return p, nil
}

// ProbeUring returns nil when NewUring would work, and otherwise why it would not.
func ProbeUring() error {
	p, err := tryUring()
	if err == nil {
		p.Release()
	}
	return err
}

// tryUring opens a ring and waits on it once: each of its system calls may be forbidden,
// and a loop that found out would end the process.
func tryUring() (*Uring, error) {
	p, err := NewUring(1)
	if err != nil {
		return nil, err
	}
	err = p.Wait(0, noHandler{})
	if err == nil {
		return p, nil
	}
	p.Release()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSYS) {
		err = fmt.Errorf("%w: a seccomp filter or a security module forbids it", err)
	}
	return nil, err
}

// noHandler is the Handler of a ring that has nothing to report but that it woke.
type noHandler struct{ Handler }

func (noHandler) TickStarted() {}

// PreferUring returns nil when NewUring would work and cost less than epoll: from
// Linux 6.7 on, where a waiting receive is small and buffers can be given back.
func PreferUring() error {
	p, err := tryUring()
	if err != nil {
		return err
	}
	defer p.Release()
	switch {
	case !p.ring.Deferred():
		return errors.New("io_uring works behind the loop's back before Linux 6.1")
	case !p.reads:
		return errors.New("io_uring has no multishot read before Linux 6.7")
	}
	return nil
}

// Name returns "io_uring".
func (p *Uring) Name() string { return "io_uring" }

// Wake implements Poller. The counter is never read: each write to it is an
// event for the poll that watches it.
func (p *Uring) Wake() { sys.EventFDSignal(p.wake) }

// Flush leaves it to the Wait that follows: one system call submits and collects.
func (p *Uring) Flush() {}

// start binds the ring to the calling thread and submits the first requests.
func (p *Uring) start() error {
	runtime.LockOSThread()
	p.locked = true
	if err := p.ring.Enable(); err != nil {
		return err
	}
	p.watchWake()
	for i := range p.listeners {
		p.armAccepts(i)
	}
	return nil
}

func (p *Uring) watchWake() {
	s := p.request()
	s.PrepWatch(p.wake)
	s.UserData = opWake
}

// request returns room for one request, after submitting when there is none.
func (p *Uring) request() *sys.SQE {
	for range 1000 {
		if s := p.ring.Next(); s != nil {
			return s
		}
		p.submit()
	}
	// The kernel accepts nothing more: the ring is beyond repair, and Wait says so.
	if p.err == 0 {
		p.err = sys.EAGAIN
	}
	return new(sys.SQE)
}

// publish shows the kernel the buffers that were recycled.
func (p *Uring) publish() {
	p.buffers.Publish()
	if b := p.bulk.buffers; b != nil {
		b.Publish()
	}
}

// submit passes on what was gathered. Most sends are done when it returns.
func (p *Uring) submit() {
	p.publish()
	p.batch++
	e := p.ring.Submit()
	p.collect()
	switch e {
	case 0, sys.EINTR:
	case sys.EAGAIN, sys.EBUSY: // out of memory, or of room for results: make some
		if !p.paused {
			_ = p.ring.Poll()
		}
		p.collect()
	default:
		p.err = e
	}
}

// collect takes the results there are: those of sends are dealt with at once,
// all others wait for the next dispatch. It may be entered again from sent.
func (p *Uring) collect() {
	for {
		c, ok := p.ring.Pop()
		if !ok {
			break
		}
		switch c.UserData & opMask {
		case opSend:
			p.sent(c)
		case opUnsent:
			p.unsent = c.Res
		case opOption:
			p.optionErr = c.Res
		case opInstall:
			p.installed[uint32(c.UserData)] = c.Res
			p.installing--
		case opIgnore:
		default:
			p.ready = append(p.ready, c)
		}
	}
	p.ring.Popped()
}

// Wait implements Poller.
func (p *Uring) Wait(timeout time.Duration, h Handler) error {
	if !p.locked {
		if err := p.start(); err != nil {
			return err
		}
	}
	p.paused, p.stopped = false, nil
	resendAll(p)
	addLate(p)
	p.expireOrphans()
	timeout = p.late.patience(timeout)
	if p.ring.Pending() > 0 || p.ring.Work() || timeout == 0 {
		p.publish()
		p.batch++
		p.check(p.ring.Poll())
		p.collect()
	}
	if timeout != 0 && len(p.ready) == 0 && len(p.notes) == 0 && p.err == 0 {
		timeout = p.rest(timeout)
		if len(p.orphans) > 0 && (timeout < 0 || timeout > orphanCheck) {
			timeout = orphanCheck
		}
		p.publish()
		p.check(p.ring.Wait(timeout))
		p.collect()
	}
	h.TickStarted()
	if p.err != 0 {
		return fmt.Errorf("io_uring_enter: %w", p.err)
	}
	p.dispatch(h)
	return nil
}

// check keeps an error that is none of the usual.
func (p *Uring) check(e syscall.Errno) {
	switch e {
	case 0, sys.EINTR, sys.EAGAIN, sys.EBUSY, sys.ETIME:
	default:
		p.err = e
	}
}

// dispatch reports to h what there was when it started; what comes up meanwhile is for
// the next Wait.
func (p *Uring) dispatch(h Handler) {
	n := len(p.ready)
	p.resting.most = max(p.resting.most, n)
	notes := p.notes
	p.notes = p.notesNext[:0]
	for i := range n {
		p.result(p.ready[i], h)
	}
	k := copy(p.ready, p.ready[n:])
	p.ready = p.ready[:k]
	for _, t := range notes {
		p.deliver(t, h)
	}
	p.notesNext = notes
	if p.starved { // once, however many receives found none
		p.starved = false
		p.buffers.Grow()
	}
	p.bulk.grow()
}

func (p *Uring) result(c sys.CQE, h Handler) {
	switch c.UserData & opMask {
	case opWake:
		if !c.More() {
			p.watchWake()
		}
	case opAccept:
		p.accepted(c, h)
	case opRecv:
		p.received(c, h)
	case opBulk:
		p.receivedBulk(c, h)
	case opHangup:
		p.hungUp(c)
	case opConnect:
		p.connected(c, h)
	case opShutdown:
		idx := uint32(c.UserData)
		p.conns[idx].state &^= connShutting
		if p.conns[idx].state&connOpen == 0 {
			p.finish(idx)
		}
	}
}

// deliver passes a note on if its connection is still the same and open.
func (p *Uring) deliver(t note, h Handler) {
	if t.kind == noteFull {
		if l := &p.listeners[t.idx]; l.fd >= 0 && !l.paused {
			h.AcceptFailed(int(t.idx), t.err)
		}
		return
	}
	c := &p.conns[t.idx]
	if c.gen != t.gen || c.state&connOpen == 0 {
		return
	}
	switch t.kind {
	case noteBroken:
		h.Received(c.key, nil, t.err)
	case noteWritable:
		h.Writable(c.key)
	case noteResumed:
		p.release(t.idx, h)
	}
}

// index returns the table entry that an fd of Accepted refers to.
func index(fd int) uint32 { return uint32(fd - directBase) }

// Release implements Poller. What is in flight is given up.
func (p *Uring) Release() {
	if p.ring == nil {
		return
	}
	if p.locked {
		p.submit()
		shutdownEnded(p)
		p.ring.CancelAll()
		p.ring.UnregisterFiles()
	}
	p.ring.Close()
	if p.buffers != nil {
		p.buffers.Free()
	}
	p.bulk.free()
	for _, l := range p.listeners {
		if l.fd >= 0 {
			sys.Close(l.fd)
		}
	}
	if p.wake >= 0 {
		sys.Close(p.wake)
	}
	p.ring, p.listeners = nil, nil // p.wake stays: Wake may still read it
	if p.locked {
		p.locked = false
		runtime.UnlockOSThread()
	}
}
