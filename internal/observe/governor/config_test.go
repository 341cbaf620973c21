package governor

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

func TestTheZeroConfigurationWorks(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
	c := Config{}.WithDefaults()
	if !c.On() || time.Duration(c.Interval) != 100*time.Millisecond || time.Duration(c.Window) != 5*time.Second || c.Thresholds != DefaultThresholds() {
		t.Errorf("the defaults are %+v", c)
	}
	if again := c.WithDefaults(); !reflect.DeepEqual(again, c) {
		t.Errorf("defaults of defaults are %+v", again)
	}
}

func TestBadConfigurationsNameTheField(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		var c Config
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if _, err := New(c, Sources{}, nil); err == nil {
			t.Errorf("%s: New took it", text)
		}
	}
	f(`{"interval":"1ms"}`, "interval: 1ms")
	f(`{"interval":"2s"}`, "interval: 2s")
	f(`{"window":"500ms"}`, "window: 500ms is less than ten intervals")
	f(`{"window":"1h"}`, "window: 1h0m0s")
	f(`{"evidence":{"keep":-1}}`, "evidence.keep: -1")
	f(`{"evidence":{"every":"-1s"}}`, "evidence.every")
	f(`{"evidence":{"profile":"1h"}}`, "evidence.profile")
	f(`{"evidence":{"max_bytes":5}}`, "evidence.max_bytes: 5")
	f(`{"memory":{"limit":-1}}`, "memory.limit: -1")
	f(`{"memory":{"limit":1000}}`, "memory.limit: 1000 bytes are too few")
	f(`{"memory":{"policy":"magic"}}`, `memory.policy: "magic"; write fixed, headroom or phase`)
	f(`{"memory":{"percent":-5}}`, "memory.percent: -5")
	f(`{"thresholds":{"run_queue":-1}}`, "thresholds: run_queue: -1")
	f(`{"thresholds":{"min_samples":-1}}`, "thresholds: min_samples: -1")
	f(`{"thresholds":{"soft":0.99}}`, "soft: 0.99 is above hard, 0.95")
	f(`{"thresholds":{"hard":1.5}}`, "hard: 1.5 is above 1")
	f(`{"thresholds":{"run_queue":9}}`, "run_queue: 9 is above run_queue_full, 8")
}

func TestEveryThresholdHasADefaultAndAName(t *testing.T) {
	v := reflect.ValueOf(DefaultThresholds())
	names := map[string]bool{}
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("json")
		if v.Field(i).IsZero() || name == "" || names[name] {
			t.Errorf("%s: %v, named %q", v.Type().Field(i).Name, v.Field(i), name)
		}
		names[name] = true
	}
	if err := DefaultThresholds().Validate(); err != nil {
		t.Error(err)
	}
	if got := (Thresholds{RunQueue: 5}).WithDefaults(); got.RunQueue != 5 || got.LoopBusy != 0.9 {
		t.Errorf("one given of all: %+v", got)
	}
}

// full is a snapshot in which everything is something.
func full() *Snapshot {
	s := (&Snapshot{}).fresh(time.Unix(1, 0))
	s.State.Now = stat.Alert
	s.State.Causes = []Cause{{Name: CauseLocks}}
	s.Loops = []LoopView{{Busy: 0.5, Stalled: 2}, {Busy: 0.7, Stalled: 1, Inbox: 9}}
	s.Traffic.Connections = 30
	return &s
}

func TestSeriesAreFewAndWellNamed(t *testing.T) {
	name := regexp.MustCompile(`^weir_[a-z]+(_[a-z0-9]+)*$`)
	seen := map[string]bool{}
	var last string
	done := map[string]bool{}
	n := 0
	for s := range full().Series() {
		n++
		id := s.Name + s.Label + s.Value
		if !name.MatchString(s.Name) || s.Help == "" || !strings.HasSuffix(s.Help, ".") || seen[id] || s.Counter != strings.HasSuffix(s.Name, "_total") {
			t.Errorf("series %+v", s)
		}
		if s.Name != last && done[s.Name] {
			t.Errorf("%s is not together", s.Name)
		}
		seen[id], done[s.Name], last = true, true, s.Name
	}
	if n > 100 {
		t.Errorf("%d series", n)
	}
	for range full().Series() {
		break // stopping early is allowed
	}
	f := func(name, value string, want float64) {
		t.Helper()
		for s := range full().Series() {
			if s.Name == name && s.Value == value && s.Number != want {
				t.Errorf("%s{%s} = %v, want %v", name, value, s.Number, want)
			}
		}
		if !done[name] {
			t.Errorf("there is no %s", name)
		}
	}
	f("weir_governor_state", "alert", 1)
	f("weir_governor_state", "steady", 0)
	f("weir_governor_cause", CauseLocks, 1)
	f("weir_governor_cause", CauseDisk, 0)
	f("weir_loop_busy_most_ratio", "", 0.7)
	f("weir_loop_stalled", "", 3)
	f("weir_loop_stalled_ratio", "", 0.1)
	f("weir_loop_inbox_most", "", 9)
}

// Alerts stand on the same names as the metrics and the same numbers as the states.
func TestAlertsUseExistingSeriesAndThresholds(t *testing.T) {
	known := map[string]bool{}
	for s := range full().Series() {
		known[s.Name] = true
	}
	metric := regexp.MustCompile(`weir_[a-z0-9_]+`)
	names, levels, causes := map[string]bool{}, map[Level]int{}, map[string]bool{}
	for _, a := range Alerts(Thresholds{}) {
		for _, m := range metric.FindAllString(a.Expr, -1) {
			if !known[m] {
				t.Errorf("%s queries %s, which does not exist", a.Name, m)
			}
		}
		if names[a.Name] || !strings.HasPrefix(a.Name, "Weir") || a.Summary == "" || a.Runbook == "" || a.For < 0 {
			t.Errorf("alert %+v", a)
		}
		if a.Cause != "" && !slices.Contains(CauseNames(), a.Cause) {
			t.Errorf("%s: there is no cause %q", a.Name, a.Cause)
		}
		names[a.Name], causes[a.Cause] = true, true
		levels[a.Level]++
	}
	for _, l := range []Level{Page, Ticket, Information} {
		if levels[l] == 0 {
			t.Errorf("no alert is a %s", l)
		}
	}
	for _, c := range CauseNames() {
		if !causes[c] {
			t.Errorf("no alert covers %s", c)
		}
	}
	find := func(list []Alert, name string) string {
		i := slices.IndexFunc(list, func(a Alert) bool { return a.Name == name })
		return list[i].Expr
	}
	f := func(name, was, is string, change func(*Thresholds)) {
		t.Helper()
		var th Thresholds
		if got := find(Alerts(th), name); got != was {
			t.Errorf("%s: %s, want %s", name, got, was)
		}
		change(&th)
		if got := find(Alerts(th), name); got != is {
			t.Errorf("%s changed: %s, want %s", name, got, is)
		}
	}
	f("WeirRunQueue", "weir_sched_run_queue_ratio >= 2", "weir_sched_run_queue_ratio >= 3.5", func(t *Thresholds) { t.RunQueue = 3.5 })
	f("WeirMemoryHard", "weir_memory_used_ratio >= 0.95", "weir_memory_used_ratio >= 0.9", func(t *Thresholds) { t.Hard = 0.9 })
	f("WeirLoopStuck", "weir_loop_working_most_seconds >= 1", "weir_loop_working_most_seconds >= 2", func(t *Thresholds) { t.LoopStuck = 2 })
}

func TestDurationsReadLikeWords(t *testing.T) {
	f := func(s float64, want string) {
		t.Helper()
		if got := seconds(s); got != want {
			t.Errorf("seconds(%v) = %q, want %q", s, got, want)
		}
	}
	f(0.00002, "20 µs")
	f(0.004, "4.0 ms")
	f(0.0128, "13 ms")
	f(2, "2.0 s")
	f(75, "1m15s")
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1200: "−1,200"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}
