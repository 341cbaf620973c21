package downstream

import (
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/record"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push"
)

// forwarding is what a request that a route serves has besides: where it goes, and what
// the route wants of it before and meanwhile.
type forwarding struct {
	*request
	table     *table
	start     int64 // on the loop's clock
	matched   bool  // policy is to be notified of its end
	grpc      bool  // it is a call of gRPC
	limit     int64 // of the request's body; negative: none
	upstream  string
	retries   int
	web       *grpcWeb        // a call of gRPC that came as gRPC-Web; nil: it did not
	ready     *proxy.Exchange // to be started when the body was validated
	mirror    *mirror
	mirrorTo  *upstream.Cluster // once the body was validated
	checked   *validation
	recording *recording // nil: the reply is not recorded
	batching  *batching  // nil: it shares no call with others
	resume    string     // the client's Last-Event-ID, on routes that hold
	// patience is the client's longest back-off, where the reply may become a stream of ours; 0: it
	// does not say.
	patience time.Duration
	reply    reply
}

// reply is the upstream's reply on its way to the client.
type reply struct {
	*forwarding
	began bool // its head was written
	// How its body is framed for the client.
	chunkedOut, untilClose bool
	acceptsTrailers        bool           // the client does
	grpcCode               int            // how a call of gRPC ended; -1: not known
	firstByte              int64          // from the start to its head, in nanoseconds
	collected              *bufferedReply // while it is collected to be validated
	extended               *extendedReply // while extensions decide on its head; nil: none do
	stream                 *hold          // what a held connection follows; nil: it is none
	events                 *events        // of an event stream; nil: it is none
	cookie                 string         // of a split that is sticky, to be set to fresh
	fresh                  uint64
}

var _ record.Client = (*reply)(nil)

// forward sends r to a cluster. It returns how much of rest it used.
func (r *forwarding) forward(rest []byte) int {
	h, x, req := r.h, &r.policy, r.head
	if err := h.loopState.srv.auth.Revoked().Refuse(x.Identity); err != nil { // since it was admitted
		used := r.skip(rest)
		r.fail(tokenError(err))
		return used
	}
	tg := r.table.targets[x.Route]
	choice := tg.choose(r)
	if choice.Cluster == nil {
		hasBody := r.unread
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "no backend is available, try again later"})
		if hasBody {
			return len(rest) // the connection ends
		}
		return 0
	}
	h.loopState.counters.forwarded.Add(1)
	r.limit = x.Route.MaxBody()
	r.mayRecord(tg)
	r.mayBatch(tg)
	if x.Route.MayHold() {
		r.resume = string(req.Get("Last-Event-ID"))
	}
	if x.Route.MayHold() || r.recording != nil {
		r.patience, _ = r.maxBackoff() // what is not a time there is the backend's
	}
	e := r.compose(tg, &choice, req)
	r.batching.compose(e)
	if tg.validate != nil {
		r.checked = newValidation(tg.validate, r)
	}
	switch {
	case r.collects(tg):
		r.mirrorTo = choice.Mirror
		return r.collect(e, rest)
	case choice.Mirror != nil:
		r.startMirror(choice.Mirror, e)
	}
	x.Retain()
	return r.begin(e, rest)
}

// compose makes the exchange with the upstream.
func (r *forwarding) compose(tg *target, choice *upstream.Choice, req *http1.Request) *proxy.Exchange {
	h, x, srv := r.h, &r.policy, r.h.loopState.srv
	e := srv.proxy.LoopState(r.c.Loop()).Exchange(r.sink())
	e.Cluster, e.Split, e.Arm = choice.Cluster, choice.Split, choice.Arm
	e.Method, e.Length, e.Chunked = r.method, req.ContentLength, req.Chunked
	e.Timeouts, e.Attempts, e.PeerHost = tg.timeouts, tg.attempts, tg.perPeer
	if key := choice.Cluster.HashKey(); key.Kind != upstream.KeyNone {
		e.Key, _ = key.Of(r)
	}
	if choice.Cluster.Config().ProxyProtocol != 0 {
		e.Client = netip.AddrPortFrom(x.Client, r.c.Peer().Port())
		if h.private == nil || *h.private != e.Client {
			client := e.Client
			h.private = &client
		}
		if l := r.c.Listener(); l < len(srv.local) {
			e.Local = srv.local[l]
		}
	}
	f := policy.Framing{Length: req.ContentLength, Chunked: req.Chunked, Trailers: true}
	if r.grpc {
		e.GRPC, e.Within = true, grpcTimeout(req.Get("grpc-timeout"))
	}
	if req.Expect100 && !r.collects(tg) {
		e.Expect, f.Expect = true, true
	}
	if te := req.Get("TE"); te != nil && r.minor == 1 && req.Upgrade == nil && http1.HasToken(te, "trailers") {
		r.reply.acceptsTrailers, e.Trailers, f.Extra = true, true, acceptTrailers
	}
	if r.web != nil {
		r.composeWeb(e, &f)
	}
	if req.Upgrade != nil && !r.unread {
		if name, ok := srv.proxy.MayUpgrade(req.Upgrade); ok {
			e.Upgrade, f.Upgrade = name, req.Upgrade
			if id := x.Identity; id != nil && id.Subject != "" {
				e.Identity = tunnelIdentity{srv.auth, id}
			}
		}
	}
	if len(req.Host) == 0 && x.Route.Config().Rewrite.Host == "" { // HTTP/1.0, which may have none
		e.PeerHost = true
	}
	if e.PeerHost {
		f.Host = "upstream" // the exchange puts the peer's in its place
	}
	if choice.SetCookie {
		r.reply.cookie, r.reply.fresh = choice.Split.CookieName(), choice.Fresh
	}
	e.Head = x.Route.AppendRequestHead(e.Head, x, f)
	return e
}

var acceptTrailers = []byte("TE: trailers\r\nConnection: TE\r\n")

// begin starts e and relays the body.
func (r *forwarding) begin(e *proxy.Exchange, rest []byte) int {
	h, c, seq, hasBody := r.h, r.c, r.seq, r.unread
	h.pending, h.x = r.request, e
	h.count()
	if h.state = answering; hasBody {
		h.state = relaying
		c.SetTimer(h.loopState.srv.bounds.body)
	}
	e.Start()
	switch {
	case r.seq != seq || c.Closing():
		if hasBody {
			return len(rest)
		}
		return 0
	case hasBody && len(rest) > 0:
		return r.relay(c, rest)
	}
	return 0
}

// relay passes the request's body on as it comes.
func (r *forwarding) relay(c *eventloop.Conn, b []byte) int {
	h, seq := r.h, r.seq
	for used := 0; used < len(b); {
		data, n, done, err := h.piece(b[used:])
		used += n
		switch {
		case err != nil:
			h.loopState.counters.bad.Add(1)
			h.abandon()
			r.reply.stop(func() { r.broken(err) })
			return len(b)
		case r.limit >= 0 && h.got > r.limit:
			h.abandon()
			if r.reply.began && r.reply.cutGRPC(http.StatusRequestEntityTooLarge, "the body is too large") {
				return len(b)
			}
			r.reply.stop(r.tooLong)
			return len(b)
		}
		if w := r.web; w != nil {
			if data, err = w.decode(data); err == nil && done {
				err = w.whole()
			}
			if err != nil {
				r.notWhole(err)
				return len(b)
			}
		}
		h.x.Body(data)
		if r.seq != seq || c.Closing() {
			return len(b) // answered before it was complete, or failed
		}
		if m := r.mirror; m != nil {
			m.body(data)
		}
		if done {
			r.relayed()
			return used
		}
		if h.x.Full() {
			h.paused = true
			c.PauseReading()
			return used
		}
		if n == 0 {
			return used
		}
	}
	return len(b)
}

// relayed reports that the request's body is complete.
func (r *forwarding) relayed() {
	h := r.h
	h.state, r.unread = answering, false
	r.c.SetTimer(0)
	if e := r.reply.events; e != nil && e.leaveAt > 0 { // the reply came first
		r.c.SetTimer(max(e.leaveAt-r.c.Loop().Now(), 1))
	}
	trailer := r.trailers()
	if m := r.mirror; m != nil {
		m.end(trailer)
	}
	h.x.End(trailer)
}

// trailers are the fields behind the request's body that its route lets pass, as lines. It is
// called once, since it makes them in place.
func (r *forwarding) trailers() []byte {
	if len(r.trailer) <= len(crlf) {
		return nil
	}
	return r.policy.Route.RequestTrailers(&r.policy, r.trailer)
}

func (r *forwarding) tooLong() {
	r.fail(&push.APIError{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large"})
}

// stop ends a request whose exchange is over: by answer, or if the reply has started
// by cutting it.
func (r *reply) stop(answer func()) {
	if r.began {
		r.cut()
		return
	}
	answer()
}

var errCut = errors.New("the reply is incomplete")

// cut ends the connection in the middle of a reply, so that the client does not
// take it for whole.
func (r *reply) cut() {
	h, c, untilClose := r.h, r.c, r.untilClose
	r.release()
	if untilClose || c.Shared() {
		h.unwait()
		h.pending = nil
		c.Abort(errCut)
		return
	}
	h.next(c, false)
}

// Interim implements proxy.Sink.
func (r *reply) Interim(_ *proxy.Exchange, res *http1.Response) {
	loopState := r.h.loopState
	switch {
	case r.minor == 0:
	case res.Status == http.StatusContinue:
		r.c.Write(continueHead)
	default:
		b := http1.AppendStatusLine(loopState.buf[:0], res.Status)
		b = appendEndToEnd(b, res.Fields)
		loopState.buf = append(b, "\r\n"...)
		r.c.Write(loopState.buf)
	}
}

// appendEndToEnd appends the fields that concern more than one hop (RFC 9110 §7.6.1).
func appendEndToEnd(b []byte, fields []http1.Field) []byte {
	for i := range fields {
		f := &fields[i]
		if !hopByHop(f.Name) && !named(fields, f.Name) {
			b = http1.AppendField(b, f.Name, f.Value)
		}
	}
	return b
}

func hopByHop(name []byte) bool {
	for _, f := range [...]string{"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length"} {
		if http1.EqualFold(name, f) {
			return true
		}
	}
	return false
}

// named reports whether a Connection field names the field.
func named(fields []http1.Field, name []byte) bool {
	for i := range fields {
		if http1.EqualFold(fields[i].Name, "connection") && http1.HasToken(fields[i].Value, string(name)) {
			return true
		}
	}
	return false
}

// Head implements proxy.Sink.
func (r *reply) Head(e *proxy.Exchange, res *http1.Response) {
	r.upstream, r.retries = e.Last()
	r.firstByte = r.c.Loop().Now() - r.start
	if r.policy.Route.MayHold() && wantsHold(res) && r.method != "HEAD" {
		r.holdHead(e, res)
		return
	}
	if !extends(r, res) {
		sendHead(r, res)
	}
}

// sendHead writes the head of the reply, unless the reply is collected first.
func sendHead(r *reply, res *http1.Response) {
	loopState := r.h.loopState
	if r.validates(res) {
		r.collected = newHeldReply(r, res)
		return
	}
	if r.unread || loopState.srv.push.Draining() {
		r.keepAlive = false
	}
	f := policy.Framing{Length: -1, Trailers: r.acceptsTrailers}
	body := res.Body
	if r.web != nil && r.web.head(res) {
		f.Trailers, body = false, http1.BodyChunked
	}
	switch body {
	case http1.BodyNone:
		if res.Status != http.StatusNoContent { // what HEAD and 304 say of a body that is not sent
			f.Length = res.ContentLength
		}
	case http1.BodyLength:
		f.Length = res.ContentLength
	default:
		if r.chunks() {
			r.chunkedOut, f.Chunked = true, true
		} else {
			r.untilClose, r.keepAlive = true, false
		}
	}
	f.Close, f.KeepAlive = !r.keepAlive, r.keepAlive && r.minor == 0
	f.Date = loopState.dateLine(r.c.Loop())
	r.notes(res.Get("grpc-status"))
	r.writeHead(res, f)
	r.began, r.status = true, res.Status
	if r.chunkedOut || r.untilClose {
		followEvents(r, res)
	}
}

func (r *reply) writeHead(res *http1.Response, f policy.Framing) {
	loopState := r.h.loopState
	if f.Extra == nil {
		f.Extra = r.addedFields()
	} else {
		f.Extra = append(f.Extra, r.addedFields()...)
	}
	loopState.buf = r.policy.Route.AppendResponseHead(loopState.buf[:0], &r.policy, res.Status, res.Fields, f)
	r.c.Write(loopState.buf)
}

// addedFields are the lines that an answer has besides its backend's.
func (r *reply) addedFields() []byte {
	b := r.h.loopState.srv.altSvc // a copy is made when something is appended
	if r.cookie != "" {
		b = append(b, r.stickyCookie()...)
	}
	return b
}

// stickyCookie is the Set-Cookie line that keeps a client on its arm.
func (r *reply) stickyCookie() []byte {
	b := append([]byte("Set-Cookie: "), r.cookie...)
	b = upstream.AppendCookie(append(b, '='), r.fresh)
	return append(b, "; Path=/; HttpOnly; SameSite=Lax\r\n"...)
}

// Body implements proxy.Sink.
func (r *reply) Body(_ *proxy.Exchange, b []byte) (full bool) {
	c, ends := r.c, false
	if r.extended != nil {
		r.extended.body = append(r.extended.body, b...)
		return true
	}
	if r.events != nil {
		var n int
		n, ends = r.events.advance(b)
		b = b[:n]
	}
	r.sent += int64(len(b))
	if r.collected != nil && r.collected.keep(b) {
		return false
	}
	if r.stream != nil && r.stream.tooLong() {
		r.stream.cut()
		return false
	}
	if r.web != nil && r.web.answered {
		b = r.web.encode(b)
	}
	r.writeBody(b)
	if ends && !c.Closing() {
		r.events.end()
		return false
	}
	return c.Unsent() > shareOf(c, r.h.loopState.srv.proxy.Config().Buffer)
}

// chunks reports whether a body without a known length goes in chunks: to clients of
// HTTP/1.1. To others it ends with the connection.
func (r *request) chunks() bool { return r.minor == 1 && !r.c.Shared() }

// writeBody writes a piece of the reply's body.
func (r *reply) writeBody(b []byte) {
	if !r.chunkedOut {
		r.c.Write(b)
		return
	}
	var size [18]byte
	r.c.Write(http1.AppendChunkSize(size[:0], len(b)))
	r.c.Write(b)
	r.c.Write(crlf)
}

var crlf = []byte("\r\n")

// End implements proxy.Sink.
func (r *reply) End(_ *proxy.Exchange, trailer []byte) {
	h, c, keepAlive := r.h, r.c, r.keepAlive
	h.x = nil
	switch {
	case r.extended != nil:
		r.extended.end(trailer)
		return
	case r.collected != nil:
		r.collected.validate()
		return
	case r.stream != nil:
		r.stream.begin()
		return
	}
	r.notes(trailerField(trailer, "grpc-status"))
	switch {
	case r.web != nil && r.web.answered:
		r.endWeb(trailer)
	case c.Shared():
		writeTrailer(c, trailer)
	case r.chunkedOut:
		h.loopState.buf = http1.AppendLastChunk(h.loopState.buf[:0], trailer)
		c.Write(h.loopState.buf)
	}
	r.release()
	h.next(c, keepAlive)
}

// Fail implements proxy.Sink.
func (r *reply) Fail(e *proxy.Exchange, err *proxy.Error) {
	r.h.x, r.extended = nil, nil
	r.upstream, r.retries = e.Last()
	if r.began {
		if !r.cutGRPC(err.Status, err.Message) {
			r.cut()
		}
		return
	}
	r.fail(&push.APIError{Status: err.Status, Message: err.Message})
}

// Room implements proxy.Sink.
func (r *reply) Room(*proxy.Exchange) {
	if h := r.h; h.paused {
		h.paused = false
		resumeInput(r.c)
	}
}

// Switch implements proxy.Sink.
func (r *reply) Switch(e *proxy.Exchange, res *http1.Response) *eventloop.Conn {
	h, c := r.h, r.c
	r.upstream, r.retries = e.Last()
	r.status = res.Status
	r.writeHead(res, policy.Framing{Length: -1, Upgrade: res.Upgrade, Date: h.loopState.dateLine(c.Loop())})
	if c.Closing() {
		return nil
	}
	h.x, h.pending = nil, nil
	h.unwait()
	r.release()
	return c
}
