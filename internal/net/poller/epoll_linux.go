package poller

import (
	"fmt"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// Epoll is the Poller on epoll, level-triggered: one receive per readiness is
// enough, and a connection costs no system call until it is ready.
type Epoll struct {
	ep, wake  int
	listeners []listener
	descriptors
	want interests
	// writing is the connection that Writable is being called for; short, whether
	// a Send for it took too little meanwhile.
	writing Key
	short   bool
	// standing is the connection that Connected is being called for.
	standing Key
	late     lates
	buf      []byte
	events   []sys.EpollEvent
}

type listener struct {
	fd     int
	paused bool
}

var _ Poller = (*Epoll)(nil)

const (
	// Keys of a connection never have the top bit; these do.
	keyWake     Key = 1 << 63
	keyListener Key = 1<<63 | 1<<62

	// Marks in want, which are none of epoll's bits.
	markConnecting uint32 = 1 << 25
	markUnwatched  uint32 = 1 << 26
	markLate       uint32 = 1 << 27 // AddLater was called, and it is not watched yet
	marks                 = markConnecting | markUnwatched | markLate

	eventsPerWait   = 512
	acceptsPerEvent = 64
	// ReadBuffer is the most that one Received carries.
	ReadBuffer = 64 << 10
)

// NewEpoll opens a Poller on epoll.
func NewEpoll() (*Epoll, error) {
	ep, err := sys.EpollCreate()
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	wake, err := sys.EventFD()
	if err != nil {
		sys.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err := sys.EpollAdd(ep, wake, sys.EpollIn, uint64(keyWake)); err != nil {
		sys.Close(ep)
		sys.Close(wake)
		return nil, fmt.Errorf("watch eventfd: %w", err)
	}
	return &Epoll{ep: ep, wake: wake, writing: keyWake, standing: keyWake, buf: make([]byte, ReadBuffer), events: make([]sys.EpollEvent, eventsPerWait)}, nil
}

// Name returns "epoll".
func (p *Epoll) Name() string { return "epoll" }

// Listen implements Poller.
func (p *Epoll) Listen(index, fd int) error {
	for len(p.listeners) <= index {
		p.listeners = append(p.listeners, listener{fd: -1})
	}
	if err := sys.EpollAdd(p.ep, fd, sys.EpollIn, uint64(keyListener)|uint64(index)); err != nil {
		return fmt.Errorf("watch listener: %w", err)
	}
	p.listeners[index] = listener{fd: fd}
	return nil
}

// SetAccepting implements Poller.
func (p *Epoll) SetAccepting(index int, on bool) {
	l := &p.listeners[index]
	if l.paused == !on {
		return
	}
	l.paused = !on
	var events uint32
	if on {
		events = sys.EpollIn
	}
	_ = sys.EpollMod(p.ep, l.fd, events, uint64(keyListener)|uint64(index))
}

// Add implements Poller.
func (p *Epoll) Add(k Key, fd int) error {
	want := p.want.of(k)
	watch := sys.EpollAdd
	if k == p.standing { // it is watched, for room
		watch = sys.EpollMod
	}
	*want = sys.EpollIn
	if err := watch(p.ep, fd, sys.EpollIn, uint64(k)); err != nil {
		return fmt.Errorf("watch connection: %w", err)
	}
	return nil
}

// AddLater implements Poller.
func (p *Epoll) AddLater(k Key, fd int) {
	*p.want.of(k) = sys.EpollIn | markLate
	p.late.add(k, fd)
}

// watchLate watches connections of AddLater.
func watchLate(p *Epoll, h Handler) {
	for _, c := range p.late.next() {
		if fd, ok := h.FD(c.key); !ok || fd != c.fd || p.want[c.key.Slot()]&markLate == 0 {
			continue
		}
		want := &p.want[c.key.Slot()]
		*want &^= marks
		if err := sys.EpollAdd(p.ep, c.fd, *want, uint64(c.key)); err != nil {
			h.Received(c.key, nil, sys.ErrnoOf(err))
		}
	}
}

// interests holds per slot what the connection is watched for, and marks.
type interests []uint32

// of is k's place.
func (w *interests) of(k Key) *uint32 {
	slot := int(k.Slot())
	for len(*w) <= slot {
		*w = append(*w, 0)
	}
	return &(*w)[slot]
}

// watch changes what a connection is watched for. One that was given up is
// watched again when there is something to see.
func (p *Epoll) watch(k Key, fd int, bits uint32, on bool) {
	want := p.want[k.Slot()]
	next := want &^ bits
	if on {
		next |= bits
	}
	switch {
	case next == want:
	case want&markLate != 0:
		p.want[k.Slot()] = next
	case want&markUnwatched != 0 && on:
		p.want[k.Slot()] = next &^ marks
		_ = sys.EpollAdd(p.ep, fd, next&^marks, uint64(k))
	default:
		p.want[k.Slot()] = next
		_ = sys.EpollMod(p.ep, fd, next, uint64(k))
	}
}

// SetReading implements Poller.
func (p *Epoll) SetReading(k Key, fd int, on bool) { p.watch(k, fd, sys.EpollIn, on) }

// Send implements Poller.
func (p *Epoll) Send(k Key, fd int, b []byte) (int, syscall.Errno) {
	for {
		n, err := sys.Send(fd, b)
		switch {
		case err == 0 && n == len(b):
			return n, 0
		case err == sys.EINTR:
			continue
		case err != 0 && err != sys.EAGAIN && err != sys.ENOBUFS && err != sys.ENOMEM:
			return n, err
		}
		p.short = p.short || k == p.writing
		p.watch(k, fd, sys.EpollOut, true)
		return n, 0
	}
}

// SendCopy implements Poller: the kernel copies, so it is Send.
func (p *Epoll) SendCopy(k Key, fd int, b []byte) (int, syscall.Errno) { return p.Send(k, fd, b) }

// Wake implements Poller.
func (p *Epoll) Wake() { sys.EventFDSignal(p.wake) }

// Release implements Poller.
func (p *Epoll) Release() {
	for _, l := range p.listeners {
		if l.fd >= 0 {
			sys.Close(l.fd)
		}
	}
	p.listeners = nil
	sys.Close(p.wake)
	sys.Close(p.ep)
}

// Wait implements Poller. It polls without blocking first: a loop under load
// then never gives its processor away, and only an idle one pays twice.
func (p *Epoll) Wait(timeout time.Duration, h Handler) error {
	n, err := sys.EpollPoll(p.ep, p.events)
	if err == 0 && n == 0 && timeout != 0 {
		n, err = sys.EpollWait(p.ep, p.events, milliseconds(p.late.patience(timeout)))
	}
	h.TickStarted()
	watchLate(p, h)
	if err != 0 && err != sys.EINTR {
		return fmt.Errorf("epoll_wait: %w", err)
	}
	for i := range p.events[:n] {
		p.dispatch(&p.events[i], h)
	}
	return nil
}

// milliseconds rounds up, so that a timer is not woken for too early.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int((min(d, time.Hour) + time.Millisecond - 1) / time.Millisecond)
}

func (p *Epoll) dispatch(ev *sys.EpollEvent, h Handler) {
	k := Key(ev.Data())
	switch {
	case k == keyWake:
		sys.EventFDDrain(p.wake)
	case k&keyListener == keyListener:
		p.accept(int(k.Slot()), h)
	default:
		if fd, ok := h.FD(k); ok {
			p.happened(k, fd, ev.Events, h)
		}
	}
}

// happened is about an open connection, or one that is being made.
func (p *Epoll) happened(k Key, fd int, events uint32, h Handler) {
	want := p.want[k.Slot()]
	if want&markConnecting != 0 {
		connected(p, k, fd, h)
		return
	}
	if events&sys.EpollOut != 0 {
		p.writable(k, fd, h)
		if _, ok := h.FD(k); !ok {
			return
		}
	}
	switch {
	case events&(sys.EpollIn|sys.EpollErr) != 0, events&sys.EpollHup != 0 && want&sys.EpollIn != 0:
		p.receive(k, fd, h)
	case events&sys.EpollHup != 0:
		// Both sides have ended, and input that the loop does not want yet may be
		// left. This would come again at once until it does.
		p.want[k.Slot()] = markUnwatched
		_ = sys.EpollDel(p.ep, fd)
	}
}

// writable lets the loop send again and stops watching unless that fell short.
func (p *Epoll) writable(k Key, fd int, h Handler) {
	p.writing, p.short = k, false
	h.Writable(k)
	p.writing = keyWake // none
	if _, ok := h.FD(k); ok && !p.short {
		p.watch(k, fd, sys.EpollOut, false)
	}
}

func (p *Epoll) receive(k Key, fd int, h Handler) {
	n, err := sys.Recv(fd, p.buf)
	if err == sys.EAGAIN || err == sys.EINTR {
		return
	}
	h.Received(k, p.buf[:n], err)
}

func (p *Epoll) accept(index int, h Handler) {
	for range acceptsPerEvent {
		if p.listeners[index].paused {
			return
		}
		fd, peer, err := sys.Accept(p.listeners[index].fd)
		switch err {
		case 0:
			h.Accepted(index, fd, peer)
		case sys.EINTR, sys.ECONNABORTED, sys.EPROTO, sys.ENETDOWN, sys.ENETUNREACH, sys.EHOSTDOWN, sys.EHOSTUNREACH:
			// That one is lost, the next may not be (accept(2)).
		case sys.EAGAIN:
			return
		default:
			h.AcceptFailed(index, err)
			return
		}
	}
}
