package observe

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// live are the streams of the admin listener. Snapshots go through a hub of their own, in
// this process alone: what an operator sees of one node is nothing for the others, nor
// for clients with wide grants. Channels come from the hub that everybody uses.
type live struct {
	// Fixed at newLive.
	node  *Node
	snaps *snapshots
	own   *hub.Hub
	pages *pushhttp.Server // of own
	main  *pushhttp.Server // of the app's hub
	every time.Duration
	woken chan struct{} // holds one: a client listens
}

// liveChannel is where the snapshots are published, while a client listens.
const liveChannel = "live"

func newLive(a *Node, s *snapshots, rate int) (*live, error) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	ns := []hub.Namespace{{Name: hub.DefaultNamespace, Durability: hub.None, MaxMessageBytes: 1 << 20, Policy: hub.DropOldest, QueueMessages: 4, QueueBytes: 8 << 20, Anonymous: true}}
	own, err := wire.NewFormats(ns)
	if err != nil {
		return nil, err
	}
	l := &live{node: a, snaps: s, every: time.Second / time.Duration(max(rate, 1)), woken: make(chan struct{}, 1)}
	quiet := slog.New(slog.DiscardHandler)
	if l.own, err = hub.New(hub.Config{Namespaces: ns, Encoders: own.Encoders(), Log: quiet}, b); err != nil {
		return nil, err
	}
	if l.pages, err = pushhttp.New(pushhttp.Config{Heartbeat: 10 * time.Second, Retry: time.Second}, pushhttp.Deps{Formats: own, Hub: l.own, Log: quiet}); err != nil {
		return nil, err
	}
	l.main, err = pushhttp.New(pushhttp.Config{Retry: time.Second}, pushhttp.Deps{Formats: a.Formats, Hub: a.Hub, Log: a.Log})
	return l, err
}

// run publishes snapshots while a client listens, and ends when ctx is done.
func (l *live) run(ctx context.Context, start func(func() error)) error {
	if err := l.own.Start(ctx); err != nil {
		return err
	}
	start(func() error { return l.pages.Run(ctx) })
	start(func() error { return l.main.Run(ctx) })
	start(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-l.woken:
				l.publish(ctx)
			}
		}
	})
	return nil
}

// publish publishes until no client listens.
func (l *live) publish(ctx context.Context) {
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	var last time.Time
	for l.snaps.listeners.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s := l.snaps
		v := s.get(ctx, 3)
		if v.Time.Equal(last) {
			continue // a late tick, and the next one right behind it
		}
		last = v.Time
		b, err := json.Marshal(v)
		if err != nil {
			l.node.Log.Error("snapshot", "err", err)
			return
		}
		s.bytes.Store(int64(len(b)))
		l.own.Publish(hub.Publication{Channel: liveChannel, Data: b}, func(_ hub.Position, err error) {
			if err == nil {
				s.events.Add(1)
			}
		})
	}
}

// serve is GET /api/live.
func (l *live) serve(w http.ResponseWriter, r *http.Request) {
	n := &l.snaps.listeners
	n.Add(1)
	defer n.Add(-1)
	select {
	case l.woken <- struct{}{}:
	default:
	}
	l.pages.ServeSSE(w, r, &wire.Subscription{Channels: []string{liveChannel}}, auth.Anonymous)
}

// subscribe is GET /api/subscribe.
func (l *live) subscribe(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	sub := &wire.Subscription{Channels: q["channel"], Since: r.Header.Get("Last-Event-ID"), Envelope: true}
	if sub.Since == "" {
		sub.Since = q.Get("lastEventId")
	}
	if len(sub.Channels) == 0 || len(sub.Channels) > hub.MaxSubscriberChannels {
		pushhttp.Fail(w, &wire.Error{Status: http.StatusBadRequest, Message: "channel: name one to 128 in the query", Hint: "/api/subscribe?channel=news"})
		return
	}
	for _, ch := range sub.Channels {
		_, err := l.node.Hub.Namespace(ch)
		if err == nil {
			err = hub.CheckChannel(ch)
		}
		if err != nil {
			pushhttp.Fail(w, wire.ErrorOf(err))
			return
		}
	}
	l.main.ServeSSE(w, r, sub, operator)
}

func (l *live) close() error { return l.own.Close() }
