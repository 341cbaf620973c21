package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/measure/lab"
	"github.com/weir-gateway/weir/internal/measure/lab/job"
	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the experiments and what each tests",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.LadderTable().Text(cmd.OutOrStdout(), "")
		},
	}
}

// programs are what is measured besides the servers of this program.
type programs struct {
	weir   string
	others []string
}

func (p *programs) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.weir, "weir", "", "`FILE` of the weir that is measured (default: the one beside this program, or in PATH)")
	cmd.Flags().StringArrayVar(&p.others, "program", nil, "`NAME=FILE` of a server in a module of its own, such as fasthttp=bin/lab-fasthttp")
}

// into finds the programs and has them measured with o.
func (p *programs) into(ctx context.Context, o *lab.Options) (err error) {
	if o.Programs, err = settings(p.others); err != nil {
		return err
	}
	file := p.weir
	if file == "" {
		file = beside("weir")
	}
	if file == "" {
		return nil // not every experiment needs it
	}
	if file, err = exec.LookPath(file); err != nil {
		return fmt.Errorf("--weir: %w", err)
	}
	if file, err = filepath.Abs(file); err != nil { // it is started in directories of its own
		return err
	}
	o.Weir = process.Program{file, "weir"}
	o.Version, err = versionOf(ctx, o.Weir)
	return err
}

// beside is the program of that name beside this one or in PATH; "" if there is none.
func beside(name string) string {
	if exe, err := os.Executable(); err == nil {
		if file, err := exec.LookPath(filepath.Join(filepath.Dir(exe), name)); err == nil {
			return file
		}
	}
	file, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return file
}

// versionOf returns the build of a Weir, as a page names it.
func versionOf(ctx context.Context, weir process.Program) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := weir.Command(ctx, os.Stderr, nil, "version", "--json").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", weir[0], err)
	}
	var b process.Build
	if err := json.Unmarshal(out, &b); err != nil || b.Version == "" {
		return "", fmt.Errorf("%s version: it printed %q, which no Weir does", weir[0], out)
	}
	return b.String(), nil
}

func newRun() *cobra.Command {
	var o lab.Options
	var out string
	cmd := &cobra.Command{
		Use:   "run NAME...|all",
		Short: "Run experiments",
		Long: `Run measures every step of the named experiments, or of all, round by round, and
prints what each gained: as text, or with --out as pages with charts and
numbers (NAME.md, NAME.svg, NAME.json) and an index of all results there.

All of them take about an hour and a half. Everything stays on loopback and in network
namespaces, in separate processes that end with this one. Some experiments need a network
namespace, and therefore root; without it they are skipped with a message. Ctrl+C keeps what
was measured so far.`,
		Example: `  weir-lab run a --quick
  weir-lab run b d --rounds 9 --out results
  weir-lab run all --out docs/lab`,
		Args: cobra.MinimumNArgs(1),
	}
	fs := cmd.Flags()
	fs.IntVar(&o.Rounds, "rounds", 0, "measure everything this many `times` (default 5, with --quick 3)")
	fs.DurationVar(&o.Duration, "duration", 0, "`time` of each measurement (default 1s, with --quick 500ms)")
	fs.BoolVar(&o.Quick, "quick", false, "fewer rounds, less time, a quarter of the connections: to try it out")
	fs.StringVar(&out, "out", "", "write pages, charts and numbers to this `directory`")
	var p programs
	p.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if o.Rounds < 0 || o.Duration < 0 {
			return usage("", "run: --rounds and --duration must not be negative")
		}
		ladders, err := laddersNamed("run", names)
		if err != nil {
			return err
		}
		if err := p.into(cmd.Context(), &o); err != nil {
			return fmt.Errorf("run: %w", err)
		}
		o.Progress = cmd.ErrOrStderr()
		return runLab(cmd.Context(), ladders, o, out, cmd.OutOrStdout())
	}
	return cmd
}

// laddersNamed finds the ladders, each once, for a command.
func laddersNamed(command string, names []string) ([]lab.Ladder, error) {
	var list []lab.Ladder
	seen := map[string]bool{}
	for _, name := range names {
		if name == "all" {
			return lab.Ladders(), nil
		}
		l, ok := lab.Find(name)
		if !ok {
			return nil, usage("weir-lab list names them", "%s: there is no experiment %q", command, name)
		}
		if !seen[l.Name] {
			list = append(list, l)
		}
		seen[l.Name] = true
	}
	return list, nil
}

// runLab runs the ladders and brings out each as it is done.
func runLab(ctx context.Context, ladders []lab.Ladder, o lab.Options, dir string, out io.Writer) error {
	if dir != "" { // found out before a quarter of an hour is over
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("run: %w", err)
		}
	}
	err := lab.Run(ctx, ladders, o, func(r *lab.Reading) error {
		if dir == "" {
			_, err := io.WriteString(out, r.Markdown()+"\n")
			return err
		}
		if err := r.Write(dir); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s/%s.md\n", r.Ladder.Title, dir, r.Ladder.Name)
		return lab.WriteIndex(dir)
	})
	if errors.Is(err, context.Canceled) {
		return &hinted{errors.New("run: stopped early"), "what was measured so far is kept, and says that it is not all"}
	}
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// settings turns NAME=VALUE into a map.
func settings(list []string) (map[string]string, error) {
	set := map[string]string{}
	for _, kv := range list {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return nil, usage("", "%q: want NAME=VALUE", kv)
		}
		set[name] = value
	}
	return set, nil
}

// newServe is a rung's process. It ends with its standard input, so that none
// outlives who started it.
func newServe() *cobra.Command {
	var listen string
	var set []string
	cmd := &cobra.Command{Use: "serve LADDER/RUNG", Short: "Be the server of a rung", Args: cobra.ExactArgs(1), Hidden: true}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "`address` to serve on")
	cmd.Flags().StringArrayVar(&set, "set", nil, "`NAME=VALUE` of the rung")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := settings(set)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		go func() { // ends with the process, which is about to end with it
			defer cancel()
			_, _ = io.Copy(io.Discard, cmd.InOrStdin())
		}()
		return rung.Serve(ctx, args[0], listen, s, cmd.OutOrStdout())
	}
	return cmd
}

// newJob is the process of a measurement that needs no server.
func newJob() *cobra.Command {
	var p job.Params
	var set []string
	cmd := &cobra.Command{Use: "job NAME", Short: "Measure something in a process of its own", Args: cobra.ExactArgs(1), Hidden: true}
	cmd.Flags().DurationVar(&p.Duration, "duration", time.Second, "about how long")
	cmd.Flags().StringArrayVar(&set, "set", nil, "`NAME=VALUE` of the job")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if p.Set, err = settings(set); err != nil {
			return err
		}
		return job.Run(cmd.Context(), args[0], p, cmd.OutOrStdout())
	}
	return cmd
}
