package report

import (
	"fmt"
	"io"
	"math"
	"strings"
)

const (
	ownWidth  = 720.0
	phone     = 500.0 // below: drawn for a phone
	margin    = 14.0
	font      = 12.0
	titleFont = 15.0
)

func newCanvas(o Options) *canvas {
	w := float64(o.Width)
	if o.Width == 0 {
		w = ownWidth
	}
	w = min(max(w, 200), 4000)
	return &canvas{svg{w: w, narrow: w < phone}}
}

// height sets the height of a drawing whose data start at top: what is wanted, or, if that is 0, a share
// of the width, on a phone slim.
func (c *svg) height(want int, top, share, slim float64) {
	if c.narrow {
		share = slim
	}
	height := float64(want)
	if want <= 0 {
		height = top + c.w*share
	}
	c.h = max(min(height, 4000), top+120)
}

func (f *frame) noData(c *canvas) {
	c.text((f.left+f.right)/2, (f.top+f.bottom)/2, "n", "no data")
}

// A key is an entry of a legend.
type key struct {
	name, class string
	kind        Kind
	dashed      bool
}

// head writes title, note and legend, and returns where the drawing may start.
func (c *canvas) head(title, note string, keys []key) float64 {
	y := margin
	limit := 1
	if c.narrow {
		limit = 3
	}
	for _, l := range wrap(title, titleFont, c.w-2*margin, limit) {
		y += titleFont
		c.text(margin, y, "t", l)
		y += 4
	}
	for _, l := range wrap(note, font, c.w-2*margin, limit+2) {
		y += font + 1
		c.text(margin, y, "", l)
		y += 3
	}
	if len(keys) > 0 {
		y = c.legend(y+6, keys)
	}
	return y + 8
}

func (c *canvas) legend(y float64, keys []key) float64 {
	x := margin
	y += font
	for _, k := range keys {
		name := fit(k.name, font, c.w-2*margin-26)
		w := 24 + textWidth(name, font) + 14
		if x > margin && x+w > c.w-margin {
			x, y = margin, y+font+6
		}
		c.swatch(x, y-4, k)
		c.text(x+22, y, "k", name)
		x += w
	}
	return y + 2
}

func (c *canvas) swatch(x, y float64, k key) {
	c.raw(`<g class="` + k.class + `">`)
	switch k.kind {
	case Points:
		c.line(x+8, y-6, x+8, y+6, "i")
		c.dot(x+8, y, 3.6, "")
	case Histogram:
		c.rect(x, y-5, 16, 10, "f", "", "")
	default:
		class := "l"
		if k.dashed {
			class = "l x"
		}
		c.line(x, y, x+16, y, class)
	}
	c.raw("</g>\n")
}

// colorOf is the class of a series.
func colorOf(s Series, i int) string {
	n := s.Color
	if n <= 0 {
		n = i + 1
	}
	return fmt.Sprintf("s%d", (n-1)%seriesColors+1)
}

// frame is where a plot's data lie, with its two rulers.
type frame struct {
	left, top, right, bottom float64
	x, y                     ruler
}

// axes lays out the frame between top and bottom and draws grid and ticks. labels
// make room for axis names: Y's above, X's below.
func (c *canvas) axes(top, bottom float64, ax, ay Axis, dx, dy span, padX bool) frame {
	f := frame{top: top, bottom: bottom - 22, right: c.w - margin - 6}
	if ay.Label != "" {
		f.top += 23
		c.text(margin, top+9, "", fit(ay.Label, font, c.w-2*margin))
	} else {
		f.top += 6
	}
	if ax.Label != "" {
		f.bottom -= 17
	}
	f.bottom = max(f.bottom, f.top+40)
	apart := 48.0
	if ay.Scale == Log {
		apart = 32
	}
	f.y = newRuler(ay, dy, int((f.bottom-f.top)/apart), true)
	f.y.from, f.y.to = f.bottom, f.top
	widest := 0.0
	for _, t := range f.y.ticks {
		widest = max(widest, textWidth(t.text, 11))
	}
	f.left = min(margin+widest+8, c.w/2)
	per := 86.0
	if c.narrow {
		per = 64
	}
	f.x = newRuler(ax, dx, int((f.right-f.left)/per), false)
	f.x.from, f.x.to = f.left, f.right
	if padX {
		f.x.from, f.x.to = f.left+14, f.right-14
	}
	c.grid(f)
	if ax.Label != "" {
		c.text((f.left+f.right)/2, f.bottom+35, "n", fit(ax.Label, font, f.right-f.left))
	}
	return f
}

func (c *canvas) grid(f frame) {
	for _, t := range f.y.ticks {
		y := f.y.at(t.v)
		if y < f.top-0.5 || y > f.bottom+0.5 {
			continue
		}
		c.line(f.left, y, f.right, y, "g")
		c.text(f.left-6, y+4, "v e", t.text)
	}
	c.xTicks(f, f.bottom+16)
	c.line(f.left, f.bottom, f.right, f.bottom, "a")
}

// xTicks writes the ticks of X, leaving out texts that would touch.
func (c *canvas) xTicks(f frame, y float64) {
	end := math.Inf(-1)
	for _, t := range f.x.ticks {
		x := f.x.at(t.v)
		if x < f.left-0.5 || x > f.right+0.5 {
			continue
		}
		c.line(x, f.bottom, x, f.bottom+4, "a")
		half := textWidth(t.text, 11) / 2
		class, left := "v n", x-half
		if x+half > c.w-2 {
			class, left, x = "v e", c.w-2-2*half, c.w-2
		}
		if left < end+5 {
			continue
		}
		c.text(x, y, class, t.text)
		end = left + 2*half
	}
}

// SVG implements Drawing.
func (p *Plot) SVG(w io.Writer, o Options) error {
	c := newCanvas(o)
	p.draw(c)
	return c.write(w, o.Theme, p.Title)
}

func (p *Plot) draw(c *canvas) {
	top := c.head(p.Title, p.Note, p.keys())
	c.height(p.Height, top, 0.4, 0.62)
	dx, dy, pad := p.spans()
	f := c.axes(top, c.h-8, p.X, p.Y, dx, dy, pad)
	if !dx.any || !dy.any {
		f.noData(c)
		return
	}
	c.clip(f.left-4, f.top-6, f.right-f.left+8, f.bottom-f.top+10)
	for _, m := range p.Marks {
		c.markShape(f, m)
	}
	for i, s := range p.Series {
		c.raw(`<g class="` + colorOf(s, i) + `">` + "\n")
		c.series(f, s)
		c.raw("</g>\n")
	}
	c.endClip()
	c.markLabels(f, p.Marks)
}

// keys are the named series, when there is more than one to distinguish.
func (p *Plot) keys() []key {
	var keys []key
	for i, s := range p.Series {
		if s.Name != "" {
			keys = append(keys, key{s.Name, colorOf(s, i), s.Kind, s.Dashed})
		}
	}
	if len(p.Series) < 2 && p.Title != "" {
		return nil
	}
	return keys
}

// spans are the ranges of both axes, and whether dots at the edges want room.
func (p *Plot) spans() (dx, dy span, pad bool) {
	for _, s := range p.Series {
		for i, pt := range s.Points {
			if !shownOn(p.X, pt.X) {
				continue
			}
			last := s.Kind == Histogram && i == len(s.Points)-1
			if !last && !shownOn(p.Y, pt.Y) {
				continue
			}
			dx.addOn(p.X, pt.X)
			if !last {
				dy.addOn(p.Y, pt.Y)
			}
			if pt.hasInterval() {
				dy.addOn(p.Y, pt.Lo)
				dy.addOn(p.Y, pt.Hi)
			}
			if pt.hasBracket() {
				dx.addOn(p.X, pt.XLo)
				dx.addOn(p.X, pt.XHi)
			}
		}
		pad = pad || s.Kind == Points
		if s.Kind == Histogram {
			dy.addOn(p.Y, 0)
		}
	}
	for _, m := range p.Marks {
		// A mark is shown if it is near; it does not squeeze the data.
		d, a := &dx, p.X
		if m.OnY {
			d, a = &dy, p.Y
		}
		if d.any && near(*d, a, m.At) {
			d.addOn(a, m.At)
		}
	}
	return dx, dy, pad
}

func near(d span, a Axis, v float64) bool {
	if !shownOn(a, v) {
		return false
	}
	if a.Scale == Log {
		return v > d.lo/30 && v < d.hi*30
	}
	room := max(d.hi-d.lo, math.Abs(d.hi)/2)
	return v > d.lo-room && v < d.hi+room
}

func shownOn(a Axis, v float64) bool {
	r := ruler{scale: a.Scale}
	return r.shows(v)
}

func (p Point) hasInterval() bool { return (p.Lo != 0 || p.Hi != 0) && finite(p.Lo) && finite(p.Hi) }
func (p Point) hasBracket() bool {
	return (p.XLo != 0 || p.XHi != 0) && finite(p.XLo) && finite(p.XHi)
}

// markShape draws what lies behind the data.
func (c *canvas) markShape(f frame, m Mark) {
	r := &f.x
	if m.OnY {
		r = &f.y
	}
	if !r.shows(m.At) {
		return
	}
	c.raw(`<g class="` + m.State.class() + `">`)
	a := r.at(m.At)
	b := a
	if m.To > m.At && r.shows(m.To) {
		b = r.at(m.To)
	}
	switch {
	case b != a && m.OnY:
		c.rect(f.left, min(a, b), f.right-f.left, math.Abs(b-a), "b", "", "")
	case b != a:
		c.rect(min(a, b), f.top, math.Abs(b-a), f.bottom-f.top, "b", "", "")
	case m.OnY:
		c.line(f.left, a, f.right, a, "m")
	default:
		c.line(a, f.top, a, f.bottom, "m")
	}
	c.raw("</g>\n")
}

// markLabels writes the marks' names above the data, each on a line of its own
// where they would touch.
func (c *canvas) markLabels(f frame, marks []Mark) {
	var taken [][3]float64 // y, from, to
	for _, m := range marks {
		r := &f.x
		if m.OnY {
			r = &f.y
		}
		if m.Label == "" || !r.shows(m.At) {
			continue
		}
		label := fit(m.Label, 11, (f.right-f.left)*0.8)
		w := textWidth(label, 11)
		x, y := f.right-4-w, r.at(m.At)-4
		if !m.OnY {
			x, y = r.at(m.At)+4, f.top+8
			if x+w > f.right {
				x = max(f.left, r.at(m.At)-4-w)
			}
		}
		if y < f.top-10 || y > f.bottom+4 || x < f.left-4 || x > f.right {
			continue
		}
		y = max(y, f.top+2)
		step := 14.0 // away from the line that it names, which is below it or beside
		if m.OnY && y > f.top+16 {
			step = -14
		}
		for again := true; again; {
			again = false
			for _, t := range taken {
				if math.Abs(t[0]-y) < 13 && x < t[2]+6 && x+w > t[1]-6 {
					y, again = t[0]+step, true
				}
			}
			again = again && y < f.bottom && y > f.top-10
		}
		taken = append(taken, [3]float64{y, x, x + w})
		c.raw(`<g class="` + m.State.class() + `">`)
		c.text(x, y, "ml", label)
		c.raw("</g>\n")
	}
}

// A pather writes the data of a path, leaving pen-up at gaps.
type pather struct {
	b    strings.Builder
	down bool
}

func (p *pather) to(x, y float64) {
	if p.down {
		p.b.WriteByte('L')
	} else {
		p.b.WriteByte('M')
	}
	p.b.WriteString(num(x) + " " + num(y))
	p.down = true
}

func (p *pather) lift() { p.down = false }
