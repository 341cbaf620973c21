package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// exitNotCompared is compare's status when it has no answer: usage errors included,
// so that a pipeline has to distinguish three cases and not four.
const exitNotCompared = 2

func newCompare() *cobra.Command {
	var html, jsonFile string
	var force bool
	var tolerances []string
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare a new version's runs of bench with an old one's",
		Long: `Compare is a regression gate. OLD and NEW are results of bench --json: a file, or
several runs of the same load as a list with commas or a quoted pattern. For each
quantity it prints the change from old to new with its 95 % interval, and a verdict:

  better           changed for the better by more than the tolerance
  same             the change is within the tolerance
  worse            changed for the worse by more than the tolerance
  not comparable   measured on one side only, on another machine, or the runs
                   scatter more than the tolerance

The quantities with their default tolerances:

` + toleranceHelp() + `
The interval is from how the runs of a side differ from each other, when there are
two or more on both sides; three to five, in the order old, new, new, old …, give
a gate that noise does not trip. With one run it is from the run's own windows,
which do not show what differs between runs. "worse" and "better" need an interval
without "no change" in it.

CPU, GC and memory are the target's: run bench with --runtime. Runs of different
load are not comparable, nor are runs on different processors; errors always are.

Exit status: 0 pass, 1 worse, 2 not comparable or wrong usage.`,
		Example: `  weir bench http://127.0.0.1:8080/ --rate 2k --runtime pid:4711 --json old-1.json
  weir bench compare old.json new.json
  weir bench compare 'old-*.json' 'new-*.json' --tolerance p99=5% --tolerance memory=off
  weir bench compare old-1.json,old-2.json new-1.json,new-2.json --json gate.json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := comparison{force: force}
			var err error
			if c.tolerances, err = parseTolerances(tolerances); err != nil {
				return err
			}
			for i, s := range []*side{&c.old, &c.new} {
				if *s, err = readSide([]string{"old", "new"}[i], args[i]); err != nil {
					return err
				}
			}
			if err := c.check(); err != nil {
				return err
			}
			files, err := openOutputs(cmd.OutOrStdout(), cmd.ErrOrStderr(), jsonFile, html)
			if err != nil {
				return err
			}
			defer files.close()
			c.measure()
			err = errors.Join(c.text(files.text), files.write(html, c.page().HTML), files.write(jsonFile, func(w io.Writer) error {
				return json.NewEncoder(w).Encode(c.report())
			}))
			if err != nil {
				return err
			}
			return exitWith(c.verdict().exit())
		},
	}
	cmd.Flags().StringArrayVar(&tolerances, "tolerance", nil, "`change` that is allowed: p99=10%, errors=0.1%, cpu=off; may be repeated")
	addOutputs(cmd.Flags(), &jsonFile, &html)
	cmd.Flags().BoolVar(&force, "force", false, "compare runs of different load or from different machines too")
	return cmd
}

// A side is the runs of one version.
type side struct {
	name  string // "old" or "new"
	files []string
	runs  []*loadgen.Result
	whole map[*loadgen.Result]*loadgen.Window // the windows of a run as one, made when first read
}

// readSide reads what an argument names: files and patterns with commas between.
func readSide(name, arg string) (side, error) {
	s := side{name: name}
	for part := range strings.SplitSeq(arg, ",") {
		files := []string{part}
		if _, err := os.Stat(part); err != nil {
			found, bad := filepath.Glob(part)
			if bad != nil || len(found) == 0 {
				return s, usage("name results of weir bench --json", "%s runs: %w", name, err)
			}
			files = found // sorted
		}
		for _, file := range files {
			if slices.Contains(s.files, file) {
				return s, usage("name each run once: a run compared with itself has no spread", "%s runs: %s is named twice", name, file)
			}
			r, err := readRun(file)
			if err != nil {
				return s, err
			}
			s.files, s.runs = append(s.files, file), append(s.runs, r)
		}
	}
	return s, nil
}

func readRun(name string) (*loadgen.Result, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, usage("", "%w", err)
	}
	defer file.Close()
	r, err := loadgen.ReadResult(file)
	if err != nil {
		return nil, usage("it must be a file written by weir bench --json", "read %s: %w", name, err)
	}
	return r, nil
}

// A comparison is the runs of two versions beside each other.
type comparison struct {
	old, new   side
	force      bool
	tolerances []tolerance

	notes []string
	// host is how the two sides' machines differ where that forbids a comparison.
	host string
	// quantities are what the gate is about, ratios the further percentiles.
	quantities, ratios []quantity
}

// free are the fields of a Spec that two runs may differ in.
var free = []string{"Target", "Adapter", "Headers", "Insecure", "Publish", "Seed", "Sources", "Engine", "Loops"}

// check refuses runs of different load, by naming what differs, and notes the rest.
func (c *comparison) check() error {
	first := c.old.runs[0]
	var differ []string
	for _, s := range []*side{&c.old, &c.new} {
		for i, r := range s.runs {
			loads, other := specsDiffer(first, r)
			for _, text := range loads {
				if c.force {
					c.note("%s", text)
				} else if text = s.files[i] + ": " + text; !slices.Contains(differ, text) {
					differ = append(differ, text)
				}
			}
			for _, text := range other {
				c.note("%s", text)
			}
			if a, b := processors(first), processors(r); a != b && c.host == "" {
				c.host = a + " against " + b
				c.note("another machine: %s", c.host)
			} else if a, b := machineLine(first.Machine), machineLine(r.Machine); a != b {
				c.note("machine: %s against %s", a, b)
			}
			if r.Partial {
				c.note("%s was ended early", s.files[i])
			}
			if r.Total.Generator.Limited {
				c.note("%s: the generator was the limit at times; such windows are left out", s.files[i])
			}
		}
	}
	if c.force {
		c.host = ""
	}
	if len(differ) > 0 {
		err := fmt.Errorf("bench compare: these are runs of different load than %s: %s", c.old.files[0], strings.Join(differ, "; "))
		return &exitError{exitNotCompared, config.WithHint(err, "--force compares them all the same")}
	}
	if !c.paired() {
		c.note("one run on a side: how much runs differ from each other is not known, only windows within a run")
	}
	return nil
}

// note keeps a note once.
func (c *comparison) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.notes, text) {
		c.notes = append(c.notes, text)
	}
}

// paired reports whether both sides have runs enough to differ from each other.
func (c *comparison) paired() bool { return min(len(c.old.runs), len(c.new.runs)) > 1 }

func processors(r *loadgen.Result) string {
	return fmt.Sprintf("%d × %s, %s", r.Machine.CPUs, r.Machine.CPU, r.Machine.OS)
}

// specsDiffer lists what two specs differ in: what makes another load, and what may differ.
func specsDiffer(first, r *loadgen.Result) (loads, other []string) {
	a, b := reflect.ValueOf(first.Spec.WithDefaults()), reflect.ValueOf(r.Spec.WithDefaults())
	for i := range a.NumField() {
		field := a.Type().Field(i)
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if field.Name == "Seed" || reflect.DeepEqual(x, y) || fmt.Sprint(x) == fmt.Sprint(y) {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Name == "Headers" { // they may hold credentials
			other = append(other, "headers differ")
			continue
		}
		text := fmt.Sprintf("%s: %v against %v", name, x, y)
		if slices.Contains(free, field.Name) {
			other = append(other, text)
		} else {
			loads = append(loads, text)
		}
	}
	return loads, other
}
