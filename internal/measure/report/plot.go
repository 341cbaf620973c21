package report

import "io"

// A Drawing is what becomes an SVG. Its methods may be called by any goroutine as
// long as it is not changed.
type Drawing interface {
	// SVG writes the whole drawing. The error is w's.
	SVG(w io.Writer, o Options) error
}

// Options are how a drawing is written. The zero value is a file of its own, 720
// pixels wide, that follows the reader's light or dark preference.
type Options struct {
	Theme Theme
	// Width in pixels; 0 means the drawing's own, or 720. Below 500 it is drawn for
	// a phone: fewer ticks, taller.
	Width int
}

// A Theme is where the colours come from.
type Theme int

// The themes.
const (
	// Auto carries both sets of colours: light, and dark where that is preferred.
	Auto Theme = iota
	// Light carries literal colours and a white ground, for Markdown files and for
	// viewers that know little CSS.
	Light
	// Dark is the same on a dark ground.
	Dark
	// inline has no style of its own: the page around it brings it.
	inline
)

// A Kind is how a Series is drawn.
type Kind int

// The kinds of series.
const (
	// Line joins its points; where they have Lo and Hi, a band lies around it.
	Line Kind = iota
	// Points are dots, with bars from Lo to Hi and from XLo to XHi.
	Points
	// Steps hold each value until the next point.
	Steps
	// Histogram fills from zero to Y between each X and the next; the last point only
	// says where the last bar ends.
	Histogram
)

// A Point is a value at a place. A Y that is not finite is a gap in a line.
type Point struct {
	X, Y float64
	// The interval of Y; both zero means none.
	Lo, Hi float64
	// The interval of X, a bracket; both zero means none.
	XLo, XHi float64
	// Label is shown when a pointer rests on it.
	Label string
	// State colours it in place of the series' colour; Points only.
	State State
}

// A Series is one set of points.
type Series struct {
	Name   string
	Kind   Kind
	Points []Point
	// Color is the place in the palette, from 1; 0 means the next one.
	Color int
	// Dashed is for models, baselines and what is only computed.
	Dashed bool
	// Thin draws a fine line without dots, for the background.
	Thin bool
}

// A Mark is a line across the plot at a value of one axis, or a stripe of it.
type Mark struct {
	// OnY marks a value of Y, otherwise of X.
	OnY bool
	// At is the value; with a To that is greater the mark is the stripe between.
	At, To float64
	Label  string
	State  State
}

// An Axis is one direction of a plot.
type Axis struct {
	Label string
	Unit  Unit
	Scale Scale
	// Min and Max bound the axis; both zero means that the data do.
	Min, Max float64
	// Tight lets a linear Y start above zero.
	Tight bool
	// Names are the texts of the values 0, 1, 2 … of a linear Y in place of numbers; nil: none.
	Names []string
}

// A Scale is how an axis grows.
type Scale int

// The scales.
const (
	Linear Scale = iota
	// Log is logarithmic; what is not positive is left out.
	Log
	// Percentile is for values of 0 to 100 and gives each further nine the same room:
	// 0, 90, 99, 99.9 … as HdrHistogram plots it.
	Percentile
)

// A Plot is a plane with two axes. The zero value is drawn as an empty one.
type Plot struct {
	Title string
	// Note is a line under the title: how to read it, how many samples.
	Note   string
	X, Y   Axis
	Series []Series
	Marks  []Mark
	// Height in pixels, of everything; 0 means what suits the width.
	Height int
}

// Bars are groups of bars that lie, one group below the other: for things with
// long names.
type Bars struct {
	Title, Note string
	// X is the axis along which bars grow: from zero, or on a logarithmic one from
	// Reference where there is one.
	X      Axis
	Series []string // names of a group's bars; one may be empty
	Groups []Group
	// Reference is a line through all groups; 0 means none.
	Reference      float64
	ReferenceLabel string
}

// A Group is one thing measured.
type Group struct {
	Name string
	// Bars in the order of Bars.Series. Y is the value, Lo and Hi its interval.
	Bars []Point
	// Claim is a tick across this group only, what was expected; both zero: none.
	// ClaimHi above Claim makes it a range.
	Claim, ClaimHi float64
}

// A Heat is a map of counts over two axes, usually time and latency.
type Heat struct {
	Title, Note string
	X, Y        Axis
	// XEdges and YEdges are the borders of cells, rising: one more than cells.
	XEdges, YEdges []float64
	// Values by column, then row from the lowest Y. Darker is more, by the square root.
	Values [][]float64
	Height int
}

// A Strip shows states over time, a row for each thing watched.
type Strip struct {
	Title, Note string
	X           Axis
	Rows        []StripRow
}

// A StripRow is one thing watched.
type StripRow struct {
	Name  string
	Spans []Span
}

// A Span is a state that lasted.
type Span struct {
	From, To float64
	State    State
	Label    string // shown when a pointer rests on it, and inside where there is room
}

// A Grid sets drawings beside each other, small multiples.
type Grid struct {
	Title    string
	Drawings []Drawing
	// Columns is how many stand side by side; 0 means 2. A phone gets one.
	Columns int
}
