package governor

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// quietLoop is after how long a loop that does not report what it works at, and does not
// tick while its inbox holds something, is taken to be stuck: loops tick every second
// for no reason.
const quietLoop = 2500 * time.Millisecond

// A watchdog finds loops that do not finish a tick.
type watchdog struct {
	seen     []loopSeen
	stuck    map[int]*stuckLoop
	reported time.Time
}

type loopSeen struct {
	id    int
	ticks uint64
	since time.Time
}

type stuckLoop struct {
	stack  string
	lasted time.Duration
}

// watch compares the loops with the clock. In steady state it does not allocate.
func (s *sampler) watch(now time.Time) {
	d := &s.dog
	trusted := now.After(s.lateUntil)
	changed := false
	for i := range s.cur.loops {
		l := &s.cur.loops[i]
		working := d.working(i, l, now)
		is := trusted && working.Seconds() >= s.t.LoopStuck
		switch was := d.stuck[l.ID]; {
		case is && was == nil:
			if d.stuck == nil {
				d.stuck = map[int]*stuckLoop{}
			}
			d.stuck[l.ID] = &stuckLoop{stack: loopStack(l.ID), lasted: working}
			changed = true
		case is:
			was.lasted = working
		case was != nil && working.Seconds() < s.t.LoopStuck:
			delete(d.stuck, l.ID)
			changed = true
		}
	}
	if !changed && (len(d.stuck) == 0 || now.Sub(d.reported) < time.Second) {
		return
	}
	d.reported = now
	s.applyState(now, s.machine.found(now, d.causes(s)))
}

// working is how long loop i has worked at one tick.
func (d *watchdog) working(i int, l *LoopSample, now time.Time) time.Duration {
	for i >= len(d.seen) {
		d.seen = append(d.seen, loopSeen{id: -1})
	}
	seen := &d.seen[i]
	if seen.id != l.ID || seen.ticks != l.Ticks {
		*seen = loopSeen{l.ID, l.Ticks, now}
	}
	if l.Working > 0 {
		return l.Working
	}
	if quiet := now.Sub(seen.since); l.Inbox > 0 && quiet >= quietLoop {
		return quiet
	}
	return 0
}

func (d *watchdog) causes(s *sampler) []Cause {
	var out []Cause
	for i := range s.cur.loops { // in the loops' order
		if one := d.stuck[s.cur.loops[i].ID]; one != nil {
			c := cause(CauseLoopStuck, stat.Inflection, one.lasted.Seconds(), s.t.LoopStuck, "loop %d stuck for %s", s.cur.loops[i].ID, seconds(one.lasted.Seconds()))
			c.Loop, c.Detail = s.cur.loops[i].ID, one.stack
			out = append(out, c)
		}
	}
	return out
}

// LoopLabel is the profiler label that a loop's goroutine carries (see
// [runtime/pprof.Do]), its number as the value: so its stack can be found among others.
const LoopLabel = "loop"

// maxStack bounds what is kept of a stack.
const maxStack = 8 << 10

// loopStack is the stack of the goroutine labelled as this loop's; when none is
// labelled, the stacks of loops that do not wait for their poller. It takes a goroutine
// profile: some milliseconds, so only when a loop is stuck.
func loopStack(id int) string {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return ""
	}
	return findStack(b.String(), id)
}

// findStack finds it in a goroutine profile in words.
func findStack(profile string, id int) string {
	label := fmt.Sprintf("%q:\"%d\"", LoopLabel, id)
	var guess strings.Builder
	for record := range strings.SplitSeq(profile, "\n\n") {
		labels, _, _ := strings.Cut(after(record, "# labels: "), "\n")
		if strings.Contains(labels, label) {
			return stackOf(record)
		}
		if strings.Contains(record, loopRun) && !strings.Contains(record, loopWait) && guess.Len() < maxStack {
			guess.WriteString(stackOf(record))
		}
	}
	return guess.String()
}

// What is in the stack of a loop, and of one that waits for its poller.
const (
	loopRun  = "internal/net/eventloop.(*Loop).run+"
	loopWait = "internal/net/sys.EpollWait+"
)

// stackOf is a record's frames, the innermost first.
func stackOf(record string) string {
	var out strings.Builder
	for line := range strings.Lines(record) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "#" && strings.HasPrefix(f[1], "0x") && out.Len() < maxStack {
			fmt.Fprintf(&out, "%s %s\n", f[2], strings.Join(f[3:], " "))
		}
	}
	return out.String()
}

func after(s, sep string) string {
	_, rest, _ := strings.Cut(s, sep)
	return rest
}
