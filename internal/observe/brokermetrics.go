package observe

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/broker/nats"
)

// newBrokerMetrics reads the counters of the NATS broker.
func newBrokerMetrics(a *Node, c *catalog) *coreMetrics {
	m := &coreMetrics{node: a}
	c.when = "With the NATS broker."
	defer func() { c.when = "" }()
	one := func(name, help string, v func(s nats.Stats) uint64) {
		m.list = append(m.list, metric{c.desc(name, help), prometheus.CounterValue, func(emit func(float64, ...string)) {
			emit(float64(v(a.NATS.Stats())))
		}})
	}
	one("weir_broker_holes_total", "Times that messages were missing on the way from NATS to this node.", func(s nats.Stats) uint64 { return s.Holes })
	one("weir_broker_holes_filled_messages_total", "Messages read from the log to fill holes.", func(s nats.Stats) uint64 { return s.Filled })
	one("weir_broker_holes_gaps_total", "Holes that could not be filled, per channel: its subscribers got a gap.", func(s nats.Stats) uint64 { return s.Gaps })
	one("weir_broker_reads_retried_total", "Reads of a log made again, because no replica had answered or no server served the log at that time.", func(s nats.Stats) uint64 { return s.RetriedReads })
	one("weir_broker_servers_left_total", "NATS servers left because they seemed to be cut off from their cluster.", func(s nats.Stats) uint64 { return s.ServersLeft })
	one("weir_broker_publishes_bridged_total", "Publishes kept to be sent again, because the log had no leader or the connection was lost.", func(s nats.Stats) uint64 { return s.Bridged })
	one("weir_broker_channels_audited_total", "Times that all of a channel's retained messages were read and compared with its total.", func(s nats.Stats) uint64 { return s.Audited })
	one("weir_broker_channels_damaged_total", "Audits that found messages which cannot be read: replays from before them get a gap.", func(s nats.Stats) uint64 { return s.Damaged })
	one("weir_broker_channels_unaudited_total", "Channels that could not be audited: too many messages, or new ones all the time.", func(s nats.Stats) uint64 { return s.Unaudited })
	m.list = append(m.list, metric{c.desc("weir_broker_audits_waiting", "Channels whose newest messages are kept for replays and have not been audited yet."), prometheus.GaugeValue, func(emit func(float64, ...string)) {
		emit(float64(a.NATS.Stats().Unchecked))
	}})
	m.list = append(m.list, metric{c.desc("weir_broker_logs_unmarked", "Logs of which the NATS servers keep no mark: one that loses its end while no node is connected is not found out."), prometheus.GaugeValue, func(emit func(float64, ...string)) {
		emit(float64(a.NATS.Stats().Unmarked))
	}})
	partition := func(name, help string, kind prometheus.ValueType, v func(p nats.PartitionStatus) float64) {
		m.list = append(m.list, metric{c.desc(name, help, "namespace", "partition"), kind, func(emit func(float64, ...string)) {
			for _, p := range nats.Partitions(a.NATS) {
				emit(v(p), p.Namespace, strconv.Itoa(p.Partition))
			}
		}})
	}
	partition("weir_partition_stored_total", "Publishes of this node that a partition's log has acknowledged, of namespaces with several partitions.",
		prometheus.CounterValue, func(p nats.PartitionStatus) float64 { return float64(p.Stored) })
	partition("weir_partition_publishes_waiting", "Publishes of this node that wait for a partition's answer.",
		prometheus.GaugeValue, func(p nats.PartitionStatus) float64 { return float64(p.Waiting) })
	partition("weir_partition_up", "1 while publishes to a partition are stored.", prometheus.GaugeValue, func(p nats.PartitionStatus) float64 {
		if p.Err != nil {
			return 0
		}
		return 1
	})
	m.sites(c, a)
	return m
}

// sites adds what is known of two sites.
func (m *coreMetrics) sites(c *catalog, a *Node) {
	site := func(name, help string, v func(s nats.SiteStatus) float64) {
		m.list = append(m.list, metric{c.desc(name, help, "namespace", "partition"), prometheus.GaugeValue, func(emit func(float64, ...string)) {
			for _, s := range nats.SiteLogs(a.NATS) {
				emit(v(s), s.Namespace, strconv.Itoa(s.Partition))
			}
		}})
	}
	m.list = append(m.list, metric{c.desc("weir_site_up", "1 while a site answers for a log, 0 when it has not for broker.nats.sites.detect.", "namespace", "partition", "site"), prometheus.GaugeValue,
		func(emit func(float64, ...string)) {
			for _, s := range nats.SiteLogs(a.NATS) {
				for _, name := range []string{s.Leads, s.Copy} {
					up := 1.0
					if slices.Contains(s.Lost, name) {
						up = 0
					}
					emit(up, s.Namespace, strconv.Itoa(s.Partition), name)
				}
			}
		}})
	site("weir_site_term", "How often another site has taken a log over.", func(s nats.SiteStatus) float64 { return float64(s.Term) })
	site("weir_site_copy_behind", "Messages that the other site's copy of a log lacks.", func(s nats.SiteStatus) float64 { return float64(s.Behind) })
	site("weir_site_publishes_waiting", "Publishes of this node that are stored at one site and wait for the other.", func(s nats.SiteStatus) float64 { return float64(s.Waiting) })
	site("weir_site_kept_messages", "Messages that only the site has which led a log before; an operator decides about them.", func(s nats.SiteStatus) float64 { return float64(s.Kept) })
}
