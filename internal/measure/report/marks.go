package report

import (
	"math"
)

// maxDots is how many points of a line still get dots to rest a pointer on.
const maxDots = 60

// series draws one series inside its group of colour.
func (c *canvas) series(f frame, s Series) {
	switch s.Kind {
	case Points:
		c.points(f, s.Points)
	case Histogram:
		c.histogram(f, s.Points)
	case Steps:
		c.steps(f, s)
	default:
		c.band(f, s.Points)
		c.polyline(f, s)
	}
}

func lineClass(s Series) string {
	class := "l"
	if s.Dashed {
		class += " x"
	}
	if s.Thin {
		class += " h"
	}
	return class
}

// runs calls each for every stretch of points that both axes can show.
func runs(f frame, pts []Point, each func([]Point)) {
	from := -1
	for i, p := range pts {
		ok := f.x.shows(p.X) && f.y.shows(p.Y)
		switch {
		case ok && from < 0:
			from = i
		case !ok && from >= 0:
			each(pts[from:i])
			from = -1
		}
	}
	if from >= 0 {
		each(pts[from:])
	}
}

// thinned keeps what can be seen of very many points: the least and the greatest in
// each half pixel.
func thinned(f frame, pts []Point) []Point {
	limit := int(f.right-f.left) * 4
	if len(pts) <= limit || limit <= 0 {
		return pts
	}
	out := make([]Point, 0, limit)
	for i := 0; i < len(pts); {
		column := math.Floor(f.x.at(pts[i].X) * 2)
		lo, hi := i, i
		j := i + 1
		for ; j < len(pts) && math.Floor(f.x.at(pts[j].X)*2) == column; j++ {
			if pts[j].Y < pts[lo].Y {
				lo = j
			}
			if pts[j].Y > pts[hi].Y {
				hi = j
			}
		}
		out = append(out, pts[min(lo, hi)])
		if lo != hi {
			out = append(out, pts[max(lo, hi)])
		}
		i = j
	}
	return out
}

func (c *canvas) polyline(f frame, s Series) {
	var d pather
	alone := 0
	runs(f, s.Points, func(run []Point) {
		d.lift()
		for _, p := range thinned(f, run) {
			d.to(f.x.at(p.X), f.y.at(p.Y))
		}
		if len(run) == 1 {
			alone++
			c.dot(f.x.at(run[0].X), f.y.at(run[0].Y), 3, pointTitle(f, s.Name, run[0]))
		}
	})
	c.path(d.b.String(), lineClass(s))
	if s.Thin || s.Dashed || len(s.Points) > maxDots {
		return
	}
	runs(f, s.Points, func(run []Point) {
		if len(run) == 1 {
			return
		}
		for _, p := range run {
			c.dot(f.x.at(p.X), f.y.at(p.Y), 2.6, pointTitle(f, s.Name, p))
		}
	})
}

func pointTitle(f frame, name string, p Point) string {
	if p.Label != "" {
		return p.Label
	}
	t := f.y.unit.Format(p.Y)
	if p.hasInterval() {
		t += " (" + f.y.unit.Format(p.Lo) + " … " + f.y.unit.Format(p.Hi) + ")"
	}
	t += " at " + f.x.unit.Format(p.X)
	if f.x.scale == Percentile {
		t = f.y.unit.Format(p.Y) + " at P" + significant(p.X, 6)
	}
	if name != "" {
		t = name + ": " + t
	}
	return t
}

// band fills between Lo and Hi where points have them.
func (c *canvas) band(f frame, pts []Point) {
	runs(f, pts, func(run []Point) {
		run = thinned(f, run)
		for i := 0; i < len(run); {
			if !run[i].hasInterval() {
				i++
				continue
			}
			j := i
			for j < len(run) && run[j].hasInterval() {
				j++
			}
			if j-i > 1 {
				var d pather
				for _, p := range run[i:j] {
					d.to(f.x.at(p.X), f.y.at(p.Hi))
				}
				for k := j - 1; k >= i; k-- {
					d.to(f.x.at(run[k].X), f.y.at(run[k].Lo))
				}
				c.path(d.b.String()+"Z", "b")
			} else {
				c.whiskers(f, run[i])
			}
			i = j
		}
	})
}

func (c *canvas) steps(f frame, s Series) {
	var d pather
	runs(f, s.Points, func(run []Point) {
		d.lift()
		run = thinned(f, run)
		for i, p := range run {
			if i > 0 {
				d.to(f.x.at(p.X), f.y.at(run[i-1].Y))
			}
			d.to(f.x.at(p.X), f.y.at(p.Y))
		}
	})
	c.path(d.b.String(), lineClass(s))
}

func (c *canvas) histogram(f frame, pts []Point) {
	for i := 0; i+1 < len(pts); i++ {
		p, next := pts[i], pts[i+1]
		if !f.x.shows(p.X) || !f.x.shows(next.X) || !f.y.shows(p.Y) {
			continue
		}
		x0, x1, y := f.x.at(p.X), f.x.at(next.X), f.y.at(p.Y)
		title := p.Label
		if title == "" {
			title = f.x.unit.Format(p.X) + " … " + f.x.unit.Format(next.X) + ": " + f.y.unit.Format(p.Y)
		}
		base := f.bottom
		if f.y.scale == Linear {
			base = min(f.y.at(0), f.bottom)
		}
		gap := 0.0
		if x1-x0 > 4 {
			gap = 1
		}
		c.rect(x0, min(y, base), x1-x0-gap, math.Abs(base-y), "f", "", title)
	}
}

func (c *canvas) points(f frame, pts []Point) {
	for _, p := range pts {
		if !f.x.shows(p.X) || !f.y.shows(p.Y) {
			continue
		}
		if p.State != "" {
			c.raw(`<g class="` + string(p.State.known()) + `">`)
		}
		c.whiskers(f, p)
		c.dot(f.x.at(p.X), f.y.at(p.Y), 3.8, pointTitle(f, "", p))
		if p.State != "" {
			c.raw("</g>\n")
		}
	}
}

// whiskers are a point's bars: the interval of Y and the bracket of X.
func (c *canvas) whiskers(f frame, p Point) {
	const cap = 3.5
	if p.hasInterval() && f.y.shows(p.Lo) && f.y.shows(p.Hi) {
		x, lo, hi := f.x.at(p.X), f.y.at(p.Lo), f.y.at(p.Hi)
		c.path("M"+num(x-cap)+" "+num(lo)+"h"+num(2*cap)+"M"+num(x)+" "+num(lo)+"V"+num(hi)+"M"+num(x-cap)+" "+num(hi)+"h"+num(2*cap), "i")
	}
	if p.hasBracket() && f.x.shows(p.XLo) && f.x.shows(p.XHi) {
		y, lo, hi := f.y.at(p.Y), f.x.at(p.XLo), f.x.at(p.XHi)
		c.path("M"+num(lo)+" "+num(y-cap-1)+"v"+num(2*cap+2)+"M"+num(lo)+" "+num(y)+"H"+num(hi)+"M"+num(hi)+" "+num(y-cap-1)+"v"+num(2*cap+2), "i")
	}
}
