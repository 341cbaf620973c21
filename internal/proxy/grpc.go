package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// A call of gRPC is answered 200 by HTTP whatever came of it: its own status is in the
// trailers, or in the head of a reply that has nothing else. What counts for a peer's health,
// for retries and for counters is that one, by what it is in HTTP.

// grpcStatuses are the statuses of HTTP for those of gRPC, as google.rpc.Code has them.
// UNIMPLEMENTED is 404 here: which method is called is the client's choice, and says nothing
// of the peer.
var grpcStatuses = [...]int{200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 404, 500, 503, 500, 401}

// grpcHTTP is the status of HTTP for the value of a grpc-status field.
func grpcHTTP(v []byte) int {
	n, err := strconv.ParseUint(string(v), 10, 8)
	if err != nil || int(n) >= len(grpcStatuses) {
		return 500 // UNKNOWN
	}
	return grpcStatuses[n]
}

// grpcHead looks for a status in the head of a reply.
func (x *Exchange) grpcHead(res *http1.Response) {
	if !x.GRPC || res.Status != 200 {
		return
	}
	if v := res.Get("grpc-status"); v != nil {
		x.status = grpcHTTP(v)
	}
}

// maxPushback is how long a request waits here for its next attempt. A peer that requests
// more is passed on to the client.
const maxPushback = 2 * time.Second

// pushback reads what the peer says of another attempt in grpc-retry-pushback-ms: after which
// time one may be made, in nanoseconds, and whether one may be made at all. It may not if the
// value is negative or no number (gRFC A6), or beyond what is waited for.
func (x *Exchange) pushback(res *http1.Response) (wait int64, may bool) {
	v := res.Get("grpc-retry-pushback-ms")
	if !x.GRPC || v == nil {
		return 0, true
	}
	n, err := strconv.ParseUint(string(v), 10, 31)
	wait = int64(n) * int64(time.Millisecond)
	return wait, err == nil && wait <= int64(maxPushback) && (x.deadline == 0 || x.loopState.loop.Now()+wait < x.deadline)
}

// pause makes the next attempt after wait nanoseconds. Meanwhile x has no connection, as one
// that waits for one in a pool.
func (x *Exchange) pause(wait int64) {
	l := x.loopState
	x.pausedUntil = l.loop.Now() + wait
	l.paused = append(l.paused, x)
	if !l.ticksPaused {
		l.ticksPaused = true
		l.tickPaused()
	}
}

const pauseTick = 10 * time.Millisecond

// tickPaused resumes those that wait shortly, and again as long as there are any.
func (l *LoopState) tickPaused() {
	time.AfterFunc(pauseTick, func() { l.loop.Post(l.resumePaused) })
}

// resumePaused makes the attempts whose time has come.
func (l *LoopState) resumePaused() {
	now := l.loop.Now()
	due := slices.DeleteFunc(slices.Clone(l.paused), func(x *Exchange) bool { return x.pausedUntil > now })
	for _, x := range due {
		if x.pausedUntil == 0 || x.pausedUntil > now {
			continue // another one's end was its own
		}
		l.unpause(x)
		if x.attempt(); x.up != nil {
			x.room()
		}
	}
	l.ticksPaused = len(l.paused) > 0
	if l.ticksPaused {
		l.tickPaused()
	}
}

// unpause takes x off the list of those that wait.
func (l *LoopState) unpause(x *Exchange) {
	x.pausedUntil = 0
	if i := slices.Index(l.paused, x); i >= 0 {
		l.paused = slices.Delete(l.paused, i, i+1)
	}
}

// grpcEnd looks for a status in the trailers, and counts the reply.
func (x *Exchange) grpcEnd(trailer []byte) {
	if !x.GRPC {
		return
	}
	for line := range bytes.Lines(trailer) {
		if name, v, ok := bytes.Cut(line, []byte(":")); ok && http1.EqualFold(name, "grpc-status") && x.status == 200 {
			x.status = grpcHTTP(bytes.TrimSpace(v))
		}
	}
	x.tally.codes[min(x.status/100, 5)].Add(1)
}
