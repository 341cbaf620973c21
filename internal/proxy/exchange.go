package proxy

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A Call is the request. Its caller fills it in between LoopState.Exchange and Start.
type Call struct {
	Cluster *upstream.Cluster
	// Split and Arm stand in the outcome, for a canary's sample; Split may be nil.
	Split *upstream.Split
	Arm   int
	// Key is what consistent_hash goes by.
	Key uint64
	// Method is the request's; GET where Head says so.
	Method string
	// Head is the whole head, empty line included, with framing as Length and
	// Chunked say. It is appended to, and its memory is the exchange's own.
	Head []byte
	// PeerHost puts the peer's address in place of what Head has for Host.
	PeerHost bool
	// Length is the body's; -1 without one. Chunked: it is not known.
	Length  int64
	Chunked bool
	// Timeouts and Attempts are the route's; what is 0 there is the cluster's.
	// Attempts are those after the first, negative: none.
	Timeouts *Timeouts
	Attempts int
	// Expect: the client waits for 100 (Continue).
	Expect bool
	// Trailers: the client takes trailers.
	Trailers bool
	// Upgrade is the protocol to switch to (see Proxy.MayUpgrade), mostly empty.
	Upgrade string
	// GRPC: it is a call of gRPC, whose status counts in place of HTTP's 200.
	GRPC bool
	// Within is the client's own bound (grpc-timeout); 0: none. It takes the place of the
	// waits for the head and within the reply where it is longer.
	Within time.Duration
	// Client and Local are the two ends of the client's connection, for clusters
	// that get them in a PROXY header.
	Client, Local netip.AddrPort
	// Identity is whose a tunnel would be; nil: it is not known.
	Identity Identity
}

// An Identity is who a client is, for as long as its tunnel is open. Its methods are called on the exchange's loop.
type Identity interface {
	// Revoked reports whether the client may not have a tunnel any more.
	Revoked() bool
	// AppendState appends who it is to dst, for another process. ok is false if it cannot be known there.
	AppendState(dst takeover.State) (state takeover.State, ok bool)
}

// Timeouts in place of the cluster's; 0 means the cluster's.
type Timeouts struct{ Connect, FirstByte, Idle, Total time.Duration }

// times are the bounds in force, in nanoseconds.
type times struct{ connect, firstByte, idle int64 }

// run is the state of an exchange under way.
type run struct {
	tally     *tally
	times     times
	peer      *upstream.Peer // of the current attempt, until its end is reported to the cluster
	requested *upstream.Peer // the last one
	up        *upConn        // nil while waiting for a connection
	pool      *pool          // where it waits, or nil
	// began and firstByte are of the current attempt, started of the exchange.
	started, began, firstByte int64
	deadline                  int64 // 0: none
	clientsBound              bool  // deadline is Within's
	waitUntil                 int64
	pausedUntil               int64 // when the next attempt is made; 0: it does not wait for that
	sentBytes                 int64 // bytes of the request's body
	sentAt                    int64 // when the last of them came
	bytes                     int64 // of the reply's
	made                      int
	// lost: Head does not hold the whole request any more.
	lost bool
	// complete: the request's last byte was given.
	complete bool
	// answered: a byte of the reply went to the sink, so that there is no other attempt.
	answered   bool
	headed     bool // cluster.Head was called for this attempt
	awaitsRoom bool
	status     int
	hedgeAt    int64 // when a second attempt may be made; 0: not
	second     second
}

// An Exchange is one request to a cluster and its reply. It belongs to one loop and
// is the loop's again when it is over.
type Exchange struct {
	loopState *LoopState
	sink      Sink
	Call
	run
	tried upstream.Tried
}

// Start sends the request as far as it is there. The sink may be called before it
// returns: after that x may be over.
func (x *Exchange) Start() {
	x.tally = x.loopState.tallyOf(x.Cluster)
	x.started = x.loopState.loop.Now()
	t := &x.Cluster.Config().Timeouts
	x.times = times{connect: int64(t.Connect), firstByte: int64(t.FirstByte), idle: int64(t.Idle)}
	total := int64(t.Total)
	if o := x.Timeouts; o != nil {
		or(&x.times.connect, o.Connect)
		or(&x.times.firstByte, o.FirstByte)
		or(&x.times.idle, o.Idle)
		or(&total, o.Total)
	}
	if w := int64(x.Within); w > 0 {
		x.times.firstByte, x.times.idle = max(x.times.firstByte, w), max(x.times.idle, w)
		if total == 0 || w < total {
			total, x.clientsBound = w, true
		}
	}
	if total > 0 {
		x.deadline = x.started + total
	}
	x.complete = !x.Chunked && x.Length <= 0
	x.attempt()
}

func or(v *int64, d time.Duration) {
	if d > 0 {
		*v = int64(d)
	}
}

// setHost writes the peer's address into the head's Host field. A head that was
// given up is not sent again.
func (x *Exchange) setHost(peer *upstream.Peer) {
	const field = "\r\nHost: "
	i := bytes.Index(x.Head, []byte(field))
	if i < 0 || x.lost {
		return
	}
	i += len(field)
	host := peer.Host()
	if n := bytes.IndexByte(x.Head[i:], '\r'); n >= 0 {
		x.Head = slices.Replace(x.Head, i, i+n, []byte(host)...)
	}
}

// attempt sends the request to the next peer.
func (x *Exchange) attempt() {
	now := x.loopState.loop.Now()
	peer, err := x.Cluster.Pick(now, x.Key, &x.tried)
	if err != nil {
		x.fail(failures[causeOf(err)])
		return
	}
	x.peer, x.requested = peer, peer
	x.began, x.firstByte, x.bytes, x.status, x.headed = now, 0, 0, 0, false
	if x.made++; x.PeerHost {
		x.setHost(peer)
	}
	x.loopState.poolFor(x, peer).serve(x)
}

func causeOf(err error) Cause {
	if errors.Is(err, upstream.ErrOverloaded) {
		return Overloaded
	}
	return NoPeers
}

// Body sends a piece of the request's body. b may be reused when it returns.
// Calls of the sink meanwhile may end x.
func (x *Exchange) Body(b []byte) {
	if len(b) == 0 {
		return
	}
	if x.sentBytes += int64(len(b)); !x.Chunked && x.sentBytes > max(x.Length, 0) {
		panic("proxy: a body longer than its head declares") // it would be the next request
	}
	x.keep(b)
	u := x.up
	if u == nil {
		return
	}
	x.sentAt = x.loopState.loop.Now()
	if x.Chunked {
		line := http1.AppendChunkSize(x.loopState.line[:0], len(b))
		x.loopState.line = line
		u.write(line)
	}
	if u.x == x { // a send that fails ends the attempt
		u.write(b)
	}
	if u.x == x && x.Chunked {
		u.write(crlf)
	}
}

var crlf = []byte("\r\n")

// keep adds a piece of the body to what an attempt sends, as long as that is within
// the bound or there is no connection yet.
func (x *Exchange) keep(b []byte) {
	switch {
	case x.lost:
	case x.up != nil && (x.answered || len(x.Head)+len(b) > keepHead+x.loopState.proxy.cfg.Replay):
		x.forget()
	case x.Chunked:
		x.Head = http1.AppendChunk(x.Head, b)
	default:
		x.Head = append(x.Head, b...)
	}
}

// forget gives up what was kept for another attempt: there will be none.
func (x *Exchange) forget() {
	x.lost = true
	if x.Head = x.Head[:0]; cap(x.Head) > keepHead {
		x.Head = nil
	}
}

// End reports that the request's body is complete. trailer are the fields behind it, as
// lines that were validated; those that may not appear there are left out, and all of them
// where the body is not Chunked. It may be reused when End returns.
func (x *Exchange) End(trailer []byte) {
	if x.complete {
		return
	}
	x.complete = true
	var last []byte
	if x.Chunked {
		last = append(x.loopState.line[:0], "0\r\n"...)
		last = append(appendTrailers(last, trailer), "\r\n"...)
		x.loopState.line = last
	}
	if !x.lost {
		x.Head = append(x.Head, last...)
	}
	if u := x.up; u != nil {
		if x.Chunked {
			u.write(last)
		}
		if u.x == x {
			u.requestSent()
		}
	}
}

// Full reports whether no more of the body should be given for now; Sink.Room
// follows if so.
func (x *Exchange) Full() bool {
	if x.up == nil {
		x.awaitsRoom = len(x.Head) > x.loopState.proxy.cfg.Replay
	} else {
		x.awaitsRoom = x.up.backlog() > x.loopState.proxy.cfg.Buffer
		if x.awaitsRoom && !x.answered {
			x.up.writeIn()
		}
	}
	return x.awaitsRoom
}

// room notifies the sink that there is room again.
func (x *Exchange) room() {
	if x.awaitsRoom && !x.Full() {
		x.awaitsRoom = false
		if u := x.up; u != nil && u.phase == readingHead && !x.complete {
			u.noDeadline() // it is the client's turn
		}
		x.sink.Room(x)
	}
}

// Resume makes the reply's body come again, after Sink.Body returned true.
func (x *Exchange) Resume() {
	if u := x.up; u != nil && u.paused {
		u.paused = false
		u.deadlineIn(int64(x.Cluster.Config().Timeouts.Idle))
		u.c.ResumeReading()
	}
}

// Elapsed is the time since Start, and the time to the reply's head or 0, in nanoseconds.
func (x *Exchange) Elapsed() (total, firstByte int64) {
	total = x.loopState.loop.Now() - x.started
	if x.firstByte > 0 {
		firstByte = x.firstByte - x.started
	}
	return total, firstByte
}

// Last returns the peer that was asked last, empty if none was, and how often the
// request was repeated.
func (x *Exchange) Last() (peer string, retries int) {
	if x.requested != nil {
		peer = x.requested.Name()
	}
	return peer, max(x.made-1, 0)
}

// Cancel ends x: its client is gone. The sink is not called any more.
func (x *Exchange) Cancel() {
	x.tally.canceled.Add(1)
	x.leave(upstream.Canceled)
	x.loopState.recycle(x)
}

// leave ends the current attempt: its outcome is reported, the connection closed.
func (x *Exchange) leave(kind upstream.Kind) {
	if x.pool != nil {
		x.pool.forget(x)
	}
	if x.pausedUntil > 0 {
		x.loopState.unpause(x)
	}
	if s := x.second.up; s != nil {
		x.abandon(s, upstream.Canceled)
	}
	if u := x.up; u != nil {
		u.free(x)
		u.c.Close(nil)
	}
	x.done(kind)
}

// done reports to the cluster how the attempt ended.
func (x *Exchange) done(kind upstream.Kind) {
	if x.peer == nil {
		return
	}
	x.Cluster.Done(x.peer, x.outcome(kind))
	x.peer = nil
}

func (x *Exchange) outcome(kind upstream.Kind) upstream.Outcome {
	return upstream.Outcome{Kind: kind, Status: x.status, Start: x.began, FirstByte: x.firstByte, End: x.loopState.loop.Now(),
		Bytes: x.bytes, Headed: x.headed, Split: x.Split, Arm: x.Arm}
}

// retry makes another attempt, if one may be made after one that ended in kind. The
// attempt has its connection still, unless that is gone. The next one is made after wait
// nanoseconds.
func (x *Exchange) retry(kind upstream.Kind, wait int64) bool {
	if x.answered || x.lost || x.Attempts < 0 || x.Attempts > 0 && x.made > x.Attempts {
		return false
	}
	o := x.outcome(kind)
	if !x.Cluster.MayRetry(o.End, upstream.Attempt{Outcome: o, Made: x.made, Idempotent: idempotent(x.Method), Replayable: !x.lost}) {
		return false
	}
	x.tally.retries.Add(1)
	x.leave(kind)
	if wait > 0 {
		x.pause(wait)
	} else {
		x.attempt()
	}
	return true
}

// broken ends the attempt on u, and x unless another one runs or may be made.
func (x *Exchange) broken(u *upConn, kind upstream.Kind, cause Cause) {
	if x.second.up != nil {
		x.abandon(u, kind)
		return
	}
	if x.clientsBound && x.loopState.loop.Now() >= x.deadline { // the peer goes by it as well
		x.late()
		return
	}
	if x.retry(kind, 0) {
		return
	}
	x.leave(kind)
	x.fail(failures[cause])
}

// late ends x, whose deadline has passed. Where the client chose it, that says nothing of the
// peer.
func (x *Exchange) late() {
	kind := upstream.Timeout
	if x.clientsBound {
		kind = upstream.Canceled
	}
	x.leave(kind)
	x.fail(failures[TotalTimeout])
}

// fail ends x.
func (x *Exchange) fail(err *Error) {
	x.tally.failed[err.Cause].Add(1)
	x.sink.Fail(x, err)
	x.loopState.recycle(x)
}

// idempotent reports whether repeating a request does no harm (RFC 9110 §9.2.2).
func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE":
		return true
	}
	return false
}
