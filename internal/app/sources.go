package app

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/weir-gateway/weir/internal/admin"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/push"
)

// sources is what the admin listener shows of this process.
func (a *App) sources() admin.Sources {
	return admin.Sources{
		Metrics: []prometheus.Collector{
			collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newMetrics(a), newLagMetrics(a), newWingMetrics(a), newRecordMetrics(a),
		},
		Info:        a.info,
		Connections: a.connections,
		Sorts:       []string{"lag", "bytes", "age", "messages"},
		Upstreams:   a.upstreamsView,
		SteerCanary: a.steerCanary,
		Reload:      func(ctx context.Context) (any, error) { return a.Reload(ctx) },
	}
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
	for _, n := range a.cfg.Namespaces {
		v.Namespaces = append(v.Namespaces, n.Name)
	}
	return v
}

type connections struct {
	Total       int        `json:"total"`
	Sort        string     `json:"sort"`
	Missing     []int      `json:"loops_not_answering,omitempty"`
	Connections []push.Lag `json:"connections"`
}

// connections asks every loop for its worst subscribers and returns the worst of all.
func (a *App) connections(ctx context.Context, sort string, limit int) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n := a.push.Loops()
	got := make(chan push.Lags, n)
	by := func(l *push.Lag) float64 { return rank(l, sort) }
	a.push.Lags(limit, by, func(l push.Lags) { got <- l })
	out := connections{Sort: sort, Connections: []push.Lag{}}
	missing := make(map[int]bool, n)
	for i := range n {
		missing[i] = true
	}
	for waiting := true; waiting && len(missing) > 0; {
		select {
		case r := <-got:
			delete(missing, r.Loop)
			out.Total += r.Total
			out.Connections = append(out.Connections, r.Worst...)
		case <-ctx.Done():
			waiting = false
		}
	}
	if len(missing) == n {
		return nil, errors.New("no loop answered in time")
	}
	out.Missing = slices.Sorted(maps.Keys(missing))
	slices.SortStableFunc(out.Connections, func(x, y push.Lag) int { return cmp.Compare(by(&y), by(&x)) })
	out.Connections = out.Connections[:min(limit, len(out.Connections))]
	return out, nil
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
