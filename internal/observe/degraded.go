package observe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// The degraded modes: in each the node serves what it still can, and leaves it by itself.
const (
	// modeBroker: what is to be stored, of all or of some partitions, is refused with 503, what is not waits for the
	// connection; clients stay connected.
	modeBroker = "broker-away"
	// modeDiskFull and modeDiskReadOnly: publishing is refused with 507, reading works.
	modeDiskFull     = "disk-full"
	modeDiskReadOnly = "disk-read-only"
	// modeDescriptors and modeMemory: new connections are refused.
	modeDescriptors = "descriptors"
	modeMemory      = "memory"
)

// modes are all of them, each with the alert that has its runbook.
var modes = []struct{ name, alert string }{
	{modeBroker, "WeirBrokerAway"},
	{modeDiskFull, "WeirDiskFull"},
	{modeDiskReadOnly, "WeirDiskReadOnly"},
	{modeDescriptors, "WeirDescriptorsHard"},
	{modeMemory, "WeirMemoryHard"},
}

// degradedEvery is how often a node looks for its modes.
const degradedEvery = 500 * time.Millisecond

// degraded knows which modes the node is in, and since when.
type degraded struct {
	*Node

	mu     sync.Mutex
	active map[string]admin.Degradation
}

// run looks until ctx is done.
func (d *degraded) run(ctx context.Context) error {
	tick := time.NewTicker(degradedEvery)
	defer tick.Stop()
	for {
		d.look(time.Now(), d.reasons())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// reasons are why the node is degraded, by mode.
func (d *degraded) reasons() map[string]string {
	out := map[string]string{}
	switch err := d.Hub.Ready(); {
	case err == nil:
		if reason := d.partitionsAway(); reason != "" {
			out[modeBroker] = reason
		}
	case errors.Is(err, hub.ErrClosed):
	case errors.Is(err, nats.ErrReadOnlyDisk):
		out[modeDiskReadOnly] = err.Error()
	case errors.Is(err, hub.ErrStorageFull):
		out[modeDiskFull] = err.Error()
	default:
		out[modeBroker] = err.Error()
	}
	budget := func(mode, what string, b governor.Budget) {
		if b.Level == governor.BudgetHard {
			out[mode] = fmt.Sprintf("%s: %.0f %% of the limit is used, new connections are refused", what, 100*b.Fraction)
		}
	}
	budget(modeDescriptors, "descriptors", d.Governor.DescriptorBudget())
	budget(modeMemory, "memory", d.Governor.MemoryBudget())
	return out
}

// partitionsAway returns why publishes to some partitions are not stored, while others are.
func (d *degraded) partitionsAway() string {
	if d.NATS == nil {
		return ""
	}
	var away []string
	for _, p := range nats.Partitions(d.NATS) {
		if p.Err != nil {
			away = append(away, p.Err.Error())
		}
	}
	return strings.Join(away, "; ")
}

// look compares reasons with the modes so far, and logs what began and what ended.
func (d *degraded) look(now time.Time, reasons map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range modes {
		was, before := d.active[m.name]
		text, is := reasons[m.name]
		switch {
		case is && before:
			was.Reason = text
			d.active[m.name] = was
		case is:
			d.active[m.name] = admin.Degradation{Mode: m.name, Since: now, Reason: text, Alert: m.alert}
			d.Log.Warn("degraded mode entered", "mode", m.name, "reason", text, "runbook", m.alert)
		case before:
			delete(d.active, m.name)
			d.Log.Info("degraded mode left", "mode", m.name, "after", now.Sub(was.Since).Round(time.Millisecond))
		}
	}
}

// list returns the modes that the node is in, in the order of modes.
func (d *degraded) list() []admin.Degradation {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := []admin.Degradation{}
	for _, m := range modes {
		if a, ok := d.active[m.name]; ok {
			out = append(out, a)
		}
	}
	return out
}

// newDegradedMetrics shows every mode.
func newDegradedMetrics(d *degraded, c *catalog) *group {
	g := c.group("")
	by(g, "weir_degraded", "1 while the node is in this degraded mode: it serves what it still can.", "mode", func() map[string]int {
		all := map[string]int{}
		for _, m := range modes {
			all[m.name] = 0
		}
		for _, a := range d.list() {
			all[a.Mode] = 1
		}
		return all
	})
	return g
}
