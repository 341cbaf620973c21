package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// AdmissionStats are those of every class, nil if there are none. Both fronts' requests
// wait in the loops' queues.
func (a *Node) AdmissionStats() []limit.ClassStats {
	if !a.Classed() {
		return nil
	}
	return a.Push.AdmissionStats()
}

// waitSteps are the bounds of the histogram that are shown: every other one.
const waitSteps = 2

// newAdmissionMetrics shows the classes.
func newAdmissionMetrics(a *Node, c *catalog) *group {
	g := c.group("With classes.")
	requests := g.metric("weir_admission_requests_total",
		"Requests of a class, by what became of them: admitted, refused, expired, conflated, abandoned. Offered are all of them and those that wait.", "class", "outcome")
	queued := g.metric("weir_admission_queued_requests", "Requests of a class that wait for their turn.", "class")
	wait := g.histogram("weir_admission_wait_seconds", "How long the admitted requests of a class waited.", "class")
	scale := g.metric("weir_admission_scale_ratio", "What is left of the budgets of market and replay while the process is short of processors.")
	g.read(func(to scrape) {
		all := a.AdmissionStats()
		if all == nil {
			return
		}
		put(to, scale, float64(a.Refusals.Scale.Load())/1000)
		bounds := limit.WaitBounds()
		for i := range all {
			s := &all[i]
			class := s.Class.String()
			putAll(to, requests, map[string]uint64{"admitted": s.Admitted, "refused": s.Refused, "expired": s.Expired, "conflated": s.Conflated, "abandoned": s.Abandoned}, class)
			put(to, queued, s.Queued, class)
			buckets, sum := map[float64]uint64{}, uint64(0)
			for k, n := range s.Waits {
				if sum += n; k < len(bounds) && k%waitSteps == 1 {
					buckets[bounds[k]] = sum
				}
			}
			to <- prometheus.MustNewConstHistogram(wait, sum, s.Waited.Seconds(), buckets, class)
		}
	})
	return g
}

// newLimitMetrics shows the limits of this node.
func newLimitMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	by(g, "weir_connections_refused_total", "Connections refused at accept, by what there was too much of.", "reason", func() map[string]uint64 {
		f := a.Limits.Stats()
		return map[string]uint64{"memory": a.Refusals.Memory.Load(), "descriptors": a.Refusals.Files.Load(), "rate": f.ConnectRate, "per_address": f.Connections}
	})
	by(g, "weir_budget_level", "0 while there is enough, 1 when new subscriptions are rejected, 2 when new connections are refused.", "budget", func() map[string]int {
		return map[string]int{"memory": int(a.Governor.MemoryBudget().Level), "descriptors": int(a.Governor.DescriptorBudget().Level)}
	})
	g.when = "With limits."
	by(g, "weir_limits_refused_total", "Requests refused by the limits of Weir's own endpoints.", "request", func() map[string]uint64 {
		if !a.Limits.Limits() {
			return nil
		}
		f := a.Limits.Stats()
		return map[string]uint64{"publish": f.Publish, "subscribe": f.Subscribe}
	})
	g.when = "With admission.marks."
	marked := g.metric("weir_socket_marks_total", "Times sockets were marked with DSCP and priority, by the class whose mark they got; none: they lost their mark.", "class")
	failed := g.metric("weir_socket_mark_errors_total", "Times the kernel refused to mark a socket.")
	g.read(func(to scrape) {
		s, ok := a.Push.MarkStats()
		if !ok {
			return
		}
		for c, n := range s.Marked {
			class := "none"
			if limit.Class(c) != limit.Unclassed {
				class = limit.Class(c).String()
			}
			put(to, marked, n, class)
		}
		put(to, failed, s.Failed)
	})
	return g
}

// admissionView is what the snapshot says of the classes. was is the last reading.
func admissionViews(now, was []limit.ClassStats, seconds float64) []admin.Admission {
	views := []admin.Admission{}
	for i := range now {
		s := &now[i]
		v := admin.Admission{Class: s.Class.String(), Offered: s.Offered, Admitted: s.Admitted, Rejected: s.Refused + s.Expired}
		waits := s.Waits
		if i < len(was) && seconds > 0 {
			w := &was[i]
			v.OfferedRate = float64(s.Offered-w.Offered) / seconds
			v.AdmittedRate = float64(s.Admitted-w.Admitted) / seconds
			v.RejectedRate = float64(s.Refused+s.Expired-w.Refused-w.Expired) / seconds
			waits = make([]uint64, len(s.Waits))
			for k := range waits {
				waits[k] = s.Waits[k] - w.Waits[k]
			}
		}
		v.DelayP50, v.DelayP95, v.DelayP99 = waited(waits, 0.5), waited(waits, 0.95), waited(waits, 0.99)
		views = append(views, v)
	}
	return views
}

// waited is a quantile of a histogram of waits, in seconds: the bound below which it is.
func waited(counts []uint64, q float64) float64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	bounds, sum := limit.WaitBounds(), uint64(0)
	for i, n := range counts {
		if sum += n; float64(sum) >= q*float64(total) {
			switch {
			case i == 0 && counts[0] > 0:
				return bounds[0] * q * float64(total) / float64(counts[0])
			case i < len(bounds):
				return bounds[i]
			}
			break
		}
	}
	return bounds[len(bounds)-1]
}
