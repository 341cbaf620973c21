package observe

import (
	"slices"
	"strconv"

	"github.com/weir-gateway/weir/broker/nats"
)

// newBrokerMetrics shows the counters of the NATS broker.
func newBrokerMetrics(a *Node, c *catalog) *group {
	g := c.group("With the NATS broker.")
	one(g, "weir_broker_holes_total", "Times that messages were missing on the way from NATS to this node.", func() uint64 { return a.NATS.Stats().Holes })
	one(g, "weir_broker_holes_filled_messages_total", "Messages read from the log to fill holes.", func() uint64 { return a.NATS.Stats().Filled })
	one(g, "weir_broker_holes_gaps_total", "Holes that could not be filled, per channel: its subscribers got a gap.", func() uint64 { return a.NATS.Stats().Gaps })
	one(g, "weir_broker_reads_retried_total", "Reads of a log made again, because no replica had answered or no server served the log at that time.", func() uint64 { return a.NATS.Stats().RetriedReads })
	one(g, "weir_broker_servers_left_total", "NATS servers left because they seemed to be cut off from their cluster.", func() uint64 { return a.NATS.Stats().ServersLeft })
	one(g, "weir_broker_publishes_bridged_total", "Publishes kept to be sent again, because the log had no leader or the connection was lost.", func() uint64 { return a.NATS.Stats().Bridged })
	one(g, "weir_broker_channels_audited_total", "Times that all of a channel's retained messages were read and compared with its total.", func() uint64 { return a.NATS.Stats().Audited })
	one(g, "weir_broker_channels_damaged_total", "Audits that found messages which cannot be read: replays from before them get a gap.", func() uint64 { return a.NATS.Stats().Damaged })
	one(g, "weir_broker_channels_unaudited_total", "Channels that could not be audited: too many messages, or new ones all the time.", func() uint64 { return a.NATS.Stats().Unaudited })
	one(g, "weir_broker_audits_waiting", "Channels whose newest messages are kept for replays and have not been audited yet.", func() uint64 { return a.NATS.Stats().Unchecked })
	one(g, "weir_broker_logs_unmarked", "Logs of which the NATS servers keep no mark: one that loses its end while no node is connected is not found out.", func() uint64 { return a.NATS.Stats().Unmarked })
	stored := g.metric("weir_partition_stored_total", "Publishes of this node that a partition's log has acknowledged, of namespaces with several partitions.", "namespace", "partition")
	waiting := g.metric("weir_partition_publishes_waiting", "Publishes of this node that wait for a partition's answer.", "namespace", "partition")
	up := g.metric("weir_partition_up", "1 while publishes to a partition are stored.", "namespace", "partition")
	g.read(func(to scrape) {
		for _, p := range nats.Partitions(a.NATS) {
			partition := strconv.Itoa(p.Partition)
			put(to, stored, p.Stored, p.Namespace, partition)
			put(to, waiting, p.Waiting, p.Namespace, partition)
			put(to, up, truth(p.Err == nil), p.Namespace, partition)
		}
	})
	return g
}

// newSiteMetrics shows what is known of two sites.
func newSiteMetrics(a *Node, c *catalog) *group {
	g := c.group("With the NATS broker.")
	up := g.metric("weir_site_up", "1 while a site answers for a log, 0 when it has not for broker.nats.sites.detect.", "namespace", "partition", "site")
	term := g.metric("weir_site_term", "How often another site has taken a log over.", "namespace", "partition")
	behind := g.metric("weir_site_copy_behind", "Messages that the other site's copy of a log lacks.", "namespace", "partition")
	waiting := g.metric("weir_site_publishes_waiting", "Publishes of this node that are stored at one site and wait for the other.", "namespace", "partition")
	kept := g.metric("weir_site_kept_messages", "Messages that only the site has which led a log before; an operator decides about them.", "namespace", "partition")
	g.read(func(to scrape) {
		for _, s := range nats.SiteLogs(a.NATS) {
			partition := strconv.Itoa(s.Partition)
			for _, site := range []string{s.Leads, s.Copy} {
				put(to, up, truth(!slices.Contains(s.Lost, site)), s.Namespace, partition, site)
			}
			put(to, term, s.Term, s.Namespace, partition)
			put(to, behind, s.Behind, s.Namespace, partition)
			put(to, waiting, s.Waiting, s.Namespace, partition)
			put(to, kept, s.Kept, s.Namespace, partition)
		}
	})
	return g
}
