package loadgen

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// A stream is a connection that the server sends on: a subscriber, over SSE or
// WebSocket.
type stream struct {
	link
	channel int32 // from 0
	ready   bool  // it counts as subscribed
	resume  bool  // it went on from a position
	closed  uint16
	proto   protocol
	tracks  []track // by publisher; of pubsub
	pos     []byte  // where to continue
	offset  uint64  // and its number, where the adapter counts
	retry   int32   // milliseconds, what the server requested; -1: nothing
}

var _ endpoint = (*stream)(nil)

// A protocol is how a stream speaks. Exactly one of the two is there.
type protocol struct {
	sse *events
	ws  *socket
}

// events is the state of an event stream.
type events struct {
	body   bodyReader
	inBody bool
	parser sse.Parser
}

func newStream(s *shard, num int) *stream {
	g := s.g
	h := &stream{link: link{s: s, num: int32(num)}, channel: int32(num % g.spec.Channels), retry: -1}
	if g.socketStreams() {
		h.proto.ws = new(socket)
	} else {
		h.proto.sse = new(events)
	}
	if g.spec.Kind == PubSub {
		h.tracks = make([]track, g.spec.Publishers)
	}
	return h
}

// Connected implements eventloop.Connector.
func (h *stream) Connected(*eventloop.Conn) {
	g, s := h.s.g, h.s
	h.closed = 0
	resume := h.established && g.spec.Reconnect && len(h.pos) > 0
	h.resume = resume
	path := g.adapter.subscribe(g, h, resume)
	if h.proto.ws != nil {
		h.proto.ws.greet(&h.link, path, g.target.host)
		return
	}
	e := h.proto.sse
	e.inBody = false
	e.parser.Reset("")
	b := g.appendHead(s.scratch[:0], "GET", path, g.target.host, "Last-Event-ID", "Content-Length")
	if !g.hasHeader("Accept") {
		b = http1.AppendField(b, "Accept", sse.ContentType)
	}
	if resume {
		b = http1.AppendField(b, "Last-Event-ID", h.pos)
	}
	b = http1.AppendEnd(b)
	h.w.Write(b)
	s.scratch = b
}

// subscribed reports that from now on every message is expected.
func (h *stream) subscribed() {
	if h.ready {
		return
	}
	h.ready = true
	s, again := h.s, h.established
	h.w.SetTimer(0)
	s.established(h)
	if again && h.resume {
		s.rec.delivery.Resumed++
	}
	if h.tracks == nil {
		return
	}
	if again { // what was missed meanwhile is expected still
		return
	}
	f := s.g.flows
	f.standing[h.channel].Add(1)
	for p := range h.tracks {
		h.tracks[p].start(f.last[f.index(p, int(h.channel))].Load())
	}
}

// Data implements eventloop.Handler.
func (h *stream) Data(_ *eventloop.Conn, b []byte) int {
	h.s.touch()
	if h.proto.ws != nil {
		return h.frames(b)
	}
	return h.events(b)
}

// events reads an event stream.
func (h *stream) events(b []byte) (total int) {
	e := h.proto.sse
	for len(b) > 0 && h.w != nil && h.state != leaving {
		if !e.inBody {
			n, err := h.head(b)
			if err != nil {
				h.w.Close(err)
				return total
			}
			if n == 0 {
				return total
			}
			total += n
			b = b[n:]
			continue
		}
		data, n, done, err := e.body.read(b)
		total += n
		b = b[n:]
		if err == nil {
			err = h.feed(data)
		}
		switch {
		case h.w == nil:
		case err != nil:
			h.w.Close(badResponse{err})
		case done:
			h.leave(nil)
		case n == 0:
			return total
		}
	}
	return total
}

func (h *stream) head(b []byte) (n int, err error) {
	e, head := h.proto.sse, &h.s.reader.head
	n, err = http1.ParseResponse(head, b, http1.Limits{}, "GET")
	switch {
	case err != nil:
		return 0, badResponse{err}
	case n == 0 || head.Status < 200:
		return n, nil
	case head.Status != 200:
		return 0, plainError(statusReason(head.Status))
	case !bytes.HasPrefix(bytes.ToLower(head.Get("Content-Type")), []byte(sse.ContentType)):
		return 0, plainError("the answer is not an event stream")
	}
	e.body.start(head)
	e.inBody = true
	if !h.s.g.adapter.checkpoint {
		h.subscribed()
	}
	return n, nil
}

// feed reads events.
func (h *stream) feed(b []byte) error {
	p := &h.proto.sse.parser
	for h.w != nil {
		ev, rest, ok, err := p.Next(b)
		if !ok || err != nil {
			return err
		}
		b = rest
		h.subscribed() // a checkpoint, or more
		if ev.HasRetry {
			h.retry = int32(min(ev.Retry, 1<<30))
		}
		if !ev.HasData {
			continue
		}
		switch {
		case len(ev.Type) == 0 || !h.s.g.adapter.control:
			h.message(ev.Data)
		case string(ev.Type) == "gap":
			h.s.rec.delivery.Gaps++
		case string(ev.Type) == "end":
			h.closed = endCode(ev.Data)
		default:
			h.message(ev.Data)
		}
	}
	return nil
}

// endCode is the number behind "code": in what a server says before it ends a
// stream; 0 without one.
func endCode(b []byte) uint16 {
	n, _ := numberAfter(b, `"code":`)
	return uint16(min(n, 65535))
}

// numberAfter is the decimal number that follows key in b.
func numberAfter(b []byte, key string) (n uint64, ok bool) {
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return 0, false
	}
	for _, c := range b[i+len(key):] {
		if c < '0' || c > '9' || n > 1<<58 {
			break
		}
		n, ok = n*10+uint64(c-'0'), true
	}
	return n, ok
}

// textAfter is the text between key, which ends with a quote, and the next quote.
func textAfter(b []byte, key string) []byte {
	i := bytes.Index(b, []byte(key))
	if i < 0 {
		return nil
	}
	b = b[i+len(key):]
	if i = bytes.IndexByte(b, '"'); i < 0 {
		return nil
	}
	return b[:i]
}

// frames reads a WebSocket.
func (h *stream) frames(b []byte) (total int) {
	k := h.proto.ws
	for !k.open {
		n, err := k.shake(&h.link, b)
		if err != nil {
			h.w.Close(err)
			return 0
		}
		total += n
		b = b[n:]
		if n == 0 {
			return total
		}
		if k.open {
			h.s.g.adapter.opened(h)
		}
	}
	for h.w != nil && h.state != leaving {
		ev, n, ok, err := k.parser.Next(b)
		total += n
		b = b[n:]
		switch {
		case err != nil:
			h.w.Close(badResponse{err})
			return total
		case !ok:
			return total
		case ev.Op == websocket.OpText || ev.Op == websocket.OpBinary:
			h.s.g.adapter.frame(h, ev.Payload)
		default:
			if err := k.control(&h.link, ev); err != nil {
				h.closed = ev.Code
				h.leave(err)
			}
		}
	}
	return total
}

// message is something that was published.
func (h *stream) message(b []byte) {
	s := h.s
	if h.tracks == nil {
		s.rec.delivery.Received++
		s.sum.received++
		return
	}
	st, rest, ok := nextStamp(b)
	if !ok {
		s.rec.delivery.Foreign++
		return
	}
	for ok {
		h.stamped(&st)
		st, rest, ok = nextStamp(rest)
	}
}

func (h *stream) stamped(st *stamp) {
	s, d := h.s, &h.s.rec.delivery
	p := int(st.publisher)
	if st.run != s.g.run || p >= len(h.tracks) || int(st.channel) != int(h.channel)+s.g.spec.FirstChannel {
		d.Foreign++
		return
	}
	flow := s.g.flows.index(p, int(h.channel))
	what := h.tracks[p].came(st.seq, func(lo, hi uint64) { s.lose(flow, lo, hi) })
	intended := st.intended - s.g.wallBase
	switch what {
	case repeated:
		d.Repeated++
		return
	case early:
		d.Carried++
		return
	case found:
		s.rec.lost--
		d.Reordered++
	case reordered:
		d.Reordered++
	}
	s.sum.received++
	if intended < s.since {
		d.Carried++
		return
	}
	d.Received++
	s.rec.answer(s.now-intended, s.now-intended-int64(st.late)*1000)
}

// lose counts messages of a flow that one subscriber did not get.
func (s *shard) lose(flow int, lo, hi uint64) {
	n := s.g.flows.acknowledged(flow, lo, hi)
	if n == 0 {
		return
	}
	s.rec.lost += int64(n)
	s.rec.miss(miss{flow: int32(flow), lo: lo, hi: hi})
}

func (p *piece) miss(m miss) {
	if len(p.misses) < maxMisses {
		p.misses = append(p.misses, m)
	} else {
		p.missed = true
	}
}

// settle gives up the holes, and counts what is still to come as late. final says
// that nothing will come.
func (h *stream) settle() {
	f := h.s.g.flows
	for p := range h.tracks {
		t := &h.tracks[p]
		flow := f.index(p, int(h.channel))
		t.abandon(0, func(lo, hi uint64) { h.s.lose(flow, lo, hi) })
		if last := f.last[flow].Load(); last > t.high {
			if n := f.acknowledged(flow, t.high+1, last); n > 0 {
				h.s.rec.delivery.Late += n
				h.s.rec.miss(miss{flow: int32(flow), lo: t.high + 1, hi: last})
			}
		}
	}
}

// missing is how many messages h still waits for.
func (h *stream) missing() (n uint64) {
	f := h.s.g.flows
	for p := range h.tracks {
		flow := f.index(p, int(h.channel))
		last := f.last[flow].Load()
		if m := h.tracks[p].missing(last); m > 0 {
			failed := uint64(0)
			if t := &h.tracks[p]; f.failures.Load() > 0 && last > t.base {
				from := max(t.base+1, t.high-min(t.high, 63))
				failed = last - from + 1 - f.acknowledged(flow, from, last)
			}
			n += m - min(m, failed)
		}
	}
	return n
}

// unsubscribe ends h from this side.
func (h *stream) unsubscribe() {
	if k := h.proto.ws; k != nil && k.open {
		h.s.scratch = websocket.AppendMaskedClose(h.s.scratch[:0], websocket.CloseNormal, "", maskKey())
		h.w.Write(h.s.scratch)
		h.leave(errRetired)
		return
	}
	h.w.Close(errRetired)
}

// Timer implements eventloop.Handler.
func (h *stream) Timer(*eventloop.Conn, int64) {
	if !h.ready && h.w != nil {
		h.w.Close(errTimeout)
	}
}

// Closed implements eventloop.Handler.
func (h *stream) Closed(_ *eventloop.Conn, err error) {
	s := h.s
	if h.why != nil {
		err = h.why
	}
	if k := h.proto.ws; k != nil {
		k.parser.Reset()
		k.open = false
	} else if id := h.proto.sse.parser.LastEventID(); len(id) > 0 {
		h.pos = append(h.pos[:0], id...)
	}
	if h.ready {
		h.ended(err)
	}
	s.gone(h, err, s.g.spec.Reconnect, h.delay())
}

// ended counts the end of an open stream.
func (h *stream) ended(err error) {
	s := h.s
	h.ready = false
	gone := s.g.closing.Load() || h.retiring
	if h.tracks != nil && (gone || !s.g.spec.Reconnect) {
		s.g.flows.standing[h.channel].Add(-1)
	}
	if gone {
		h.tracks = nil // nothing is expected any more
		return
	}
	why := reason(err)
	if ce, ok := errors.AsType[*websocket.CloseError](err); ok {
		why = strconv.Itoa(int(ce.Code))
	} else if h.closed != 0 {
		why = strconv.Itoa(int(h.closed))
	} else if err == nil {
		why = "end"
	}
	s.rec.delivery.Closes = addCounts(s.rec.delivery.Closes, map[string]uint64{why: 1})
	if !s.g.spec.Reconnect {
		s.rec.fail("disconnect " + why)
		s.sum.errors++
		h.settle()
		h.tracks = nil
	}
}

// delay is how long to wait before coming back: what the server requested, or a
// time that differs among streams.
func (h *stream) delay() time.Duration {
	if h.retry >= 0 {
		return time.Duration(h.retry) * time.Millisecond
	}
	return time.Duration(50+rand.IntN(200)) * time.Millisecond
}
