package report

import (
	"fmt"
	"io"
	"math"
)

// SVG implements Drawing.
func (b *Bars) SVG(w io.Writer, o Options) error {
	c := newCanvas(o)
	b.draw(c)
	return c.write(w, o.Theme, b.Title)
}

const (
	barHeight = 15.0
	groupGap  = 13.0
)

func (b *Bars) draw(c *canvas) {
	var keys []key
	for i, s := range b.Series {
		if s != "" && len(b.Series) > 1 {
			keys = append(keys, key{s, colorOf(Series{}, i), Histogram, false})
		}
	}
	top := c.head(b.Title, b.Note, keys)
	// On a phone names stand above their bars, otherwise beside them.
	nameWidth, above := 0.0, 0.0
	for _, g := range b.Groups {
		nameWidth = max(nameWidth, textWidth(g.Name, font))
	}
	nameWidth = min(nameWidth, c.w*0.42)
	if c.narrow {
		nameWidth, above = 0, 17
	}
	rows := 0.0
	for _, g := range b.Groups {
		rows += above + groupGap + barHeight*float64(max(len(g.Bars), 1))
	}
	f := frame{top: top + 4, left: margin + nameWidth + 8, right: c.w - margin - 6}
	if c.narrow {
		f.left = margin
	}
	if b.Reference != 0 && b.ReferenceLabel != "" {
		f.top += 14
	}
	f.bottom = f.top + max(rows, 40)
	c.h = f.bottom + 24
	if b.X.Label != "" {
		c.h += 17
		defer c.text((f.left+f.right)/2, f.bottom+35, "n", fit(b.X.Label, font, f.right-f.left))
	}
	f.x = b.ruler(f)
	c.xTicks(f, f.bottom+16)
	for _, t := range f.x.ticks {
		if x := f.x.at(t.v); x >= f.left-0.5 && x <= f.right+0.5 {
			c.line(x, f.top, x, f.bottom, "g")
		}
	}
	if len(b.Groups) == 0 {
		f.noData(c)
	}
	y := f.top
	for _, g := range b.Groups {
		y = c.group(f, b, g, y, above)
	}
	c.reference(f, b)
}

// ruler leaves room at the right for the values that stand behind the bars.
func (b *Bars) ruler(f frame) ruler {
	var d span
	if b.X.Scale == Linear {
		d.add(0)
	}
	for _, g := range b.Groups {
		for _, p := range g.Bars {
			d.addOn(b.X, p.Y)
			if p.hasInterval() {
				d.addOn(b.X, p.Lo)
				d.addOn(b.X, p.Hi)
			}
		}
		if g.Claim != 0 {
			d.addOn(b.X, g.Claim)
			d.addOn(b.X, max(g.Claim, g.ClaimHi))
		}
	}
	if b.Reference != 0 {
		d.addOn(b.X, b.Reference)
	}
	r := newRuler(b.X, d, int((f.right-f.left)/90), true)
	r.from, r.to = f.left, max(f.right-52, f.left+20)
	return r
}

func (c *canvas) group(f frame, b *Bars, g Group, y, above float64) float64 {
	y += groupGap / 2
	rows := max(len(g.Bars), 1)
	if above > 0 {
		c.text(margin, y+font, "k", fit(g.Name, font, c.w-2*margin))
		y += above
	} else {
		c.text(f.left-8, y+barHeight*float64(rows)/2+4, "k e", fit(g.Name, font, f.left-8-margin))
	}
	start := y
	values := make([]float64, len(g.Bars))
	for i, p := range g.Bars {
		values[i] = c.bar(f, b, p, i, y)
		y += barHeight
	}
	if len(g.Bars) == 0 {
		c.text(f.left+4, y+barHeight-4, "v", "not measured")
		y += barHeight
	}
	if g.Claim != 0 && f.x.shows(g.Claim) {
		title := "claimed: " + b.X.Unit.Format(g.Claim)
		x := f.x.at(g.Claim)
		if g.ClaimHi > g.Claim && f.x.shows(g.ClaimHi) {
			title += " to " + b.X.Unit.Format(g.ClaimHi)
			c.rect(x, start-3, f.x.at(g.ClaimHi)-x, y-start+6, "cr", "", title)
			c.line(f.x.at(g.ClaimHi), start-3, f.x.at(g.ClaimHi), y+3, "c")
		}
		c.line(x, start-3, x, y+3, "c")
	}
	for i, x := range values {
		if x > 0 {
			c.text(x, start+barHeight*float64(i+1)-4, "v o", b.X.Unit.Format(g.Bars[i].Y))
		}
	}
	return y + groupGap/2
}

// bar returns where its value may stand; 0 if there is none.
func (c *canvas) bar(f frame, b *Bars, p Point, i int, y float64) float64 {
	class := colorOf(Series{}, i)
	if p.State != "" {
		class = string(p.State.known())
	}
	if !f.x.shows(p.Y) {
		c.text(f.left+4, y+barHeight-4, "v", "not measured")
		return 0
	}
	from := f.left
	switch {
	case f.x.scale == Linear:
		from = f.x.at(0)
	case b.Reference != 0 && f.x.shows(b.Reference):
		from = f.x.at(b.Reference) // a ratio grows from what it is a ratio to
	}
	x := f.x.at(p.Y)
	value := b.X.Unit.Format(p.Y)
	title := p.Label
	if title == "" {
		title = value
		if i < len(b.Series) && b.Series[i] != "" {
			title = b.Series[i] + ": " + value
		}
	}
	c.raw(fmt.Sprintf(`<g class="%s">`, class))
	c.rect(min(from, x), y+1.5, math.Abs(x-from), barHeight-3, "f", ` rx="1.5"`, title)
	end := x
	if p.hasInterval() && f.x.shows(p.Lo) && f.x.shows(p.Hi) {
		lo, hi, mid := f.x.at(p.Lo), f.x.at(p.Hi), y+barHeight/2
		c.path("M"+num(lo)+" "+num(mid-3)+"v6M"+num(lo)+" "+num(mid)+"H"+num(hi)+"M"+num(hi)+" "+num(mid-3)+"v6", "c")
		end = max(end, hi)
	}
	c.raw("</g>")
	return max(end, from) + 5
}

func (c *canvas) reference(f frame, b *Bars) {
	if b.Reference == 0 || !f.x.shows(b.Reference) {
		return
	}
	x := f.x.at(b.Reference)
	c.raw(`<g class="z">`)
	c.line(x, f.top-2, x, f.bottom, "m")
	label := fit(b.ReferenceLabel, 11, f.right-f.left)
	w := textWidth(label, 11)
	c.text(max(f.left, min(x-w/2, f.right-w)), f.top-6, "ml", label)
	c.raw("</g>\n")
}
