package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push"
)

// clients are the connections as an operator sees them, one by one.
type clients struct {
	*Node
	sockets socketInfo
	byHand  atomic.Uint64 // subscribers that the operator disconnected
}

// connections queries every loop for its worst subscribers and returns the worst of all.
func (a *clients) connections(ctx context.Context, sort string, limit int) (*admin.Connections, error) {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	n := a.Push.Loops()
	got := make(chan push.Lags, n)
	by := func(l *push.Lag) float64 { return rank(l, sort) }
	a.Push.Lags(limit, by, func(l push.Lags) { got <- l })
	total, worst := 0, []push.Lag{}
	missing := make(map[int]bool, n)
	for i := range n {
		missing[i] = true
	}
	for waiting := true; waiting && len(missing) > 0; {
		select {
		case r := <-got:
			delete(missing, r.Loop)
			total += r.Total
			worst = append(worst, r.Worst...)
		case <-ctx.Done():
			waiting = false
		}
	}
	if len(missing) == n {
		return nil, errors.New("no loop answered in time")
	}
	slices.SortStableFunc(worst, func(x, y push.Lag) int { return cmp.Compare(by(&y), by(&x)) })
	worst = worst[:min(limit, len(worst))]
	out := &admin.Connections{Total: total, Sort: sort, Missing: slices.Sorted(maps.Keys(missing)), Connections: make([]admin.Connection, len(worst))}
	for i := range worst {
		out.Connections[i] = connectionOf(&worst[i])
	}
	return out, nil
}

func connectionOf(l *push.Lag) admin.Connection {
	return admin.Connection{
		ID: strconv.FormatUint(l.Conn, 10), Conn: l.Conn, Loop: l.Loop, Peer: l.Peer, Transport: l.Transport, Subject: l.Subject, Channels: l.Channels,
		Since: l.Since, Messages: l.Messages, Bytes: l.Bytes, Kernel: l.Kernel, Age: l.Age, Protocol: l.Protocol, HTTP2: l.HTTP2, HTTP3: l.HTTP3,
	}
}

// rank is what connections are sorted by. "lag" counts what the kernel holds too,
// "bytes" only what waits here.
func rank(l *push.Lag, sort string) float64 {
	switch sort {
	case "messages":
		return float64(l.Messages)
	case "age":
		return l.Age
	case "bytes":
		return float64(l.Bytes)
	default:
		return float64(l.Bytes) + float64(l.Kernel)
	}
}

// onConnection runs f on the loop of connection id, if that is open, and waits for it.
func (a *clients) onConnection(ctx context.Context, id uint64, f func(*eventloop.Conn) bool) error {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	gone := fmt.Errorf("%w: no subscriber has connection %d, or no longer", admin.ErrNotFound, id)
	loops := a.Loops.Loops()
	if id>>56 >= uint64(len(loops)) {
		return gone
	}
	l := loops[id>>56]
	found := make(chan bool, 1)
	if !l.Post(func() {
		c := l.Find(id)
		found <- c != nil && f(c)
	}) {
		return gone
	}
	select {
	case ok := <-found:
		if !ok {
			return gone
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("loop %d did not answer in time", l.ID())
	}
}

// connection is what /api/connections/{id} answers.
func (a *clients) connection(ctx context.Context, id uint64) (*admin.ConnectionDetail, error) {
	out := make(chan admin.ConnectionDetail, 1)
	var peer netip.AddrPort
	err := a.onConnection(ctx, id, func(c *eventloop.Conn) bool {
		lag, ok := a.Push.Inspect(c)
		if !ok {
			return false
		}
		d := admin.ConnectionDetail{Connection: connectionOf(&lag), Open: time.Since(lag.Since).Seconds(), Stalled: c.Stalled()}
		d.TCP = tcpOf(c.TCPInfo())
		peer = c.Peer()
		out <- d
		return true
	})
	if err != nil {
		return nil, err
	}
	d := <-out
	if d.TCP == nil {
		d.TCP = tcpOf(a.sockets.of(a.Addr(), peer))
	}
	return &d, nil
}

// tcpOf is t as it is shown; nil if there is none.
func tcpOf(t sys.TCPInfo, ok bool) *admin.TCP {
	if !ok {
		return nil
	}
	return &admin.TCP{
		RTT: t.RTT.Seconds(), Unsent: t.Unsent, Unacked: t.Unacked, Segments: t.Segments, Retransmits: t.Retransmits,
		Busy: t.Busy.Seconds(), WindowLimited: t.ReaderLimited.Seconds(), BufferLimited: t.BufferLimited.Seconds(),
	}
}

// disconnect ends a subscriber's connection.
func (a *clients) disconnect(ctx context.Context, id uint64) error {
	const why = "disconnected by the operator"
	err := a.onConnection(ctx, id, func(c *eventloop.Conn) bool { return a.Push.Disconnect(c, why) })
	if err == nil {
		a.byHand.Add(1)
		a.Log.Info("disconnected by hand", "conn", id)
	}
	return err
}

func (a *clients) consumers(n int) []governor.Consumer {
	c, err := a.connections(context.Background(), "lag", n)
	if err != nil {
		return nil
	}
	all := make([]governor.Consumer, len(c.Connections))
	for i, x := range c.Connections {
		all[i] = governor.Consumer{
			ID: x.ID, Peer: x.Peer, Protocol: x.Transport, Loop: x.Loop, Messages: uint64(x.Messages), Bytes: uint64(x.Bytes + x.Kernel), Seconds: x.Age,
		}
	}
	return all
}
