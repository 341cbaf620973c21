package stdhttp

import (
	"context"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/pushhttp"
	"github.com/weir-gateway/weir/internal/wire"
)

// UseTurns makes requests whose connections are carried by p's loops wait for their turn
// there if they have a class, under the same rules as those that the loops serve. Before
// requests come only.
func (f *Front) UseTurns(p *push.Push) {
	if p.Admits() {
		f.classes = p
	}
	f.push = p
}

var (
	_ pushhttp.Carrier = (*loopConn)(nil)
	_ carrier          = (*loopConn)(nil)
)

// awaitTurn implements carrier.
func (l *loopConn) awaitTurn(ctx context.Context, c limit.Class) (served, expired bool) {
	return l.push.AwaitTurn(ctx, l.c, c)
}

// call implements carrier.
func (l *loopConn) call(ctx context.Context, call *wire.Call, id *auth.Identity) (status int, body []byte, ok bool) {
	return l.push.PublishElsewhere(ctx, l.c, call, id)
}

// Loop implements pushhttp.Carrier.
func (l *loopConn) Loop() int { return l.loop.ID() }

// Post implements pushhttp.Carrier.
func (l *loopConn) Post(f func()) bool { return l.loop.Post(f) }

// Unsent implements pushhttp.Carrier.
func (l *loopConn) Unsent() int { return l.c.Unsent() + l.c.UnsentKernel() }

// Publish implements pushhttp.Carrier.
func (l *loopConn) Publish(topics []string, p hub.Publication, done func(hub.Position, error)) bool {
	return l.push != nil && l.push.PublishForElsewhere(l.c, topics, p, done)
}

// Replays implements pushhttp.Carrier.
func (l *loopConn) Replays(channels []string) bool {
	return l.push == nil || l.push.Replays(l.loop.ID(), channels)
}
