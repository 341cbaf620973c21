package report

import (
	"fmt"
	"io"
)

// SVG implements Drawing.
func (s *Strip) SVG(w io.Writer, o Options) error {
	c := newCanvas(o)
	s.draw(c)
	return c.write(w, o.Theme, s.Title)
}

const stripHeight = 20.0

func (s *Strip) draw(c *canvas) {
	top := c.head(s.Title, s.Note, s.keys())
	names, above := 0.0, 0.0
	for _, r := range s.Rows {
		names = max(names, textWidth(r.Name, font))
	}
	names = min(names, c.w*0.35)
	f := frame{top: top, left: margin + names + 8, right: c.w - margin - 6}
	if c.narrow || names == 0 {
		f.left = margin
	}
	if c.narrow && names > 0 {
		above = 16
	}
	f.bottom = f.top + max(float64(len(s.Rows))*(stripHeight+above+5), 30)
	c.h = f.bottom + 26
	var d span
	for _, r := range s.Rows {
		for _, p := range r.Spans {
			d.addOn(s.X, p.From)
			d.addOn(s.X, p.To)
		}
	}
	f.x = newRuler(s.X, d, int((f.right-f.left)/80), false)
	f.x.from, f.x.to = f.left, f.right
	if !d.any {
		f.noData(c)
	}
	y := f.top
	for _, r := range s.Rows {
		if above > 0 {
			c.text(margin, y+font, "k", fit(r.Name, font, c.w-2*margin))
		} else if names > 0 {
			c.text(f.left-8, y+14, "k e", fit(r.Name, font, names))
		}
		y += above
		c.stripRow(f, s, r, y)
		y += stripHeight + 5
	}
	c.line(f.left, f.bottom, f.right, f.bottom, "a")
	c.xTicks(f, f.bottom+16)
	if s.X.Label != "" {
		c.h += 15
		c.text((f.left+f.right)/2, f.bottom+33, "n", fit(s.X.Label, font, f.right-f.left))
	}
}

func (c *canvas) stripRow(f frame, s *Strip, r StripRow, y float64) {
	for _, p := range r.Spans {
		if !f.x.shows(p.From) || !f.x.shows(p.To) || !(p.To > p.From) {
			continue
		}
		x0, x1 := f.x.at(p.From), f.x.at(p.To)
		x0, x1 = max(x0, f.left), min(x1, f.right)
		title := fmt.Sprintf("%s … %s", s.X.Unit.Format(p.From), s.X.Unit.Format(p.To))
		if p.Label != "" {
			title = p.Label + ", " + title
		}
		c.raw(`<g class="` + p.State.class() + `">`)
		c.rect(x0, y, max(x1-x0-1, 1), stripHeight, "f", ` rx="2"`, title)
		c.raw("</g>")
		if p.Label != "" && textWidth(p.Label, 11)+8 < x1-x0 {
			c.text((x0+x1)/2, y+14, "on n", p.Label)
		}
	}
}

// keys are the states that occur, in the order of their gravity.
func (s *Strip) keys() []key {
	var keys []key
	for _, st := range []State{Good, Warn, Bad, Unknown} {
		name := ""
		for _, r := range s.Rows {
			for _, p := range r.Spans {
				if p.State.known() != st {
					continue
				}
				switch {
				case name == "":
					name = p.Label
				case name != p.Label:
					name = string(st)
				}
				if name == "" {
					name = string(st)
				}
			}
		}
		if name != "" {
			keys = append(keys, key{name, string(st), Histogram, false})
		}
	}
	return keys
}
