package app

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/admin"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/governor"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/sys"
	"github.com/weir-gateway/weir/internal/tune"
	"github.com/weir-gateway/weir/internal/wire"
)

// sources is what the admin listener shows of this process, and does to it.
func (a *App) sources() admin.Sources {
	return admin.Sources{
		Ready:        a.push.Ready,
		Starting:     func() bool { return a.startTook.Load() == 0 },
		Metrics:      a.registry,
		Info:         a.info,
		Snapshot:     func(ctx context.Context) *admin.Snapshot { return a.snapshots.get(ctx, 0) },
		Live:         http.HandlerFunc(a.live.serve),
		Connections:  a.connections,
		Connection:   a.connection,
		Disconnect:   a.disconnect,
		Channels:     a.snapshots.channels,
		Messages:     a.messages,
		Publish:      a.publishByHand,
		Subscribe:    http.HandlerFunc(a.live.subscribe),
		BeginTrace:   a.tracer.begin,
		Trace:        a.tracer.get,
		Bundles:      a.bundles,
		Capture:      a.capture,
		OpenBundle:   func(id string) (io.ReadCloser, error) { return a.governor.Open(id) },
		Upstreams:    a.upstreamsView,
		SteerCanary:  a.steerCanary,
		Tune:         a.tuned,
		Reload:       func(ctx context.Context) (any, error) { return a.Reload(ctx) },
		Upgrade:      a.Upgrade,
		UpgradeState: a.UpgradeState,
		Diff:         func(ctx context.Context, text []byte) (any, error) { return a.Preview(ctx, text) },
		Sorts:        []string{"lag", "bytes", "age", "messages"},
		ChannelSorts: channelSorts,
		Page:         page(),
	}
}

// tuned compares the machine with a profile. Ports are those of the public listener.
func (a *App) tuned(p tune.Profile) (*tune.Report, error) {
	m := tune.Local("/")
	m.Listen = []int{int(a.addr.Port())}
	return tune.Run(m, p)
}

type info struct {
	Version     string    `json:"version"`
	Go          string    `json:"go"`
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`
	Listen      string    `json:"listen"`
	Engine      string    `json:"engine"`
	Loops       int       `json:"loops"`
	Broker      string    `json:"broker"`
	Ready       string    `json:"ready"` // "yes" or why not
	Connections int       `json:"connections"`
	MaxConns    int       `json:"max_conns"`
	SSE         int64     `json:"sse"`
	WebSocket   int64     `json:"websocket"`
	Channels    int64     `json:"channels"`
	Namespaces  []string  `json:"namespaces"`
	// RestartNeeded are the configuration keys whose newest value waits for a restart.
	RestartNeeded []string `json:"restart_needed"`
	// Sockets are the kernel's options of the public listener, asked and had.
	Sockets []eventloop.SocketOption `json:"sockets"`
}

func (a *App) info() any {
	p, h := a.push.Stats(), a.hub.Stats()
	v := info{
		Version: a.opt.Version, Go: runtime.Version(), PID: os.Getpid(), Started: a.started, Listen: a.addr.String(),
		Engine: a.loops.Engine(), Loops: len(a.loops.Loops()), Broker: a.cfg.Broker.Kind, Ready: "yes",
		Connections: a.loops.Open(), MaxConns: a.loops.MaxConns(), SSE: p.SSE, WebSocket: p.WebSocket, Channels: h.Channels,
		Sockets: a.loops.Sockets(),
	}
	if err := a.push.Ready(); err != nil {
		v.Ready = err.Error()
	}
	v.RestartNeeded = a.waitingForRestart()
	for _, n := range a.inForce().Namespaces {
		v.Namespaces = append(v.Namespaces, n.Name)
	}
	return v
}

// loopPatience is how long the loops are waited for: they may have much to do.
const loopPatience = 2 * time.Second

// connections asks every loop for its worst subscribers and returns the worst of all.
func (a *App) connections(ctx context.Context, sort string, limit int) (*admin.Connections, error) {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	n := a.push.Loops()
	got := make(chan push.Lags, n)
	by := func(l *push.Lag) float64 { return rank(l, sort) }
	a.push.Lags(limit, by, func(l push.Lags) { got <- l })
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
func (a *App) onConnection(ctx context.Context, id uint64, f func(*eventloop.Conn) bool) error {
	ctx, cancel := context.WithTimeout(ctx, loopPatience)
	defer cancel()
	gone := fmt.Errorf("%w: no subscriber has connection %d, or no longer", admin.ErrNotFound, id)
	loops := a.loops.Loops()
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
func (a *App) connection(ctx context.Context, id uint64) (*admin.ConnectionDetail, error) {
	out := make(chan admin.ConnectionDetail, 1)
	var peer netip.AddrPort
	err := a.onConnection(ctx, id, func(c *eventloop.Conn) bool {
		lag, ok := a.push.Inspect(c)
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
		d.TCP = tcpOf(a.sockets.of(a.addr, peer))
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
func (a *App) disconnect(ctx context.Context, id uint64) error {
	const why = "disconnected by the operator"
	err := a.onConnection(ctx, id, func(c *eventloop.Conn) bool { return a.push.Disconnect(c, why) })
	if err == nil {
		a.byHand.Add(1)
		a.log.Info("disconnected by hand", "conn", id)
	}
	return err
}

// messages is what /api/channels/{name}/messages answers.
func (a *App) messages(ctx context.Context, channel string, limit int) (*admin.Messages, error) {
	if err := hub.CheckChannel(channel); err != nil {
		return nil, fmt.Errorf("%w: %w", admin.ErrBad, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	h, err := a.hub.History(ctx, channel, hub.HistoryOptions{Limit: limit, Reverse: true})
	if errors.Is(err, hub.ErrUnknownNamespace) {
		err = fmt.Errorf("%w: %w", admin.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	out := &admin.Messages{Channel: channel, Messages: []admin.Message{}}
	if !h.Top.IsZero() {
		out.Position = h.Top.String()
	}
	for _, m := range slices.Backward(h.Messages) {
		out.Messages = append(out.Messages, messageOf(m))
	}
	return out, nil
}

// maxShown is how much of a payload is shown.
const maxShown = 16 << 10

func messageOf(m *hub.Message) admin.Message {
	v := admin.Message{Offset: m.Offset, Time: m.At(), Key: m.Key, Size: len(m.Data), Payload: "json"}
	if m.Offset != 0 {
		v.ID = m.Position().String()
	}
	kind := hub.JSON
	if m.Attributes != nil {
		v.Attributes, kind = m.Attributes, m.Attributes.Payload
	}
	data := m.Data
	switch {
	case kind == hub.Binary:
		v.Payload = "binary"
		v.Truncated = len(data) > maxShown
		v.Data, _ = json.Marshal(base64.StdEncoding.EncodeToString(data[:min(len(data), maxShown)]))
	case kind == hub.JSON && len(data) <= maxShown && json.Valid(data):
		v.Data = data
	default:
		if kind == hub.Text {
			v.Payload = "text"
		}
		v.Truncated = len(data) > maxShown
		v.Data, _ = json.Marshal(string(data[:min(len(data), maxShown)]))
	}
	return v
}

// publishByHand publishes what the operator wrote.
func (a *App) publishByHand(ctx context.Context, body []byte) (int, []byte) {
	if !a.cfg.Pushes() {
		bad := &wire.Error{Status: http.StatusConflict, Message: "there are no channels: this server only serves routes", Hint: "set broker.kind to nats or memory"}
		return bad.Status, wire.AppendError(nil, bad)
	}
	call, bad := wire.ParsePublish(a.hub, body)
	if bad != nil {
		return bad.Status, wire.AppendError(nil, bad)
	}
	return a.live.main.Publish(ctx, call, operator)
}

// operator may subscribe and publish everywhere.
var operator = func() *auth.Identity {
	id, err := auth.Granted("admin", []string{"**"}, []string{"**"}, time.Time{})
	if err != nil {
		panic("app: the grants of the operator are in order: " + err.Error())
	}
	return id
}()

// bundles are the evidence on disk, also what was written since the last sample.
func (a *App) bundles() *admin.Bundles {
	e := a.governor.Snapshot().Evidence
	if e.Bundles = a.governor.Bundles(); e.Bundles == nil {
		e.Bundles = []governor.Bundle{}
	}
	return &e
}

// capture writes a bundle of evidence.
func (a *App) capture(ctx context.Context, reason string) (*governor.Bundle, error) {
	b, err := a.governor.Capture(ctx, reason)
	if err != nil {
		return nil, err
	}
	return &b, nil
}
