package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
)

var (
	topViews = []string{"overview", "loops", "consumers", "channels", "backends", "timeline"}
	topKeys  = []byte("olchut")
	topSorts = []string{"lag", "bytes", "age", "messages"}
)

// A topLine is a line of a frame: pieces, each in a state's colour. Unknown is dim,
// plain is none.
type topLine []topPiece

type topPiece struct {
	text string
	tone draw.State
}

// plain is not a colour at all.
const plain = draw.State("plain")

func plainLine(format string, a ...any) topLine {
	return topLine{{fmt.Sprintf(format, a...), plain}}
}

func dimLine(format string, a ...any) topLine {
	return topLine{{fmt.Sprintf(format, a...), draw.Unknown}}
}

var topColors = map[draw.State]string{draw.Good: "32", draw.Warn: "33", draw.Bad: "1;31", draw.Unknown: "90"}

// render cuts the line to width columns.
func (l topLine) render(width int, color bool) string {
	var b strings.Builder
	left := width
	for _, p := range l {
		text, used := cutTo(p.text, left)
		left -= used
		if code := topColors[p.tone]; color && code != "" && text != "" {
			text = "\x1b[" + code + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	return b.String()
}

// cutTo returns what of s has place in so many columns, and how many it takes.
func cutTo(s string, columns int) (string, int) {
	used := 0
	for i, r := range s {
		w := draw.RuneWidth(r)
		if used+w > columns {
			return s[:i], used
		}
		used += w
	}
	return s, used
}

// legible makes names that others chose safe for a terminal: no control character,
// and none that turns the direction of writing, gets through.
func legible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// pad brings s to width columns, cut or filled up; a negative width fills on the left.
func pad(s string, width int) string {
	n := max(width, -width)
	text, used := cutTo(s, n)
	if used < n && text != s {
		used = n // a wide character did not fit
	}
	fill := strings.Repeat(" ", n-used)
	if width < 0 {
		return fill + text
	}
	return text + fill
}

// A topView is what is shown of a snapshot, and how.
type topView struct {
	view, sort    int
	held, help    bool
	full          bool // a whole screen: with a foot, cut to its height
	width, height int
	snapshot      *topSnapshot // nil before the first
	problem       error        // why there is none newer
	rows          []admin.Connection
	rowsErr       error
}

func isRefused(err error) bool { return errors.Is(err, errTopRefused) }

// key handles a key press and reports whether that is to end.
func (v *topView) key(k byte) (end bool) {
	switch k {
	case 'q', 'Q', 3, 4: // ^C, ^D
		return true
	case ' ', 'p':
		v.held = !v.held
	case '?':
		v.help = !v.help
	case 's':
		v.sort = (v.sort + 1) % len(topSorts)
		v.view = slices.Index(topViews, "consumers")
	case '\t':
		v.view = (v.view + 1) % len(topViews)
	default:
		if i := slices.Index(topKeys, k); i >= 0 {
			v.view, v.help = i, false
		}
	}
	return false
}

// consumers reports whether the consumers in their own order are shown.
func (v *topView) consumers() bool { return topViews[v.view] == "consumers" }

// lines are a frame.
func (v *topView) lines() []topLine {
	var out []topLine
	switch {
	case v.snapshot == nil && v.problem != nil:
		out = []topLine{plainLine("weir top"), {}, {{legible(v.problem.Error()), draw.Bad}}, dimLine("trying again")}
	case v.snapshot == nil:
		out = []topLine{plainLine("weir top"), {}, dimLine("waiting for the first numbers")}
	case v.help:
		out = append(v.head(), topHelp()...)
	default:
		out = append(v.head(), v.body()...)
	}
	if !v.full {
		return out
	}
	if keep := max(v.height-1, 0); len(out) > keep {
		out = out[:keep]
	}
	for len(out) < v.height-1 {
		out = append(out, topLine{})
	}
	return append(out, v.foot())
}

func topHelp() []topLine {
	out := []topLine{{}}
	for _, l := range []string{
		"o  overview", "l  loops", "c  consumers, s sorts them by another column", "h  channels", "u  backends", "t  timeline",
		"Tab    the next of these", "space  pause and resume the display", "?      this list", "q      end",
	} {
		out = append(out, plainLine("  %s", l))
	}
	return out
}

// foot names the keys.
func (v *topView) foot() topLine {
	var l topLine
	for i, name := range topViews {
		tone := draw.Unknown
		if i == v.view {
			tone = draw.Good
			name = "[" + name + "]"
		}
		l = append(l, topPiece{string(topKeys[i]) + " " + name + "  ", tone})
	}
	return append(l, topPiece{"? keys  q end", draw.Unknown})
}

// toneOf is a state's colour.
func toneOf(s stat.State) draw.State {
	switch s {
	case stat.Steady:
		return draw.Good
	case stat.Inflection:
		return draw.Bad
	}
	return draw.Warn
}

// head is above every view: which server, how it fares, what goes through.
func (v *topView) head() []topLine {
	s := v.snapshot
	p, t, c, g := &s.Process, &s.Traffic, &s.Connections, s.Governor
	first := topLine{{"weir " + p.Listen, plain}, {fmt.Sprintf("  up %s  %s  %s  %s", since(time.Duration(p.Uptime*float64(time.Second)).Truncate(time.Second)), p.Engine, p.Broker, p.Version), draw.Unknown}}
	switch {
	case v.problem != nil:
		first = append(first, topPiece{fmt.Sprintf("  NOT LIVE for %v", time.Since(s.at).Truncate(time.Second)), draw.Bad})
	case v.held:
		first = append(first, topPiece{"  HELD", draw.Warn})
	}
	out := append([]topLine{first, v.state()}, v.degraded()...)
	out = append(out, v.causes()...)
	out = append(out,
		topLine{{fmt.Sprintf("in %-8s out %-8s requests %-8s bytes out %-10s in %s", draw.PerSec.Format(t.PublishedRate), draw.PerSec.Format(t.DeliveredRate),
			draw.PerSec.Format(t.RequestRate), draw.Bytes.Format(t.OutRate)+"/s", draw.Bytes.Format(t.InRate)+"/s"), plain}},
		topLine{{fmt.Sprintf("conns %s of %s ", draw.Grouped(uint64(max(c.Open, 0))), draw.Grouped(uint64(max(c.Max, 0)))), plain}, {protocols(c.ByProtocol), draw.Unknown}})
	if g == nil || !g.Enabled {
		return append(out, dimLine("the governor is off: no latency, no runtime"), topLine{})
	}
	h := &g.Host
	out = append(out,
		plainLine("to sockets P50 %s P99 %s  scheduler P99 %s  netpoll P99 %s", secs(g.Delivery.Second.P50), secs(g.Delivery.Second.P99), secs(g.Sched.Latency.P99), secs(g.Canaries.NetpollP99)),
		plainLine("cpu %s of %d  runq %.1f/P  G %d M %d  gc %s  rss %s, %s/conn", draw.Share.Format(g.CPU.Share), g.Sched.Procs, g.Sched.RunQueue, g.Sched.Goroutines, g.Sched.Threads,
			draw.Share.Format(g.Collector.Share), draw.Bytes.Format(float64(g.Memory.RSS)), draw.Bytes.Format(g.Memory.PerConnection)),
		plainLine("host busy %s  waits %s  stolen %s  behind %s of %s  stalled %d", draw.Share.Format(h.Busy), draw.Share.Format(h.Wait), draw.Share.Format(h.Steal),
			draw.Grouped(s.Lag.Lagging), draw.Grouped(s.Lag.Subscribers), g.Stalls.Waiting), topLine{})
	return out
}

// secs writes a time, or that there is none yet.
func secs(v float64) string {
	if v <= 0 {
		return "–"
	}
	return draw.Seconds.Format(v)
}

// protocols lists who is connected, most first.
func protocols(by map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, n := range names {
		if by[n] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", legible(n), draw.Grouped(uint64(by[n]))))
		}
	}
	return strings.Join(parts, "  ")
}

// state is how it fares and why, and how far the knee is.
func (v *topView) state() topLine {
	g := v.snapshot.Governor
	if ready := v.snapshot.Process.Ready; ready != "yes" {
		return topLine{{"NOT READY " + legible(ready), draw.Bad}}
	}
	if g == nil || !g.Enabled {
		return topLine{{"RUNNING", draw.Good}}
	}
	s := &g.State
	l := topLine{{strings.ToUpper(s.Now.String()), toneOf(s.Now)}}
	if !s.Since.IsZero() {
		l = append(l, topPiece{" for " + since(v.snapshot.Time.Sub(s.Since).Truncate(time.Second)), plain})
	}
	if s.Inconclusive {
		l = append(l, topPiece{"  inconclusive: the host is busy", draw.Warn})
	}
	if g.Knee.Known {
		l = append(l, topPiece{fmt.Sprintf("  %s of the knee", draw.Share.Format(g.Knee.Fraction)), plain})
	}
	return l
}

// degraded are the degraded modes that the node is in, a line each.
func (v *topView) degraded() (out []topLine) {
	for _, d := range v.snapshot.Degraded {
		out = append(out, topLine{
			{"DEGRADED " + legible(d.Mode), draw.Bad}, {" for " + since(v.snapshot.Time.Sub(d.Since).Truncate(time.Second)), plain},
			{"  runbook " + legible(d.Alert), draw.Unknown},
		})
	}
	return out
}

// maxCauseLines bounds the lines that causes take.
const maxCauseLines = 4

// causes are what speaks for the state, the worst first, in as many lines as they need:
// one that is empty while all is well.
func (v *topView) causes() []topLine {
	g := v.snapshot.Governor
	if g == nil || !g.Enabled {
		return []topLine{nil}
	}
	out := []topLine{nil}
	used := 0
	texts := causeTexts(g.State.Causes)
	for i, rest := range texts {
		tone := toneOf(g.State.Causes[i].State)
		if i < len(texts)-1 {
			rest += ","
		}
		_, wide := cutTo(rest, 1<<20)
		switch {
		case used == 0:
		case used+1+wide <= v.width:
			rest = " " + rest
		default:
			out, used = append(out, nil), 0
		}
		for rest != "" {
			part, columns := cutTo(rest, max(v.width-used, 1))
			if part == "" { // a wide letter on the narrowest screen
				break
			}
			out[len(out)-1] = append(out[len(out)-1], topPiece{part, tone})
			used += columns
			if rest = rest[len(part):]; rest != "" {
				out, used = append(out, nil), 0
			}
		}
		if left := len(texts) - i - 1; len(out) > maxCauseLines {
			return append(out[:maxCauseLines-1], dimLine("+%d more: timeline", left+1))
		}
	}
	return out
}

func causeTexts(causes []governor.Cause) []string {
	out := make([]string, len(causes))
	for i := range causes {
		out[i] = legible(causes[i].Text)
	}
	return out
}
