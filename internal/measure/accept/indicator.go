package accept

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/report"
)

// A Verdict is what an indicator, or a whole run, comes to.
type Verdict = capacity.Verdict

// A kind is how a criterion is decided.
type kind int

const (
	none    kind = iota // counted, and has to be 0
	some                // counted, and must not be 0: proof that something was exercised
	atMost              // a value of each trial
	atLeast             // a value of each trial
	flat                // a series that must not grow
	info                // a value that is only reported
)

// A criterion is one condition of an indicator on its evidence.
type criterion struct {
	name string // of the count, the value or the series
	what string
	kind kind
	// limit is that of atMost and atLeast; of flat, the growth over the whole run that is
	// still none, as a share of the series' median. slack is that growth in the series' own
	// unit: the greater of the two counts.
	limit, slack float64
	unit         report.Unit
	// timed says that a noisy machine changes it: then the verdict is inconclusive.
	timed bool
}

// An Indicator is one line of the report.
type Indicator struct {
	// Name is what it is called on the command line, Number its number in the list of
	// indicators of finance-grade gateways, if it has one there.
	Name, Number, Title string
	// Definition says what is measured, Target what has to hold, Method how.
	Definition, Target, Method string
	// Remote says that it can be measured at another URL.
	Remote bool

	criteria []criterion
	plots    []plot
	measure  func(ctx context.Context, w *world) error
}

// A plot is a drawing of series of the evidence.
type plot struct {
	title  string
	series []string
	unit   report.Unit
}

// Indicators are all, in the order in which they run.
func Indicators() []Indicator {
	return []Indicator{
		sustained(), burst(), connections(), shipments(), flatness(), priority(), leaks(), observability(),
		partition(), crypto(), auditLog(), recovery(), twoSites(),
	}
}

// Find returns the indicators of the given names, each once; none means all.
func Find(names ...string) ([]Indicator, error) {
	all := Indicators()
	if len(names) == 0 {
		return all, nil
	}
	var list []Indicator
	var known []string
	for _, i := range all {
		known = append(known, i.Name)
		if slices.Contains(names, i.Name) {
			list = append(list, i)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("there is no indicator %q: there are %s", n, strings.Join(known, ", "))
		}
	}
	return list, nil
}

// IndicatorTable is a table of all indicators.
func IndicatorTable() *report.Table {
	t := &report.Table{Columns: []report.Column{{Name: "indicator", Left: true}, {Name: "no.", Left: true}, {Name: "what", Left: true}, {Name: "target", Left: true}}}
	for _, i := range Indicators() {
		t.Add(i.Name, i.Number, i.Title, i.Target)
	}
	return t
}
