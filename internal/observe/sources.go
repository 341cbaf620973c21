package observe

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/dashboard"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/observer"
	"github.com/weir-gateway/weir/internal/observe/tune"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// operatorCalls is what the admin listener shows of this process, and does to it.
type operatorCalls struct {
	*Watch
	cfg Config

	observing atomic.Bool // a request watches the process from the kernel
}

// sources is what the admin listener shows of this process, and does to it.
func (a *operatorCalls) sources() admin.Sources {
	return admin.Sources{
		Ready:        a.Push.Ready,
		Starting:     a.Starting,
		Metrics:      a.cfg.Registry,
		Info:         a.info,
		Snapshot:     func(ctx context.Context) *admin.Snapshot { return a.snapshots.get(ctx, 0) },
		Live:         http.HandlerFunc(a.live.serve),
		Connections:  a.clients.connections,
		Connection:   a.clients.connection,
		Disconnect:   a.clients.disconnect,
		Channels:     a.snapshots.channels,
		Messages:     a.messages,
		Publish:      a.publishByHand,
		Subscribe:    http.HandlerFunc(a.live.subscribe),
		BeginTrace:   a.tracer.begin,
		Trace:        a.tracer.get,
		Bundles:      a.bundles,
		Capture:      a.capture,
		OpenBundle:   func(id string) (io.ReadCloser, error) { return a.Governor.Open(id) },
		Certificates: a.certificates,
		Upstreams:    a.upstreamsView,
		Cluster:      a.cluster,
		Promote:      a.promote,
		SteerCanary:  a.steerCanary,
		Tune:         a.tuned,
		Observe:      a.observed,
		Reload:       a.cfg.Reload,
		Upgrade:      a.cfg.Upgrade,
		UpgradeState: a.cfg.UpgradeState,
		Ingest:       a.Node.Ingest,
		PauseSource:  a.cfg.PauseSource,
		Revoke:       a.cfg.Revoke,
		Unrevoke:     a.cfg.Unrevoke,
		Revocations:  a.cfg.Revocations,
		Diff:         a.cfg.Preview,
		Sorts:        []string{"lag", "bytes", "age", "messages"},
		ChannelSorts: channelSorts,
		Login:        a.login,
		Page:         dashboard.Files(),
	}
}

// tuned compares the machine with a profile. Ports are those of the public listener.
func (a *operatorCalls) tuned(p tune.Profile) (*tune.Report, error) {
	m := tune.Local("/")
	m.Listen = []int{int(a.Addr().Port())}
	return tune.Run(m, p)
}

// observed watches this process, for one request at a time.
func (a *operatorCalls) observed(ctx context.Context, d time.Duration) (*observer.Report, error) {
	if !a.observing.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w: another request watches the process", admin.ErrBusy)
	}
	defer a.observing.Store(false)
	return observer.Observe(ctx, observer.Options{PID: os.Getpid(), Duration: d})
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

func (a *operatorCalls) info() any {
	p, h := a.Push.Stats(), a.Hub.Stats()
	v := info{
		Version: a.Version, Go: runtime.Version(), PID: os.Getpid(), Started: a.Started, Listen: a.Addr().String(),
		Engine: a.Loops.Engine(), Loops: len(a.Loops.Loops()), Broker: a.Broker, Ready: "yes",
		Connections: a.Loops.Open(), MaxConns: a.Loops.MaxConns(), SSE: p.SSE, WebSocket: p.WebSocket, Channels: h.Channels,
		Sockets: a.Loops.Sockets(),
	}
	if err := a.Push.Ready(); err != nil {
		v.Ready = err.Error()
	}
	v.RestartNeeded, v.Namespaces = a.RestartNeeded(), a.Namespaces()
	return v
}

// messages is what /api/channels/{name}/messages answers.
func (a *operatorCalls) messages(ctx context.Context, channel string, limit int) (*admin.Messages, error) {
	if err := hub.CheckChannel(channel); err != nil {
		return nil, fmt.Errorf("%w: %w", admin.ErrBad, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	h, err := a.Hub.History(ctx, channel, hub.HistoryOptions{Limit: limit, Reverse: true})
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
func (a *operatorCalls) publishByHand(ctx context.Context, body []byte) (int, []byte) {
	if !a.Pushes {
		bad := &wire.Error{Status: http.StatusConflict, Message: "there are no channels: this server only serves routes", Hint: "set broker.kind to nats or memory"}
		return bad.Status, wire.AppendError(nil, bad)
	}
	call, bad := wire.ParsePublish(a.Hub, body)
	if bad != nil {
		return bad.Status, wire.AppendError(nil, bad)
	}
	return a.live.main.Publish(ctx, call, operator)
}

// operator may subscribe and publish everywhere.
var operator = func() *auth.Identity {
	id, err := auth.Granted("admin", []string{"**"}, []string{"**"}, time.Time{})
	if err != nil {
		panic("observe: the grants of the operator are in order: " + err.Error())
	}
	return id
}()

// bundles are the evidence on disk, also what was written since the last sample.
func (a *operatorCalls) bundles() *admin.Bundles {
	e := a.Governor.Snapshot().Evidence
	if e.Bundles = a.Governor.Bundles(); e.Bundles == nil {
		e.Bundles = []governor.Bundle{}
	}
	return &e
}

// capture writes a bundle of evidence.
func (a *operatorCalls) capture(ctx context.Context, reason string) (*governor.Bundle, error) {
	b, err := a.Governor.Capture(ctx, reason)
	if err != nil {
		return nil, err
	}
	return &b, nil
}
