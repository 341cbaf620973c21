package report

import (
	"fmt"
	"io"
	"math"
)

// heatLevels is how many shades a heat map has: more could not be distinguished, and
// equal neighbours become one rectangle.
const heatLevels = 12

// SVG implements Drawing.
func (h *Heat) SVG(w io.Writer, o Options) error {
	c := newCanvas(o)
	h.draw(c)
	return c.write(w, o.Theme, h.Title)
}

func (h *Heat) draw(c *canvas) {
	top := c.head(h.Title, h.Note, nil)
	c.height(h.Height, top, 0.34, 0.6)
	most := 0.0
	var dx, dy span
	for i, column := range h.Values {
		for j, v := range column {
			if i+1 >= len(h.XEdges) || j+1 >= len(h.YEdges) || !(v > 0) || !finite(v) {
				continue
			}
			most = max(most, clampValue(v))
			dy.addOn(h.Y, h.YEdges[j])
			dy.addOn(h.Y, h.YEdges[j+1])
		}
	}
	for _, x := range h.XEdges {
		dx.addOn(h.X, x)
	}
	ax, ay := h.X, h.Y
	ay.Tight = true
	f := c.axes(top, c.h-8, ax, ay, dx, dy, false)
	if most == 0 || !dx.any {
		f.noData(c)
		return
	}
	c.clip(f.left, f.top, f.right-f.left, f.bottom-f.top)
	c.raw(`<g class="s1">` + "\n")
	for i := 0; i < len(h.Values) && i+1 < len(h.XEdges); i++ {
		c.heatColumn(f, h, i, most)
	}
	c.raw("</g>\n")
	c.endClip()
}

// heatColumn joins neighbours of the same shade.
func (c *canvas) heatColumn(f frame, h *Heat, i int, most float64) {
	x0, x1 := h.XEdges[i], h.XEdges[i+1]
	if !f.x.shows(x0) || !f.x.shows(x1) || !(x1 > x0) {
		return
	}
	column := h.Values[i]
	n := min(len(column), len(h.YEdges)-1)
	level := func(j int) int {
		if v := column[j]; v > 0 && finite(v) {
			return max(1, int(math.Ceil(math.Sqrt(clampValue(v)/most)*heatLevels)))
		}
		return 0
	}
	for j := 0; j < n; {
		k := j + 1
		for k < n && level(k) == level(j) {
			k++
		}
		if l := level(j); l > 0 {
			bottom := f.bottom
			if f.y.shows(h.YEdges[j]) {
				bottom = f.y.at(h.YEdges[j])
			}
			if f.y.shows(h.YEdges[k]) {
				y := f.y.at(h.YEdges[k])
				title := fmt.Sprintf("%s, %s … %s: %s", h.X.Unit.Format(x0), h.Y.Unit.Format(h.YEdges[j]), h.Y.Unit.Format(h.YEdges[k]), Number.Format(column[j]))
				if k > j+1 || len(h.Values)*n > 1500 {
					title = ""
				}
				// A tenth of a pixel of overlap hides the seams between cells.
				c.rect(f.x.at(x0), y, f.x.at(x1)-f.x.at(x0)+0.1, bottom-y+0.1, "", fmt.Sprintf(` fill="currentColor" fill-opacity="%.2f"`, float64(l)/heatLevels), title)
			}
		}
		j = k
	}
}
