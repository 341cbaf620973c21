// Package report draws and prints measurements.
//
// Drawings (Plot, Bars, Heat, Strip, Grid) become SVG: in a file of its own that
// follows the reader's light or dark preference (Auto) or does not (Light), or
// inside a Page. A Page is one HTML file that needs nothing but itself: no script,
// no request, its numbers embedded as JSON. A Table is written as text, Markdown or
// HTML. Live rewrites a few lines of a terminal.
//
// All of it takes any input: values that are not finite are left out, an empty
// drawing says so, every text is escaped.
package report

import "cmp"

// A State is a verdict, which has a colour everywhere.
type State string

// The states; the zero value has no colour.
const (
	Good    State = "good"    // passed, steady
	Warn    State = "warn"    // alert
	Bad     State = "bad"     // failed, inflection
	Unknown State = "unknown" // inconclusive, invalid, not measured
)

// known keeps what callers make up out of class names.
func (s State) known() State {
	switch s {
	case Good, Warn, Bad, Unknown, "":
		return s
	}
	return Unknown
}

// class is what colours a shape by s, softly without one.
func (s State) class() string { return cmp.Or(string(s.known()), "z") }
