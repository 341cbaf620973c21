package alert

import (
	"iter"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// Replay returns the status of the event that each step brings about, "" for none.
func Replay(a governor.Alert, resolveAfter time.Duration, steps iter.Seq2[time.Time, Numbers]) iter.Seq[string] {
	return func(yield func(string) bool) {
		r, err := newRule(a)
		if err != nil {
			panic("a rule of the test: " + err.Error())
		}
		for now, numbers := range steps {
			status := ""
			if e := r.step(now, numbers, resolveAfter); e != nil {
				status = e.status()
			}
			if !yield(status) {
				return
			}
		}
	}
}

// SeriesOf returns the series that an alert's expression names.
func SeriesOf(a governor.Alert) (names []string, err error) {
	r, err := newRule(a)
	if err != nil {
		return nil, err
	}
	for _, t := range r.terms {
		names = append(names, t.series)
	}
	return names, nil
}
