//go:build ignore

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// tolerance, in degrees of latitude, is how far a simplified border may stray;
// rings smaller than minArea square degrees (islets) are left out.
const (
	tolerance = 0.012
	minArea   = 0.012
)

// A point is in units of the file's quantisation until it leaves decode.
type point [2]float64

type topology struct {
	Transform struct{ Scale, Translate [2]float64 }
	Arcs      [][][2]float64
	Objects   struct {
		States struct {
			Geometries []struct {
				Type string
				ID   json.Number
				Arcs json.RawMessage
			}
		}
	}
}

// outline is map.json. Arcs are delta-coded in thousandths of a degree:
// lon, lat, then differences. A ring names arcs; ^i is arc i backwards.
type outline struct {
	Scale int     `json:"scale"`
	Arcs  [][]int `json:"arcs"`
	Rings [][]int `json:"rings"`
}

// reduceMap writes map.json: the borders of the contiguous states. The source
// cuts its arcs at every county, so rings are put together first and cut again
// only where three states (or two and the sea) meet; each piece is simplified
// once, and neighbours continue sharing it.
func reduceMap(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "us-10m.json"))
	if err != nil {
		return err
	}
	var t topology
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("us-10m.json: %w", err)
	}
	rings, err := t.rings()
	if err != nil {
		return err
	}
	out := outline{Scale: 1000}
	known := map[string]int{}
	for _, pieces := range cut(rings) {
		var ring []int
		for _, p := range pieces {
			ring = append(ring, out.add(known, p))
		}
		out.Rings = append(out.Rings, ring)
	}
	js, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return os.WriteFile("map.json", append(js, '\n'), 0o644)
}

// rings returns every ring of the contiguous states as closed points.
func (t *topology) rings() ([][]point, error) {
	var rings [][]point
	for _, g := range t.Objects.States.Geometries {
		if id, err := g.ID.Int64(); err != nil || id > 56 || id == 2 || id == 15 {
			continue // territories, Alaska, Hawaii: outside the map
		}
		var polygons [][][]int
		if g.Type == "Polygon" {
			polygons = make([][][]int, 1)
			if err := json.Unmarshal(g.Arcs, &polygons[0]); err != nil {
				return nil, err
			}
		} else if err := json.Unmarshal(g.Arcs, &polygons); err != nil {
			return nil, err
		}
		for _, polygon := range polygons {
			for _, arcs := range polygon {
				if ring := t.decode(arcs); area(ring) >= minArea {
					rings = append(rings, ring)
				}
			}
		}
	}
	return rings, nil
}

func (t *topology) decode(arcs []int) []point {
	var ring []point
	for _, a := range arcs {
		backwards := a < 0
		if backwards {
			a = ^a
		}
		var line []point
		var x, y float64
		for _, d := range t.Arcs[a] {
			x, y = x+d[0], y+d[1]
			line = append(line, point{
				x*t.Transform.Scale[0] + t.Transform.Translate[0],
				y*t.Transform.Scale[1] + t.Transform.Translate[1],
			})
		}
		if backwards {
			slices.Reverse(line)
		}
		if len(ring) > 0 {
			line = line[1:]
		}
		ring = append(ring, line...)
	}
	return ring
}

func area(ring []point) float64 {
	sum := 0.0
	for i := 1; i < len(ring); i++ {
		sum += ring[i-1][0]*ring[i][1] - ring[i][0]*ring[i-1][1]
	}
	return math.Abs(sum) / 2
}

// cut splits the rings at the points where the set of neighbours changes: a
// point with more than two different neighbours over all rings.
func cut(rings [][]point) [][][]point {
	near := map[point]map[point]bool{}
	join := func(a, b point) {
		if near[a] == nil {
			near[a] = map[point]bool{}
		}
		near[a][b] = true
	}
	for _, r := range rings {
		for i := 1; i < len(r); i++ {
			join(r[i-1], r[i])
			join(r[i], r[i-1])
		}
	}
	out := make([][][]point, len(rings))
	for n, r := range rings {
		r = r[:len(r)-1]
		start := slices.IndexFunc(r, func(p point) bool { return len(near[p]) > 2 })
		if start < 0 {
			out[n] = [][]point{append(slices.Clone(r), r[0])}
			continue
		}
		r = slices.Concat(r[start:], r[:start], r[start:start+1])
		from := 0
		for i := 1; i < len(r); i++ {
			if len(near[r[i]]) > 2 {
				out[n] = append(out[n], slices.Clone(r[from:i+1]))
				from = i
			}
		}
	}
	return out
}

// add returns the number of piece p in o, or its complement when o has it in
// the other direction.
func (o *outline) add(known map[string]int, p []point) int {
	if i, ok := known[fmt.Sprint(p)]; ok {
		return i
	}
	back := slices.Clone(p)
	slices.Reverse(back)
	if i, ok := known[fmt.Sprint(back)]; ok {
		return ^i
	}
	known[fmt.Sprint(p)] = len(o.Arcs)
	var coded []int
	var px, py int
	for i, q := range simplify(p) {
		x, y := int(math.Round(q[0]*float64(o.Scale))), int(math.Round(q[1]*float64(o.Scale)))
		if i > 0 && x == px && y == py {
			continue
		}
		coded = append(coded, x-px, y-py)
		px, py = x, y
	}
	o.Arcs = append(o.Arcs, coded)
	return len(o.Arcs) - 1
}

// simplify drops points by the Douglas-Peucker rule. A closed line is first
// divided at its point farthest from the start.
func simplify(p []point) []point {
	if p[0] == p[len(p)-1] && len(p) > 3 {
		far := 0
		for i := range p {
			if distance(p[0], p[0], p[i]) > distance(p[0], p[0], p[far]) {
				far = i
			}
		}
		return append(simplify(p[:far+1]), simplify(p[far:])[1:]...)
	}
	far, worst := 0, tolerance
	for i := 1; i < len(p)-1; i++ {
		if d := distance(p[0], p[len(p)-1], p[i]); d > worst {
			far, worst = i, d
		}
	}
	if far == 0 {
		return []point{p[0], p[len(p)-1]}
	}
	return append(simplify(p[:far+1]), simplify(p[far:])[1:]...)
}

// distance of q from the line a-b, with longitudes shrunk as at 38° north.
func distance(a, b, q point) float64 {
	const shrink = 0.788
	dx, dy := (b[0]-a[0])*shrink, b[1]-a[1]
	qx, qy := (q[0]-a[0])*shrink, q[1]-a[1]
	if length := dx*dx + dy*dy; length > 0 {
		t := max(0, min(1, (qx*dx+qy*dy)/length))
		qx, qy = qx-t*dx, qy-t*dy
	}
	return math.Hypot(qx, qy)
}
