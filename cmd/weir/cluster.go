package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

func newCluster() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Inspect the nodes of a cluster",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(newClusterStatus(), newClusterPromote())
	return cmd
}

func newClusterPromote() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "promote [namespace ...]",
		Short: "Make a node's site the leader of the logs of two sites",
		Long: `Promote makes the site of that node the leader of the logs of the named namespaces, or
of all of them (broker.nats.sites).

If the leading site responds, it releases each log first: publications wait meanwhile, and nothing is lost.
If it does not, the copy takes over as it is: make sure that the other site no longer accepts
publications. With both_sites the copy has all that was acknowledged and positions stay valid;
otherwise clients receive a gap.`,
		Example: `  weir cluster promote --admin http://gw-b1.example:8001 --token "$TOKEN"
  weir cluster promote orders`,
		Args: cobra.ArbitraryArgs,
	}
	return onAdmin(cmd, adminToken, func(cmd *cobra.Command, args []string, src *topSource) error {
		var c admin.Cluster
		if err := src.post(cmd.Context(), "/api/cluster/promote?"+url.Values{"namespace": args}.Encode(), &c); err != nil {
			return adminError("cluster promote", err)
		}
		return clusterText(cmd.OutOrStdout(), &c)
	})
}

func newClusterStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the nodes, the leaders of the logs, and problems",
		Long: `Status requests the cluster's state from one node's admin listener, as that node sees it: every
node with its health and load, every namespace's log, or the logs of its partitions, with their
leaders and the replicas that are behind, and a description of each problem.

The exit status is 0 if there is no problem, and 1 otherwise: a node that is not ready, a
log without a leader, a replica that is offline or behind, or fewer nodes than --expect.
A stopped node is not listed: the registry removes it after cluster.lease.`,
		Example: `  weir cluster status
  weir cluster status --expect 3 --admin https://gw-1.example:8001 --token "$TOKEN"
  weir cluster status --json | jq '.nodes[] | {name, connections}'`,
		Args: cobra.NoArgs,
	}
	expect := cmd.Flags().Int("expect", 0, "expected number of nodes; fewer is an error")
	asJSON := cmd.Flags().Bool("json", false, "print the answer as JSON")
	return onAdmin(cmd, readToken, func(cmd *cobra.Command, _ []string, src *topSource) error {
		if *expect < 0 {
			return usage("write for example --expect 3", "cluster status: --expect %d is negative", *expect)
		}
		var c admin.Cluster
		err := src.read(cmd.Context(), "/api/cluster", &c)
		if err != nil {
			return adminError("cluster status", err)
		}
		if len(c.Nodes) < *expect {
			c.Problems = append(c.Problems, fmt.Sprintf("%d of %d nodes are there", len(c.Nodes), *expect))
		}
		out := cmd.OutOrStdout()
		if *asJSON {
			err = printJSON(out, &c)
		} else {
			err = clusterText(out, &c)
		}
		if err == nil && len(c.Problems) > 0 {
			err = errors.New("cluster status: " + legible(strings.Join(c.Problems, "; ")))
		}
		return err
	})
}

// clusterText is the answer for people: a table of nodes and one of logs.
func clusterText(out io.Writer, c *admin.Cluster) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tVERSION\tSTATE\tCONNECTIONS\tCHANNELS\tIN/S\tOUT/S\tP99\tCPU\tTAKES/S\tUP")
	for i := range c.Nodes {
		n := &c.Nodes[i]
		name := legible(n.Name)
		if n.Self {
			name += " *"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s of %s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\n", name, legible(n.Version), n.State(),
			draw.Grouped(uint64(max(n.Connections, 0))), draw.Grouped(uint64(max(n.MaxConns, 0))), draw.Grouped(uint64(max(n.Channels, 0))),
			draw.PerSec.Format(n.Published), draw.PerSec.Format(n.Delivered), secs(n.P99), draw.Share.Format(n.CPU), n.Rate,
			since(time.Since(n.Started).Truncate(time.Second)))
	}
	if len(c.Logs) > 0 {
		fmt.Fprintln(w, "\nNAMESPACE\tLEADER\tCOPIES\tLAG\tLAST\tMESSAGES\tBYTES")
	}
	for i := range c.Logs {
		l := &c.Logs[i]
		if l.Error != "" {
			fmt.Fprintf(w, "%s\t%s\n", legible(l.Name()), legible(l.Error))
			continue
		}
		leader := legible(l.Leader)
		if leader == "" {
			leader = "–"
		}
		fmt.Fprintf(w, "%s\t%s\t%d of %d\t%d\t%d\t%s\t%s\n", legible(l.Name()), leader, l.Copies(), max(l.Wanted, 1), l.Lag(), l.Last,
			draw.Grouped(l.Messages), draw.Bytes.Format(float64(l.Bytes)))
	}
	sitesText(w, c)
	return w.Flush()
}

// sitesText lists how two sites have the logs.
func sitesText(w io.Writer, c *admin.Cluster) {
	headed := false
	for i := range c.Logs {
		l := &c.Logs[i]
		if l.Sites == nil {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintln(w, "\nNAMESPACE\tSITE\tCOPY AT\tBEHIND\tCAN TAKE OVER\tTAKEN OVER\tDOES NOT ANSWER")
		}
		able := "with a gap"
		if l.Sites.Whole {
			able = "without a gap"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d times\t%s\n", legible(l.Name()), legible(l.Sites.Leads), legible(l.Sites.Copy), draw.Grouped(l.Sites.Behind), able,
			l.Sites.Term, legible(strings.Join(l.Sites.Lost, ", ")))
	}
}
