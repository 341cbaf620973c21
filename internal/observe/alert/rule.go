package alert

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// Numbers are the values of series at an instant, by name, or by name{label="value"} for a
// series with a label.
type Numbers map[string]float64

// A rule is an alert whose expression is evaluated here.
type rule struct {
	governor.Alert
	terms []term

	since  time.Time // the condition is true since then; zero: it is false
	quiet  time.Time // it is false since then, and the alert still fires
	fired  time.Time // zero: it does not fire
	value  float64   // of its first term
	rising []sample  // of a rate's counter, over the last window
}

type sample struct {
	at time.Time
	n  float64
}

// A term compares a series with a number.
type term struct {
	series string
	rate   bool // per second over rateWindow
	least  bool // >=, else ==
	bound  float64
}

// rateWindow is the only one that expressions have.
const rateWindow = time.Minute

var termForm = regexp.MustCompile(`^(rate\()?([a-z0-9_]+(?:\{[a-z_]+="[^"{}]*"\})?)(\[1m\]\))? (>=|==) ([0-9.e+-]+)$`)

// newRule returns the rule of an alert, or an error if its expression has another form
// than: series >= 1, series{label="value"} == 1, rate(series[1m]) >= 1, and these joined
// with "and on(instance)".
func newRule(a governor.Alert) (*rule, error) {
	r := &rule{Alert: a}
	for part := range strings.SplitSeq(a.Expr, " and on(instance) ") {
		m := termForm.FindStringSubmatch(part)
		if m == nil || (m[1] == "") != (m[3] == "") {
			return nil, fmt.Errorf("alert %s: its expression %q cannot be evaluated in the process", a.Name, part)
		}
		bound, err := strconv.ParseFloat(m[5], 64)
		if err != nil {
			return nil, fmt.Errorf("alert %s: %w", a.Name, err)
		}
		r.terms = append(r.terms, term{series: m[2], rate: m[1] != "", least: m[4] == ">=", bound: bound})
	}
	return r, nil
}

// isTrue reports whether the condition is true with numbers at now. A series that does not
// exist makes it false, as in PromQL.
func (r *rule) isTrue(now time.Time, numbers Numbers) bool {
	all := true
	for i := range r.terms {
		t := &r.terms[i]
		v, has := numbers[t.series]
		if t.rate && has {
			v, has = r.perSecond(now, v)
		}
		if i == 0 && has {
			r.value = v
		}
		all = all && has && (t.least && v >= t.bound || !t.least && v == t.bound)
	}
	return all
}

// perSecond is by how much the counter, which is n now, has risen per second within the
// window; nothing before there are two samples.
func (r *rule) perSecond(now time.Time, n float64) (float64, bool) {
	r.rising = append(r.rising, sample{now, n})
	for len(r.rising) > 2 && now.Sub(r.rising[0].at) > rateWindow {
		r.rising = r.rising[1:]
	}
	first := r.rising[0]
	if d := now.Sub(first.at).Seconds(); d > 0 {
		return (n - first.n) / d, true
	}
	return 0, false
}

// step returns the event that numbers at now bring about, nil for none. It fires when the
// condition has been true for the alert's time, and is resolved when it has been false for
// resolveAfter: in between, a condition that comes and goes changes nothing.
func (r *rule) step(now time.Time, numbers Numbers, resolveAfter time.Duration) *event {
	if !r.isTrue(now, numbers) {
		r.since = time.Time{}
		if r.fired.IsZero() {
			return nil
		}
		if r.quiet.IsZero() {
			r.quiet = now
		}
		if now.Sub(r.quiet) < resolveAfter {
			return nil
		}
		e := &event{rule: r.Alert, started: r.fired, ended: r.quiet, value: r.value}
		r.fired, r.quiet = time.Time{}, time.Time{}
		return e
	}
	r.quiet = time.Time{}
	if r.since.IsZero() {
		r.since = now
	}
	if !r.fired.IsZero() || now.Sub(r.since) < time.Duration(r.For) {
		return nil
	}
	r.fired = r.since
	return &event{rule: r.Alert, started: r.fired, value: r.value}
}

// An event is an alert that fires, or is resolved at ended.
type event struct {
	rule           governor.Alert
	started, ended time.Time
	value          float64
}

func (e *event) status() string {
	if e.ended.IsZero() {
		return "firing"
	}
	return "resolved"
}
