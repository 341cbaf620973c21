package push

import (
	"context"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/limit"
)

// What comes over HTTP/2 is served on goroutines, but a loop carries its connection. What
// has a class waits in that loop's queue, with everything else that the loop has to do:
// there is one order, and one set of counters, for both fronts. The methods here are for
// any goroutine.

// turn is a request that is served elsewhere, in the queue of its connection's loop.
type turn struct {
	conn *eventloop.Conn
	gone <-chan struct{}
	told chan verdict // holds one
}

// verdict is what became of a turn.
type verdict struct{ served, expired bool }

var _ Job = (*turn)(nil)

// Serve implements Job.
func (t *turn) Serve() { t.told <- verdict{served: true} }

// Shed implements Job.
func (t *turn) Shed(expired bool) { t.told <- verdict{expired: expired} }

// Gone implements Job.
func (t *turn) Gone() bool {
	select {
	case <-t.gone:
		return true
	default:
		return t.conn.Closing()
	}
}

// Conn implements Job.
func (t *turn) Conn() *eventloop.Conn { return t.conn }

// Fanout implements Job.
func (t *turn) Fanout() (n int, channel string) { return 0, "" }

// AwaitTurn waits for the turn of a request of class c, not Unclassed, that came over
// conn. If it is not to be served, expired says that it waited for too long; its client
// may be gone as well.
func (p *Push) AwaitTurn(ctx context.Context, conn *eventloop.Conn, c limit.Class) (served, expired bool) {
	t := &turn{conn: conn, gone: ctx.Done(), told: make(chan verdict, 1)}
	if !conn.Loop().Post(func() {
		l := p.Lane(conn)
		late, now := l.Late()
		switch v, _ := l.Offer(c, limit.Key{}, t, late, now); v {
		case limit.Go:
			t.Serve()
			l.Served(c, 0, now)
		case limit.Refuse:
			t.Shed(false)
		case limit.Wait, limit.Replaced:
		}
	}) {
		return false, false
	}
	select {
	case v := <-t.told:
		return v.served, v.expired
	case <-ctx.Done():
		return false, false
	}
}

// PublishElsewhere is Publish for a goroutine: it waits for the answer, which is the
// caller's. Without an answer ctx is done, or the loop has ended.
func (p *Push) PublishElsewhere(ctx context.Context, conn *eventloop.Conn, call *Call, who *auth.Identity) (status int, body []byte, ok bool) {
	type answer struct {
		status int
		body   []byte
	}
	told := make(chan answer, 1)
	if !conn.Loop().Post(func() {
		p.Publish(conn, call, who, func(status int, body []byte) { told <- answer{status, append([]byte(nil), body...)} })
	}) {
		return 0, nil, false
	}
	select {
	case a := <-told:
		return a.status, a.body, true
	case <-ctx.Done():
		return 0, nil, false
	}
}

// PublishForElsewhere is PublishFor, and PublishTopicsFor with topics, for a goroutine,
// where there are limits or the channel has a class; it returns false otherwise, and does
// nothing. done is called on conn's loop, or from here.
func (p *Push) PublishForElsewhere(conn *eventloop.Conn, topics []string, pub hub.Publication, done func(hub.Position, error)) bool {
	channel := pub.Channel
	if len(topics) > 0 {
		channel = topics[0]
	}
	if !p.front.Limits() && p.ClassOf(channel) == limit.Unclassed {
		return false
	}
	if !conn.Loop().Post(func() { p.publishFor(conn, topics, pub, done) }) {
		done(hub.Position{}, hub.ErrClosed)
	}
	return true
}

// Replays reports whether there is time on conn's loop for the history of channels, asked
// for in a session that is open already, and counts that.
func (p *Push) Replays(loop int, channels []string) bool {
	if p.classes == nil {
		return true
	}
	c := p.ReplayClass(channels)
	return c == limit.Unclassed || p.lanes[loop].admission.queue.JudgeFar(c)
}
