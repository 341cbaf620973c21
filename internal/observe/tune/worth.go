package tune

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Worth names the experiment of docs/lab that measured a change: an arm of it against
// another by a metric. None says why no experiment has, in words.
type Worth struct {
	Page, Experiment, Arm, Against, Metric string

	None string
	// Seen is what else the page shows: the median of a metric of an arm in percent, put
	// into a sentence.
	Seen Seen
}

// Seen is a number of an experiment; the zero value is none.
type Seen struct{ Arm, Metric, Text string }

// measured has the results by key; it is made of docs/lab by
// go test ./internal/observe/tune -run TestWorthIsCurrent -update.
//
//go:embed worth.json
var measured []byte

// Key names the result in worth.json.
func (w Worth) Key() string {
	return fmt.Sprintf("%s/%s: %s against %s, %s", w.Page, w.Experiment, w.Arm, w.Against, w.Metric)
}

// text is the finding's sentence and its page.
func (w Worth) text() (text, page string) {
	if w.Page == "" {
		return "not measured: " + w.None, ""
	}
	var results map[string]string
	if err := json.Unmarshal(measured, &results); err != nil {
		panic("tune: worth.json: " + err.Error())
	}
	text = results[w.Key()]
	if text == "" {
		return "not measured: docs/lab/" + w.Page + ".md has no result for it", ""
	}
	return text, "docs/lab/" + w.Page + ".md"
}
