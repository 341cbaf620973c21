package report

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
)

// SVG implements Drawing.
func (g *Grid) SVG(w io.Writer, o Options) error {
	c := newCanvas(o)
	if err := g.draw(c); err != nil {
		return err
	}
	return c.write(w, o.Theme, g.Title)
}

// heightOf finds the height that a drawing gave itself.
var heightOf = regexp.MustCompile(`^<svg [^>]*viewBox="0 0 [0-9.]+ ([0-9.]+)"`)

// draw sets each drawing as a viewport of its own, a row as high as its highest.
func (g *Grid) draw(c *canvas) error {
	y := c.head(g.Title, "", nil)
	columns := g.Columns
	if columns <= 0 {
		columns = 2
	}
	if c.narrow {
		columns = 1
	}
	columns = min(columns, max(len(g.Drawings), 1), 6)
	const gap = 10.0
	width := (c.w - gap*float64(columns-1)) / float64(columns)
	for i := 0; i < len(g.Drawings); i += columns {
		row, err := render(g.Drawings[i:min(i+columns, len(g.Drawings))], width)
		if err != nil {
			return err
		}
		high := 0.0
		for j, r := range row {
			c.raw(fmt.Sprintf(`<svg x="%s" y="%s"%s`, num(float64(j)*(width+gap)), num(y), r.body))
			high = max(high, r.height)
		}
		y += high + gap
	}
	if len(g.Drawings) == 0 {
		c.text(c.w/2, y+20, "n", "no data")
		y += 40
	}
	c.h = y
	return nil
}

type rendered struct {
	body   string // from behind "<svg"
	height float64
}

func render(drawings []Drawing, width float64) ([]rendered, error) {
	var out []rendered
	for _, d := range drawings {
		if d == nil {
			continue
		}
		var b bytes.Buffer
		if err := d.SVG(&b, Options{Theme: inline, Width: int(width)}); err != nil {
			return nil, err
		}
		m := heightOf.FindSubmatch(b.Bytes())
		if m == nil {
			continue // a Drawing of someone else's without a size
		}
		h, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			continue
		}
		out = append(out, rendered{body: b.String()[len("<svg"):], height: h})
	}
	return out, nil
}
