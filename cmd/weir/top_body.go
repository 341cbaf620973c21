package main

import (
	"fmt"
	"slices"
	"strings"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// body is the view that was chosen. The overview gives each of the others a few lines.
func (v *topView) body() []topLine {
	s := v.snapshot
	switch topViews[v.view] {
	case "loops":
		return v.loops(len(s.Loops))
	case "consumers":
		if v.rowsErr != nil {
			return []topLine{{{legible(v.rowsErr.Error()), draw.Bad}}}
		}
		return v.slowest("by "+topSorts[v.sort], v.rows, len(v.rows))
	case "channels":
		return v.channels(len(s.Channels.Top))
	case "backends":
		return v.backends(1 << 10)
	case "timeline":
		return v.timeline(1 << 10)
	}
	height := v.height
	if !v.full {
		height = 40
	}
	left := height - len(v.head()) - 1
	out := v.loops(min(len(s.Loops), 8))
	out = append(out, v.admitted()...)
	left -= len(out)
	// Half of what is left for anyone who is slow, the rest for channels and backends.
	backs := v.backends(4)
	backs = backs[:min(len(backs), max(2, left/3))]
	if len(s.Upstreams.Clusters) == 0 {
		backs = nil
	}
	chans := v.channels(max(1, min(5, (left-len(backs))/4)))
	room := left - len(chans) - len(backs)
	out = append(out, v.slowest("", s.Slowest, min(20, max(1, room-1)))...)
	out = append(out, chans...)
	return append(out, backs...)
}

func (v *topView) loops(n int) []topLine {
	out := []topLine{dimLine("%s", "LOOP   CONNS  BUSY              TICK P99   UNDER WAY    INBOX     OUT/S")}
	for i := range min(n, len(v.snapshot.Loops)) {
		l := &v.snapshot.Loops[i]
		tone := plain
		if g := v.snapshot.Governor; g != nil {
			for _, c := range g.State.Causes {
				if c.Loop == l.Loop {
					tone = toneOf(c.State)
				}
			}
		}
		under := "–"
		if l.Current > 0.001 {
			under = secs(l.Current)
		}
		const columns = 10
		full := min(max(int(l.Busy*columns+0.5), 0), columns)
		out = append(out, topLine{
			{fmt.Sprintf("%4d %7d  ", l.Loop, l.Connections), plain},
			{strings.Repeat("█", full), tone}, {strings.Repeat("·", columns-full), draw.Unknown},
			{fmt.Sprintf(" %4.0f %% %10s %11s %8d %9s", l.Busy*100, secs(l.TickP99), under, int64(l.Inbox)+l.Queue, draw.Number.Format(l.Messages)), tone},
		})
	}
	if rest := len(v.snapshot.Loops) - n; rest > 0 {
		out = append(out, dimLine("     and %d more: l", rest))
	}
	return out
}

func (v *topView) slowest(order string, rows []admin.Connection, n int) []topLine {
	title := "SLOWEST CONSUMERS"
	if order != "" {
		title = strings.ToUpper("consumers " + order)
	}
	wide := max(v.width-80, 0)
	out := []topLine{dimLine("%s%s%s%s%s%s", pad(title, 34+wide/2), pad("CHANNELS", 14+wide-wide/2), pad("HERE", -9), pad("MSGS", -7), pad("KERNEL", -9), pad("BEHIND", -7))}
	if len(rows) == 0 {
		return append(out, dimLine("  no subscribers"))
	}
	for i := range min(n, len(rows)) {
		c := &rows[i]
		who := legible(kindOf(c) + " " + c.Peer)
		if c.Subject != "" {
			who += " " + legible(c.Subject)
		}
		tone := draw.Unknown
		if c.Bytes > 0 || c.Messages > 0 {
			tone = draw.Warn
		} else if c.Kernel > 0 {
			tone = plain
		}
		age := "–"
		if c.Age > 0 {
			age = secs(c.Age)
		}
		out = append(out, topLine{
			{pad(who, 33+wide/2) + " " + pad(legible(strings.Join(c.Channels, ",")), 13+wide-wide/2) + " ", plain},
			{pad(draw.Bytes.Format(float64(c.Bytes)), -9) + pad(draw.Number.Format(float64(c.Messages)), -7) + pad(draw.Bytes.Format(float64(c.Kernel)), -9) + pad(age, -7), tone},
		})
	}
	return out
}

// kindOf is what a client speaks: a protocol on a transport, which HTTP/2 or HTTP/3 may carry.
func kindOf(c *admin.Connection) string {
	kind := c.Transport
	if c.Protocol != "" {
		kind = c.Protocol + " " + kind
	}
	if c.HTTP2 {
		kind += " h2"
	}
	if c.HTTP3 {
		kind += " h3"
	}
	return kind
}

// admitted are the classes of which something was asked for; none without.
func (v *topView) admitted() []topLine {
	var out []topLine
	for i := range v.snapshot.Admission {
		c := &v.snapshot.Admission[i]
		if c.Offered == 0 {
			continue
		}
		if out == nil {
			out = append(out, dimLine("%-8s %11s %11s %10s  %10s %10s %9s %9s", "CLASS", "OFFERED/S", "ADMITTED/S", "REFUSED/S", "", "WAIT P50", "P95", "P99"))
		}
		const columns = 10
		share := 0.0
		if c.OfferedRate > 0 {
			share = c.RejectedRate / c.OfferedRate
		}
		full, tone := min(max(int(share*columns+0.5), 0), columns), plain
		if c.RejectedRate > 0 {
			tone = draw.Warn
			full = max(full, 1)
			if c.Class == "order" || c.Class == "control" {
				tone = draw.Bad
			}
		}
		n := draw.Number.Format
		out = append(out, topLine{
			{fmt.Sprintf("%-8s %11s %11s ", legible(c.Class), n(c.OfferedRate), n(c.AdmittedRate)), plain},
			{fmt.Sprintf("%10s  %s", n(c.RejectedRate), strings.Repeat("█", full)), tone}, {strings.Repeat("·", columns-full), draw.Unknown},
			{fmt.Sprintf(" %10s %9s %9s", secs(c.DelayP50), secs(c.DelayP95), secs(c.DelayP99)), plain},
		})
	}
	return out
}

func (v *topView) channels(n int) []topLine {
	s := v.snapshot
	out := []topLine{dimLine("%s%s%s%s", pad(fmt.Sprintf("CHANNELS, %s IN ALL", draw.Grouped(uint64(max(s.Channels.Count, 0)))), v.width-40), pad("MSG/S", -12), pad("SUBSCRIBERS", -14), pad("MESSAGES", -12))}
	if len(s.Channels.Top) == 0 {
		return append(out, dimLine("  none has subscribers"))
	}
	for i := range min(n, len(s.Channels.Top)) {
		c := &s.Channels.Top[i]
		out = append(out, topLine{{pad(legible(c.Name), v.width-41) + " " + pad(draw.Number.Format(c.Rate), -12) + pad(draw.Grouped(uint64(max(c.Subscribers, 0))), -14) + pad(draw.Grouped(c.Messages), -12), plain}})
	}
	return out
}

// peerTones are how a peer's state looks.
var peerTones = map[string]draw.State{"up": draw.Good, "slow start": draw.Warn, "half-open": draw.Warn, "draining": draw.Warn, "open": draw.Bad, "ejected": draw.Bad, "down": draw.Bad}

func (v *topView) backends(n int) []topLine {
	wide := max(v.width-80, 0)
	out := []topLine{dimLine("%s%s%s%s%s%s", pad("BACKENDS", 36+wide), pad("STATE", 11), pad("BUSY", -5), pad("REQUESTS", -10), pad("FAILED", -8), pad("FIRST B", -9))}
	type row struct {
		cluster string
		p       *upstream.PeerStats
	}
	var rows []row
	for i := range v.snapshot.Upstreams.Clusters {
		c := &v.snapshot.Upstreams.Clusters[i]
		for j := range c.Peers {
			rows = append(rows, row{c.Name, &c.Peers[j]})
		}
	}
	if len(rows) == 0 {
		return append(out, dimLine("  no clusters: nothing is proxied"))
	}
	// What needs attention comes first.
	slices.SortStableFunc(rows, func(a, b row) int { return urgency(b.p.State) - urgency(a.p.State) })
	for i := range min(n, len(rows)) {
		p := rows[i].p
		failed := p.Classes[5] + p.ConnectErrors + p.Resets + p.Timeouts
		first := "–"
		if p.EWMA > 0 {
			first = secs(p.EWMA.Seconds())
		}
		out = append(out, topLine{
			{pad(legible(rows[i].cluster+" "+p.Address), 35+wide) + " ", plain}, {pad(p.State, 11), peerTones[p.State]},
			{pad(fmt.Sprint(p.InFlight), -5) + pad(draw.Number.Format(float64(p.Attempts)), -10) + pad(draw.Number.Format(float64(failed)), -8) + pad(first, -9), plain},
		})
	}
	if rest := len(rows) - n; rest > 0 {
		out = append(out, dimLine("  and %d more: u", rest))
	}
	for i := range v.snapshot.Upstreams.Splits {
		sp := &v.snapshot.Upstreams.Splits[i]
		if sp.Canary != nil {
			out = append(out, plainLine("canary of %s: %s, step %d, %s of the requests  %s", legible(sp.Name), sp.Canary.State, sp.Canary.Step+1, draw.Share.Format(sp.Canary.Share), legible(sp.Canary.Reason)))
		}
	}
	return out
}

// urgency orders the states of peers.
func urgency(state string) int {
	switch peerTones[state] {
	case draw.Bad:
		return 2
	case draw.Good:
		return 0
	}
	return 1
}

func (v *topView) timeline(n int) []topLine {
	g := v.snapshot.Governor
	if g == nil || !g.Enabled {
		return []topLine{dimLine("the governor is off: no states")}
	}
	out := []topLine{dimLine("TIME      STATE       CAUSES, EVIDENCE")}
	if len(g.Timeline) == 0 {
		return append(out, dimLine("  steady since the start"))
	}
	byTime := slices.Clone(g.Timeline)
	slices.SortStableFunc(byTime, func(a, b governor.Transition) int { return b.Time.Compare(a.Time) })
	for i := range min(n, len(byTime)) {
		t := &byTime[i]
		out = append(out, topLine{
			{t.Time.Local().Format("15:04:05") + "  ", draw.Unknown}, {pad(t.To.String(), 12), toneOf(t.To)},
			{strings.Join(causeTexts(t.Causes), ", "), plain}, {"  " + legible(t.Evidence), draw.Unknown},
		})
	}
	return out
}
