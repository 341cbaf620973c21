package main

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/tune"
)

// tuneFlags are those of every command of tune.
type tuneFlags struct {
	profile, root string
	pid           int
	ports         []int
	links         []string
	dscp          []string
	asJSON        bool
}

func newTune() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Check and set the kernel's settings for very many connections",
		Long: `Tune compares the kernel's settings, the network card, limits and the cgroup with
what a gateway of very many connections needs.

  check  reads and changes nothing
  plan   writes the files that make the changes at every boot
  apply  makes the changes now, and keeps the previous values in a journal
  undo   restores them

Each finding has its evidence, the threshold, where the kernel documents the
setting, the risk, and what the change gained in the experiment of docs/lab that
measured it. Profiles: gateway (many mostly idle connections), low-latency (few
connections, the tail of the latency first), bench (a load generator or a comparison).`,
		Args: cobra.ArbitraryArgs,
		RunE: group,

		SuggestionsMinimumDistance: 2,
		DisableFlagsInUseLine:      true,
	}
	cmd.AddCommand(newTuneCheck(), newTunePlan(), newTuneApply(), newTuneUndo())
	return cmd
}

func (f *tuneFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.profile, "profile", "gateway", "what the machine is for: gateway, low-latency or bench")
	flags.StringVar(&f.root, "root", "/", "`directory` that has proc and sys, such as a host's mounted into a container")
	flags.IntVar(&f.pid, "pid", 0, "process whose limits and cgroup are read, 0 for this one")
	flags.IntSliceVar(&f.ports, "port", []int{8000}, "ports that clients connect to, for conntrack and reserved ports")
	flags.StringSliceVar(&f.links, "link", nil, "`DEVICE=RATE` of links that are divided among the classes of messages, such as eth0=950mbit")
	flags.StringSliceVar(&f.dscp, "dscp", []string{"control=16", "order=46", "account=18", "market=10", "replay=8"}, "`CLASS=DSCP` list")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
}

// report runs the checks called names, all without.
func (f *tuneFlags) report(names []string) (*tune.Report, error) {
	profile, err := tune.ParseProfile(f.profile)
	if err != nil {
		return nil, usage("", "tune: --profile: %w", err)
	}
	for _, p := range f.ports {
		if p < 1 || p > 65535 {
			return nil, usage("", "tune: invalid --port %d: want 1 to 65535", p)
		}
	}
	if f.pid < 0 {
		return nil, usage("", "tune: invalid --pid %d: want a process, or 0 for this one", f.pid)
	}
	m := tune.Local(f.root)
	m.PID, m.Listen = f.pid, f.ports
	for _, text := range f.links {
		dscp, err := tune.ParseDSCP(f.dscp)
		if err != nil {
			return nil, usage("", "tune: --dscp: %w", err)
		}
		l, err := tune.ParseLink(text, dscp)
		if err != nil {
			return nil, usage("", "tune: --link: %w", err)
		}
		m.Links = append(m.Links, l)
	}
	r, err := tune.Run(m, profile, names...)
	if err != nil {
		return nil, usage("weir tune check --all lists them", "tune: %w", err)
	}
	return r, nil
}

// system is where apply and undo write.
func (f *tuneFlags) system() tune.System {
	if f.root == "/" || f.root == "" {
		return tune.System{Rules: tune.NotrackRule{}, Queues: tune.ClassQueue{}}
	}
	return tune.System{Root: f.root}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
