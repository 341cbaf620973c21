package app

import (
	"bufio"
	"bytes"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// watched is a gateway whose governor checks a window in a fifth of its time.
func watched(t *testing.T) *gateway {
	t.Helper()
	return start(t, func(c *config.Config) {
		c.Governor = governor.Config{Enabled: setting.On, Interval: hub.Duration(50 * time.Millisecond), Window: hub.Duration(time.Second)}
		c.Governor.Evidence = governor.EvidenceConfig{Dir: t.TempDir(), Profile: hub.Duration(100 * time.Millisecond)}
	})
}

// until waits for ok, for longer than trial.Eventually: windows must pass.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	trial.Within(t, time.Minute, what, ok)
}

// causeNow is the cause by its name in what the dashboard reads, nil if it is not there.
func (g *gateway) causeNow(t *testing.T, name string) (*governor.Cause, *admin.Snapshot) {
	t.Helper()
	s := get[admin.Snapshot](t, g, "/api/snapshot")
	if i := slices.IndexFunc(s.Governor.State.Causes, func(c governor.Cause) bool { return c.Name == name }); i >= 0 {
		return &s.Governor.State.Causes[i], &s
	}
	return nil, &s
}

// scraped is a series of /metrics as it is there, −1 if it does not.
func (g *gateway) scraped(t *testing.T, series string) float64 {
	t.Helper()
	_, body := g.do(t, http.MethodGet, "/metrics", "")
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

// fires reports whether the alert's expression holds for what is scraped now, apart from how long.
func (g *gateway) fires(t *testing.T, alert string) bool {
	t.Helper()
	all := governor.Alerts(governor.DefaultThresholds())
	i := slices.IndexFunc(all, func(a governor.Alert) bool { return a.Name == alert })
	if i < 0 {
		t.Fatalf("there is no alert %s", alert)
	}
	m := regexp.MustCompile(`^(weir_\w+(?:\{[^}]*\})?) (>=|==) ([0-9.]+)$`).FindStringSubmatch(all[i].Expr)
	if m == nil {
		t.Fatalf("%s is more than a comparison: %s", alert, all[i].Expr)
	}
	limit, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		t.Fatal(err)
	}
	v := g.scraped(t, m[1])
	return m[2] == "==" && v == limit || m[2] == ">=" && v >= limit
}

// A loop that does not finish a tick is named, with its stack, while the admin
// listener continues; when it is over, so is the alert.
func TestStuckLoopIsNamed(t *testing.T) {
	trial.Long(t)
	g := watched(t)
	if c, _ := g.causeNow(t, governor.CauseLoopStuck); c != nil || g.fires(t, "WeirLoopStuck") {
		t.Fatalf("before: %+v", c)
	}
	release := make(chan struct{})
	defer func() {
		select {
		case <-release:
		default:
			close(release)
		}
	}()
	g.loops.Loops()[1].Post(func() { blocksItsLoop(release) })
	var c *governor.Cause
	var s *admin.Snapshot
	until(t, "the cause is in the snapshot", func() bool { c, s = g.causeNow(t, governor.CauseLoopStuck); return c != nil })
	if c.Loop != 1 || c.Value < 1 || c.Limit != 1 || !strings.Contains(c.Detail, "blocksItsLoop") {
		t.Errorf("cause %+v, want loop 1 in blocksItsLoop", c)
	}
	if s.Governor.State.Now.String() != "inflection" {
		t.Errorf("state %s, want inflection", s.Governor.State.Now)
	}
	if now := s.Governor.Loops[1].Working; now < 1 {
		t.Errorf("the panel of loops shows %v s at work", now)
	}
	if !g.fires(t, "WeirLoopStuck") || g.scraped(t, `weir_governor_cause{cause="loop-stuck"}`) != 1 || !g.fires(t, "WeirInflection") {
		t.Error("the alerts do not fire")
	}
	close(release)
	until(t, "it is over", func() bool {
		c, _ := g.causeNow(t, governor.CauseLoopStuck)
		return c == nil && !g.fires(t, "WeirLoopStuck")
	})
}

//go:noinline
func blocksItsLoop(release chan struct{}) { <-release }

// Goroutines of no role that come and stay are named as a leak, and not when they go.
func TestLeakingGoroutinesAreNamed(t *testing.T) {
	trial.Long(t)
	g := watched(t)
	until(t, "some windows are classified", func() bool { return g.scraped(t, "weir_governor_windows_total") >= 3 })
	release := make(chan struct{})
	ended := make(chan struct{})
	const leaked = 1500
	for range leaked {
		go func() { <-release; ended <- struct{}{} }()
	}
	var s *admin.Snapshot
	until(t, "the leak is named", func() bool {
		var c *governor.Cause
		c, s = g.causeNow(t, governor.CauseGoroutineLeak)
		return c != nil && c.Value >= leaked*9/10
	})
	if other := s.Governor.Goroutines.Other; other < leaked {
		t.Errorf("the census has %d of no role, want %d at least", other, leaked)
	}
	if !g.fires(t, "WeirGoroutineLeak") || g.scraped(t, "weir_goroutines_other") < leaked {
		t.Error("the alert does not fire")
	}
	close(release)
	for range leaked {
		<-ended
	}
	until(t, "it is over", func() bool {
		c, _ := g.causeNow(t, governor.CauseGoroutineLeak)
		return c == nil && !g.fires(t, "WeirGoroutineLeak")
	})
}
