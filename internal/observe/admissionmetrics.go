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

// admissionMetrics are the classes and the limits, at scrape time.
type admissionMetrics struct {
	node                             *Node
	requests, queued, wait           *prometheus.Desc
	scale, connections, rates, level *prometheus.Desc
	marked, markErrors               *prometheus.Desc
}

// waitSteps are the bounds of the histogram that are shown: every other one.
const waitSteps = 2

func newAdmissionMetrics(a *Node, c *catalog) *admissionMetrics {
	m := &admissionMetrics{node: a}
	c.when = "With classes."
	m.requests = c.desc("weir_admission_requests_total",
		"Requests of a class, by what became of them: admitted, refused, expired, conflated, abandoned. Offered are all of them and those that wait.", "class", "outcome")
	m.queued = c.desc("weir_admission_queued_requests", "Requests of a class that wait for their turn.", "class")
	m.wait = c.histogram("weir_admission_wait_seconds", "How long the admitted requests of a class waited.", "class")
	m.scale = c.desc("weir_admission_scale_ratio", "What is left of the budgets of market and replay while the process is short of processors.")
	c.when = "With admission.marks."
	m.marked = c.desc("weir_socket_marks_total", "Times sockets were marked with DSCP and priority, by the class whose mark they got; none: they lost their mark.", "class")
	m.markErrors = c.desc("weir_socket_mark_errors_total", "Times the kernel refused to mark a socket.")
	c.when = ""
	m.connections = c.desc("weir_connections_refused_total", "Connections refused at accept, by what there was too much of.", "reason")
	c.when = "With limits."
	m.rates = c.desc("weir_limits_refused_total", "Requests refused by the limits of Weir's own endpoints.", "request")
	c.when = ""
	m.level = c.desc("weir_budget_level", "0 while there is enough, 1 when new subscriptions are rejected, 2 when new connections are refused.", "budget")
	return m
}

// Describe implements prometheus.Collector.
func (m *admissionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.queued, m.wait, m.scale, m.connections, m.rates, m.level, m.marked, m.markErrors} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *admissionMetrics) Collect(ch chan<- prometheus.Metric) {
	a := m.node
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	f := a.Limits.Stats()
	for _, r := range []struct {
		reason string
		n      uint64
	}{
		{"memory", a.Refusals.Memory.Load()}, {"descriptors", a.Refusals.Files.Load()},
		{"rate", f.ConnectRate}, {"per_address", f.Connections},
	} {
		emit(m.connections, prometheus.CounterValue, float64(r.n), r.reason)
	}
	emit(m.level, prometheus.GaugeValue, float64(a.Governor.MemoryBudget().Level), "memory")
	emit(m.level, prometheus.GaugeValue, float64(a.Governor.DescriptorBudget().Level), "descriptors")
	if a.Limits.Limits() {
		emit(m.rates, prometheus.CounterValue, float64(f.Publish), "publish")
		emit(m.rates, prometheus.CounterValue, float64(f.Subscribe), "subscribe")
	}
	if s, ok := a.Push.MarkStats(); ok {
		for c, n := range s.Marked {
			class := "none"
			if limit.Class(c) != limit.Unclassed {
				class = limit.Class(c).String()
			}
			emit(m.marked, prometheus.CounterValue, float64(n), class)
		}
		emit(m.markErrors, prometheus.CounterValue, float64(s.Failed))
	}
	all := a.AdmissionStats()
	if all == nil {
		return
	}
	emit(m.scale, prometheus.GaugeValue, float64(a.Refusals.Scale.Load())/1000)
	bounds := limit.WaitBounds()
	for i := range all {
		s := &all[i]
		class := s.Class.String()
		for _, o := range []struct {
			outcome string
			n       uint64
		}{{"admitted", s.Admitted}, {"refused", s.Refused}, {"expired", s.Expired}, {"conflated", s.Conflated}, {"abandoned", s.Abandoned}} {
			emit(m.requests, prometheus.CounterValue, float64(o.n), class, o.outcome)
		}
		emit(m.queued, prometheus.GaugeValue, float64(s.Queued), class)
		buckets, sum := map[float64]uint64{}, uint64(0)
		for k, n := range s.Waits {
			if sum += n; k < len(bounds) && k%waitSteps == 1 {
				buckets[bounds[k]] = sum
			}
		}
		ch <- prometheus.MustNewConstHistogram(m.wait, sum, s.Waited.Seconds(), buckets, class)
	}
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
