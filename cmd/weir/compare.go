package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/loadgen"
	draw "github.com/weir-gateway/weir/internal/report"
	"github.com/weir-gateway/weir/internal/stat"
)

func newCompare() *cobra.Command {
	var html string
	var force bool
	cmd := measures(&cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Say how much two runs of bench differ, and how sure that is",
		Long: `Compare sets two results of bench --json beside each other. A and B are medians
over the windows of a run, joined until each has the samples that the number
needs; B/A is the ratio of their geometric means with its 95 % interval, from how
windows scatter. An interval that holds 1 shows no difference.

Runs of different load are refused. That the target, its adapter or its headers
differ is what one compares for, and is said.

Two runs one after the other also differ by what the machine did meanwhile, which
no interval of theirs knows: run A, B, B, A before you believe a small difference.

Exit status: 0, 1 when they cannot be compared, 64 wrong usage.`,
		Example: `  weir bench http://127.0.0.1:8080/ --rate 2k --json before.json
  weir bench http://127.0.0.1:8080/ --rate 2k --json after.json
  weir bench compare before.json after.json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := readRun(args[0])
			if err != nil {
				return err
			}
			b, err := readRun(args[1])
			if err != nil {
				return err
			}
			c := comparison{nameA: args[0], nameB: args[1], a: a, b: b}
			if err := c.check(force); err != nil {
				return err
			}
			files, err := openOutputs(cmd.OutOrStdout(), html)
			if err != nil {
				return err
			}
			defer files.close()
			c.measure()
			text := cmd.OutOrStdout()
			if files.tookStdout {
				text = cmd.ErrOrStderr()
			}
			return errors.Join(c.text(text), files.write(html, c.page().HTML))
		},
	})
	cmd.Flags().StringVar(&html, "html", "", "write the comparison to this `file`, one page that needs nothing but itself")
	cmd.Flags().BoolVar(&force, "force", false, "compare runs of different load too")
	return cmd
}

func readRun(name string) (*loadgen.Result, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := loadgen.ReadResult(file)
	if err != nil {
		return nil, usage("it should be what weir bench --json wrote", "read %s: %w", name, err)
	}
	return r, nil
}

// A comparison is two runs beside each other.
type comparison struct {
	nameA, nameB string
	a, b         *loadgen.Result
	notes        []string
	ratios       []ratio
}

// A ratio is one number of both runs.
type ratio struct {
	Name string
	Unit draw.Unit
	A, B float64
	// B/A over windows.
	stat.Interval
	// Better: less of it is.
	less bool
	few  bool
}

// free are the fields of a Spec that two runs may differ in.
var free = []string{"Target", "Adapter", "Headers", "Insecure", "Publish", "Seed", "Sources", "Engine", "Loops"}

// check refuses runs of different load, by naming what differs.
func (c *comparison) check(force bool) error {
	var differ []string
	a, b := reflect.ValueOf(c.a.Spec.WithDefaults()), reflect.ValueOf(c.b.Spec.WithDefaults())
	for i := range a.NumField() {
		field := a.Type().Field(i)
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if reflect.DeepEqual(x, y) || fmt.Sprint(x) == fmt.Sprint(y) {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		text := fmt.Sprintf("%s: %v against %v", name, x, y)
		switch {
		case field.Name == "Seed":
		case slices.Contains(free, field.Name) || force:
			c.notes = append(c.notes, text)
		default:
			differ = append(differ, text)
		}
	}
	if ma, mb := machineLine(c.a.Machine), machineLine(c.b.Machine); ma != mb {
		c.notes = append(c.notes, "machine: "+ma+" against "+mb)
	}
	for _, r := range []struct {
		name string
		r    *loadgen.Result
	}{{c.nameA, c.a}, {c.nameB, c.b}} {
		if r.r.Partial {
			c.notes = append(c.notes, r.name+" was ended early")
		}
		if r.r.Total.Generator.Limited {
			c.notes = append(c.notes, r.name+": the generator was the limit at times; such windows are left out")
		}
	}
	if len(differ) > 0 {
		err := fmt.Errorf("bench compare: these are runs of different load: %s", strings.Join(differ, "; "))
		return &exitError{exitFail, config.WithHint(err, "--force compares them all the same")}
	}
	return nil
}

// measure fills the ratios, from windows in which the generator was not the limit.
func (c *comparison) measure() {
	add := func(name string, u draw.Unit, metric string, less bool) {
		t := threshold{metric: metric, share: u == draw.Share}
		va, fewA := c.values(c.a, t)
		vb, fewB := c.values(c.b, t)
		r := ratio{Name: name, Unit: u, less: less, few: fewA || fewB}
		ra, rb := t.read(&c.a.Total), t.read(&c.b.Total)
		if ra.n == 0 || rb.n == 0 || ra.absent || rb.absent {
			return
		}
		r.Interval = ratioInterval(va, vb)
		r.A, r.B = stat.Median(va), stat.Median(vb)
		if r.few {
			r.A, r.B = ra.Point, rb.Point
			r.Point = r.B / r.A
		}
		c.ratios = append(c.ratios, r)
	}
	add("completed", draw.PerSec, "throughput", false)
	for _, from := range []string{"response", "service", "publish"} {
		add(from+" mean", draw.Seconds, from+".mean", true)
		for _, q := range []string{"p50", "p90", "p99", "p99.9"} {
			add(from+" "+strings.ToUpper(q[:1])+q[1:], draw.Seconds, from+"."+q, true)
		}
	}
}

// values are a metric by window, windows joined until each carries it.
func (c *comparison) values(r *loadgen.Result, t threshold) (values []float64, few bool) {
	var quiet []loadgen.Window
	for _, w := range r.Windows {
		if !w.Generator.Limited && w.Host.Steal <= stealLimit {
			quiet = append(quiet, w)
		}
	}
	for _, w := range joined(quiet, t) {
		if v := t.read(&w); v.Point > 0 {
			values = append(values, v.Point)
		}
	}
	return values, len(values) < 3
}

// ratioInterval is mean(log b) − mean(log a) with Welch's interval, as a ratio.
func ratioInterval(a, b []float64) stat.Interval {
	var ma, mb stat.Moments
	for _, v := range a {
		ma.Add(math.Log(v))
	}
	for _, v := range b {
		mb.Add(math.Log(v))
	}
	iv := stat.Interval{Point: math.NaN(), Lo: 0, Hi: math.Inf(1), N: min(ma.N, mb.N)}
	if iv.N == 0 {
		return iv
	}
	d := mb.Mean - ma.Mean
	iv.Point = math.Exp(d)
	if iv.N < 3 {
		return iv
	}
	_, df, _ := stat.WelchT(mb, ma)
	se := math.Sqrt(ma.Var()/float64(ma.N) + mb.Var()/float64(mb.N))
	w := stat.StudentQuantile(0.5+confidence/2, max(df, 1)) * se
	iv.Lo, iv.Hi = math.Exp(d-w), math.Exp(d+w)
	return iv
}

// says is a ratio in words, with its colour.
func (r *ratio) says() (string, draw.State) {
	switch {
	case r.few:
		return "too few windows to tell", draw.Unknown
	case r.Lo <= 1 && r.Hi >= 1:
		return "no difference shown", ""
	case (r.Hi < 1) == r.less:
		return "B is better", draw.Good
	}
	return "B is worse", draw.Bad
}

func (r *ratio) value(v float64) string {
	if r.Unit == draw.PerSec {
		return perSecond(v)
	}
	return r.Unit.Format(v)
}

func (r *ratio) interval() string {
	if r.few {
		return "–"
	}
	return draw.Times.Format(r.Lo) + " … " + draw.Times.Format(r.Hi)
}

func (c *comparison) table() *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "A"}, {Name: "B"}, {Name: "B/A"}, {Name: "95 % interval"}, {Name: "windows"}, {Name: "", Left: true}}}
	for _, r := range c.ratios {
		text, state := r.says()
		row := draw.Cells(r.Name, r.value(r.A), r.value(r.B), draw.Times.Format(r.Point), r.interval(), fmt.Sprint(r.N), text)
		row[6].State = state
		t.Rows = append(t.Rows, row)
	}
	return t
}

// counts are what is counted and not compared as a ratio.
func (c *comparison) counts() *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "", Left: true}, {Name: "A"}, {Name: "B"}}}
	add := func(name string, n func(*loadgen.Window) uint64) {
		t.Add(name, draw.Grouped(n(&c.a.Total)), draw.Grouped(n(&c.b.Total)))
	}
	add("offered", func(w *loadgen.Window) uint64 { return w.Offered })
	add("errors", errorCount)
	add("dropped", func(w *loadgen.Window) uint64 { return w.Dropped })
	if c.a.Total.Delivery != nil && c.b.Total.Delivery != nil {
		add("lost", func(w *loadgen.Window) uint64 { return w.Delivery.Lost })
		add("repeated", func(w *loadgen.Window) uint64 { return w.Delivery.Repeated })
		add("reordered", func(w *loadgen.Window) uint64 { return w.Delivery.Reordered })
	}
	return t
}

func (c *comparison) text(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "A  %s  %s\nB  %s  %s\n   %s\n\n", c.nameA, c.a.Spec.Target, c.nameB, c.b.Spec.Target, describe(c.a.Spec))
	if err := errors.Join(c.table().Text(&b, "  "), c.counts().Text(&b, "  ")); err != nil {
		return err
	}
	for _, n := range c.notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// page is the comparison as a page.
func (c *comparison) page() *draw.Page {
	bars := &draw.Bars{Title: "B against A", X: draw.Axis{Label: "B/A", Unit: draw.Times, Scale: draw.Log}, Reference: 1, ReferenceLabel: "the same"}
	for _, r := range c.ratios {
		_, state := r.says()
		p := draw.Point{Y: r.Point, State: state, Label: r.Name + ": " + r.interval()}
		if !r.few {
			p.Lo, p.Hi = r.Lo, r.Hi
		}
		bars.Groups = append(bars.Groups, draw.Group{Name: r.Name, Bars: []draw.Point{p}})
	}
	a, b := percentilePoints(c.a.Total.Response), percentilePoints(c.b.Total.Response)
	pg := &draw.Page{
		Title: "Two runs", Lead: "A is " + c.nameA + " (" + c.a.Spec.Target + "), B is " + c.nameB + " (" + c.b.Spec.Target + "). " + describe(c.a.Spec) + ".",
		Footer: "Made by weir bench compare.",
		Blocks: []draw.Block{
			c.table(),
			draw.Figure{Drawing: bars, Caption: "The bars are ratios, the black lines their 95 % intervals from how windows scatter."},
			draw.Figure{Drawing: &draw.Plot{Title: "Response by percentile", X: draw.Axis{Label: "percentile", Scale: draw.Percentile},
				Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log}, Series: []draw.Series{{Name: "A", Points: a}, {Name: "B", Points: b}}}},
			c.counts(),
		},
	}
	for _, n := range c.notes {
		pg.Blocks = append(pg.Blocks, draw.Text("Note: "+n+"."))
	}
	return pg
}
