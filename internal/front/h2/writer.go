package h2

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// sendMost is how many bytes of a connection's frames are gathered before they are sent.
const sendMost = 64 << 10

// writer is the sending half of a connection, the server's or the client's: it gathers the
// frames of a tick, so that they leave in one send, and keeps to the peer's windows.
type writer struct {
	// Fixed by ServeConn and Start.
	sock *eventloop.Conn
	pool *buffers

	// Owned by the loop's goroutine. No lock.
	out []byte // the frames of this tick; nil between ticks
	// window is what may be sent over all streams, theirWindow what a new stream may be sent.
	window, theirWindow int32
	maxFrame            int32 // of the peer
	allowance           int32 // see moved
	lastAt              int32 // where in out the last frame of a stream starts
	lastOf              uint32
	lastOpen            bool      // lastAt and lastOf are valid
	flushes             bool      // Flush is to be called
	noTable             bool      // the peer's table is smaller: the next block says that ours is empty
	blocked             []*flow   // have bytes that wait for the connection's window or its socket
	settle              []settler // whose handler consumed input between two reads
}

// flow is what a stream has on either side of a connection: the connection that its handler
// sees, and its windows.
type flow struct {
	eventloop.Carried

	id      uint32
	window  int32 // what may be sent
	credit  int32 // what the peer may send
	unread  int32 // what of that the handler has not consumed
	owed    int32 // what it has consumed and was not given back
	urgency uint8 // 0 first, 7 last (RFC 9218 §4.1)
	waits   bool  // it is in writer.blocked
	settles bool  // it is in writer.settle
	gone    bool  // Close was called
}

// A settler looks at the end of a tick at what its handler has consumed.
type settler interface{ settled() }

func newWriter(sock *eventloop.Conn, pool *buffers) writer {
	return writer{sock: sock, pool: pool, window: firstWindow, theirWindow: firstWindow, maxFrame: maxFrameSize}
}

func (f *flow) base() *flow { return f }

// flows are the flows of streams.
func flows[S interface{ base() *flow }](list []S) iter.Seq[*flow] {
	return func(yield func(*flow) bool) {
		for _, s := range list {
			if !yield(s.base()) {
				return
			}
		}
	}
}

// buffer makes room for the frames of a tick.
func (w *writer) buffer() {
	if w.out == nil {
		w.out = w.pool.lend()
	}
	w.flushLater()
}

func (w *writer) flushLater() {
	if !w.flushes {
		w.flushes = true
		w.sock.Loop().FlushAtTickEnd(w)
	}
}

// control sends frames that no window delays.
func (w *writer) control(b []byte) {
	w.buffer()
	w.out = append(w.out, b...)
	w.lastOpen = false
	if len(w.out) >= sendMost {
		w.flushNow()
	}
}

// frameOf notes that a frame of f comes next.
func (w *writer) frameOf(f *flow) {
	w.buffer()
	w.lastAt, w.lastOf, w.lastOpen = int32(len(w.out)), f.id, true
}

// block sends a header block on f. ends says that nothing follows.
func (w *writer) block(f *flow, block []byte, ends bool) {
	w.frameOf(f)
	w.lastOpen = !ends && len(block) <= int(w.maxFrame)
	w.out = appendBlock(w.out, block, f.id, ends, int(w.maxFrame))
}

// data sends as much of b on f as the windows and the socket allow, and returns how much
// that is. f is continued when there is room for the rest.
func (w *writer) data(f *flow, b []byte) (sent int) {
	for sent < len(b) && f.window > 0 {
		if w.window <= 0 || !w.room() {
			w.wait(f)
			break
		}
		n := min(len(b)-sent, int(f.window), int(w.window), int(w.maxFrame))
		f.window -= int32(n)
		w.window -= int32(n)
		w.frameOf(f)
		w.out = append(appendHeader(w.out, n, frameData, 0, f.id), b[sent:sent+n]...)
		w.moved()
		sent += n
	}
	return sent
}

// end ends f: by its last frame if that is still here.
func (w *writer) end(f *flow) {
	if w.lastOpen && w.lastOf == f.id {
		w.out[w.lastAt+4] |= flagEndStream
		return
	}
	w.buffer()
	w.out = appendHeader(w.out, 0, frameData, flagEndStream, f.id)
}

// room reports whether the socket takes more, as far as is known.
func (w *writer) room() bool {
	if w.sock.Stalled() || w.sock.Unsent() >= sendMost {
		return false
	}
	if len(w.out) >= sendMost {
		w.flushNow()
		return !w.sock.Stalled() && !w.sock.Closing()
	}
	return true
}

// flushNow sends what was gathered.
func (w *writer) flushNow() {
	if len(w.out) == 0 {
		return
	}
	b := w.out
	w.lastOpen = false
	w.out = b[:0]
	w.sock.SendCopy(b)
}

// Flush implements eventloop.Flusher: it is the end of a tick.
func (w *writer) Flush() {
	w.flushes = false
	list := w.settle
	w.settle = nil
	for _, s := range list {
		s.settled()
	}
	if w.flushNow(); len(w.out) == 0 {
		w.release()
	}
}

// release returns the buffer.
func (w *writer) release() {
	if w.out != nil {
		w.pool.release(w.out)
		w.out = nil
	}
}

// settleLater has s look at the end of the tick at what f's handler has consumed.
func (w *writer) settleLater(f *flow, s settler) {
	if f.unread > 0 && !f.settles {
		f.settles = true
		w.settle = append(w.settle, s)
		w.flushLater()
	}
}

// wait notes that f waits for the connection.
func (w *writer) wait(f *flow) {
	if !f.waits {
		f.waits = true
		w.blocked = append(w.blocked, f)
	}
}

// unblock continues the streams that wait for the connection, the most urgent ones first.
func (w *writer) unblock() {
	if len(w.blocked) == 0 || !w.room() {
		return
	}
	list := w.blocked
	w.blocked = nil
	slices.SortStableFunc(list, func(a, b *flow) int { return int(a.urgency) - int(b.urgency) })
	for _, f := range list {
		f.waits = false
		f.proceed()
	}
}

// proceed lets f send on.
func (f *flow) proceed() {
	if !f.gone {
		f.Writable()
	}
}

// moved notes that a piece of a body went one way or the other. What peers say about that,
// updates of windows and measurements of the path, is not a flood.
func (w *writer) moved() { w.allowance = min(w.allowance+allowanceEach, allowanceMost) }

// excused accounts for one such frame, if there were bodies for it.
func (w *writer) excused() bool {
	if w.allowance == 0 {
		return false
	}
	w.allowance--
	return true
}

// ourMaxFrame bounds the frames that are sent, so that streams take turns.
const ourMaxFrame = 32 << 10

// set applies a setting of the peer's that is about what it is sent, also to the open
// streams (RFC 9113 §6.5.2). A reason says that the connection has to end.
func (w *writer) set(id uint16, v uint32, open iter.Seq[*flow]) (code Code, reason string) {
	switch id {
	case settingTableSize:
		if v < 4096 {
			w.noTable = true // RFC 7541 §4.2: our next header block says that it follows
		}
	case settingWindow: // §6.9.2
		if v > maxWindow {
			return FlowControlError, "INITIAL_WINDOW_SIZE is too large"
		}
		by := int64(v) - int64(w.theirWindow)
		w.theirWindow = int32(v)
		for f := range open {
			if int64(f.window)+by > maxWindow {
				return FlowControlError, "a stream's window is too large"
			}
			f.window += int32(by)
		}
	case settingMaxFrame:
		if v < maxFrameSize || v >= 1<<24 {
			return ProtocolError, "MAX_FRAME_SIZE is not within its bounds"
		}
		w.maxFrame = int32(min(v, ourMaxFrame))
	}
	return NoError, ""
}

// widen applies a WINDOW_UPDATE for the connection (§6.9). A reason says that it has to end.
func (w *writer) widen(p []byte) (code Code, reason string) {
	switch by := increment(p); {
	case by == 0:
		return ProtocolError, "WINDOW_UPDATE by nothing"
	case int64(w.window)+by > maxWindow:
		return FlowControlError, "the connection's window is too large"
	default:
		w.window += int32(by)
		w.unblock()
	}
	return NoError, ""
}

// widen applies a WINDOW_UPDATE for a stream. A code says that the stream has to end.
func (f *flow) widen(p []byte) Code {
	switch by := increment(p); {
	case by == 0:
		return ProtocolError
	case int64(f.window)+by > maxWindow:
		return FlowControlError
	default:
		f.window += int32(by)
		f.proceed()
	}
	return NoError
}

func increment(p []byte) int64 { return int64(binary.BigEndian.Uint32(p) & maxWindow) }

// buffers are what a loop's connections gather frames in.
type buffers struct{ spare [][]byte }

const (
	spareBuffers = 64
	spareBytes   = 128 << 10
)

// lend returns an empty buffer.
func (p *buffers) lend() []byte {
	if n := len(p.spare); n > 0 {
		b := p.spare[n-1]
		p.spare[n-1] = nil
		p.spare = p.spare[:n-1]
		return b
	}
	return make([]byte, 0, 4<<10)
}

// release accepts a buffer that lend returned.
func (p *buffers) release(b []byte) {
	if len(p.spare) < spareBuffers && cap(b) <= spareBytes {
		p.spare = append(p.spare, b[:0])
	}
}

// A blockWriter makes header blocks. Its encoder has no table, so that one fits all
// connections of a loop, and it keeps none of the strings.
type blockWriter struct {
	b       bytes.Buffer
	encoder *hpack.Encoder
}

func (w *blockWriter) init() {
	w.encoder = hpack.NewEncoder(&w.b)
	w.encoder.SetMaxDynamicTableSize(0)
	_ = w.encoder.WriteField(hpack.HeaderField{Name: ":method", Value: "GET"}) // announces the size, in a block that is discarded
}

// begin starts a block that to sends.
func (w *blockWriter) begin(to *writer) {
	w.b.Reset()
	if to.noTable {
		to.noTable = false
		w.b.WriteByte(0x20) // RFC 7541 §6.3: the table's size is 0
	}
}

// write adds a field.
func (w *blockWriter) write(name string, value []byte) {
	f := hpack.HeaderField{Name: name, Value: unsafe.String(unsafe.SliceData(value), len(value)), Sensitive: name == "authorization"}
	_ = w.encoder.WriteField(f) // a buffer takes all
}
