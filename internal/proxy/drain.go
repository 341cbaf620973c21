package proxy

import (
	"math/rand/v2"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/websocket"
)

// Drain ends the tunnels there are, and those that come, spread over the given time:
// a WebSocket between two frames of the backend with the code 1012, anything else by
// its end. Any goroutine; it returns at once.
func (p *Proxy) Drain(over time.Duration) {
	for _, l := range p.loopStates {
		l.loop.Post(func() { l.drain(over) })
	}
}

func (l *LoopState) drain(over time.Duration) {
	if l.drainEnd != 0 {
		return
	}
	l.drainEnd = l.loop.Now() + max(int64(over), 1)
	l.loop.Conns(func(c *eventloop.Conn) bool {
		if s, ok := c.Handler().(*side); ok && s == &s.t.sides[1] {
			s.t.leaveWithin()
		}
		return true
	})
}

// leaveWithin gives t a time of its own in what is left of the drain.
func (t *tunnel) leaveWithin() {
	now := t.loopState.loop.Now()
	t.leaveAt = now + 1 + rand.Int64N(max(t.loopState.drainEnd-now, 1))
	t.arm(now)
}

// arm sets the timer to what comes next.
func (t *tunnel) arm(now int64) {
	at := t.deadline
	for _, other := range [...]int64{t.leaveAt, t.cutAt} {
		if other > 0 && (at == 0 || other < at) {
			at = other
		}
	}
	if at > 0 {
		t.sides[1].c.SetTimer(max(at-now, 1))
	}
}

// leave ends t in order, now or behind the frame that is on its way.
func (t *tunnel) leave() {
	t.leaveAt = 0
	switch f := t.frames; {
	case f == nil || f[1].closing && f[1].between():
		t.end()
	case f[1].between():
		t.sendClose()
	default:
		t.leaving, t.cutAt = true, t.loopState.drainEnd
	}
}

// end closes both sides after what they were sent.
func (t *tunnel) end() {
	t.sides[0].c.CloseAfterFlush()
	t.sides[1].c.CloseAfterFlush()
}

// Close frames: to the client 1012, service restart, so that it comes back; to the
// backend 1001, as from a client that goes away.
var (
	awayFrame = websocket.AppendFrame(nil, websocket.OpClose, append([]byte{0x03, 0xf4}, "service restart"...))
	gonePay   = []byte{0x03, 0xe9}
)

// sendClose closes both sides of a WebSocket.
func (t *tunnel) sendClose() {
	t.sides[0].c.Write(awayFrame)
	if f := &t.frames[0]; f.between() && !f.closing {
		var mask [4]byte
		for i := range mask {
			mask[i] = byte(rand.Uint32())
		}
		t.sides[1].c.Write(websocket.AppendMaskedFrame(nil, websocket.OpClose, gonePay, mask))
	}
	t.end()
}

// frames follows one direction of a WebSocket from frame to frame (RFC 6455 §5.2).
type frames struct {
	left    uint64 // of the payload
	head    [10]byte
	n       uint8 // of head, as far as it has come
	closing bool  // a close frame has started
}

// between reports whether a frame has ended and none has started.
func (f *frames) between() bool { return f.n == 0 && f.left == 0 }

// advance follows b; if stop is set no further than to the first end of a frame. It
// returns how much it took.
func (f *frames) advance(b []byte, stop bool) int {
	used := 0
	for used < len(b) {
		if f.left > 0 {
			n := min(uint64(len(b)-used), f.left)
			f.left -= n
			used += int(n)
		} else {
			f.head[f.n] = b[used]
			f.n++
			used++
			f.headed()
		}
		if stop && f.between() {
			break
		}
	}
	return used
}

// headed takes the head as soon as it says how long the frame is. The mask counts as
// payload.
func (f *frames) headed() {
	if f.n < 2 {
		return
	}
	h := f.head[:f.n]
	more := 0
	switch h[1] & 0x7f {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	if len(h) < 2+more {
		return
	}
	size := uint64(h[1] & 0x7f)
	if more > 0 {
		size = 0
		for _, b := range h[2:] {
			size = size<<8 | uint64(b)
		}
	}
	if h[1]&0x80 != 0 {
		size += 4
	}
	f.closing = f.closing || h[0]&0xf == byte(websocket.OpClose)
	f.left, f.n = size, 0
}
