package governor

import "iter"

// A Series is one number of a snapshot for Prometheus and whatever else reads names.
type Series struct {
	Name string
	Help string
	// Counter says that it only rises (its name ends in _total); else it is a gauge.
	Counter bool
	// Label is the only label's name, empty when there is none; Value its value.
	Label, Value string
	Number       float64
}

// Series are the numbers of s in a fixed order, those of one name together.
func (s *Snapshot) Series() iter.Seq[Series] { return func(yield func(Series) bool) {} }
