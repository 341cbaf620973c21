package report

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files in testdata")

// golden compares with testdata/name, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what is drawn (%v); look at the difference, then run: go test ./internal/measure/report -update", path, err)
	}
}

type exhibit struct {
	name string
	d    Drawing
}

// gallery is one of each drawing, of numbers that a queue might give.
func gallery() []exhibit {
	sojourn := func(service, rho float64) float64 { return service / (1 - rho) }
	var p50, p99, stairs, model, usl []Point
	for i := 1; i <= 18; i++ {
		rho := float64(i) / 19
		x := rho * 12000
		y := sojourn(0.0008, rho) * math.Log(100)
		p50 = append(p50, Point{X: x, Y: sojourn(0.0008, rho) * math.Log(2)})
		p99 = append(p99, Point{X: x, Y: y, Lo: y * 0.85, Hi: y * 1.2})
		st := Good
		if rho > 0.62 {
			st = Warn
		}
		if rho > 0.85 {
			st = Bad
		}
		stairs = append(stairs, Point{X: x, Y: min(x, 9800), Lo: min(x, 9800) * 0.97, Hi: min(x, 9800) * 1.02, XLo: x * 0.98, XHi: x * 1.02, State: st})
		n := float64(i * 4)
		model = append(model, Point{X: n, Y: 900 * n / (1 + 0.03*(n-1) + 0.0005*n*(n-1))})
		usl = append(usl, Point{X: n, Y: 900 * n / (1 + 0.03*(n-1) + 0.0005*n*(n-1)) * (1 + 0.04*math.Sin(n*3))})
	}
	var pct []Point
	for _, p := range []float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999} {
		pct = append(pct, Point{X: p, Y: 0.0004 * math.Pow(10, nines(p)*0.6)})
	}
	var hist []Point
	for i := 0; i <= 24; i++ {
		x := 0.0001 * math.Pow(1.3, float64(i))
		hist = append(hist, Point{X: x, Y: math.Round(4000 * math.Exp(-math.Pow(float64(i)-9, 2)/18))})
	}
	heat := &Heat{Title: "Response over time", Note: "Darker is more; a column is a second.", X: Axis{Label: "time", Unit: Seconds}, Y: Axis{Label: "response", Unit: Seconds, Scale: Log}}
	for i := 0; i <= 60; i++ {
		heat.XEdges = append(heat.XEdges, float64(i))
	}
	for j := 0; j <= 30; j++ {
		heat.YEdges = append(heat.YEdges, 0.0001*math.Pow(1.35, float64(j)))
	}
	for i := 0; i < 60; i++ {
		column := make([]float64, 30)
		for j := range column {
			c := 8 + 6*math.Sin(float64(i)/9)
			column[j] = math.Round(500 * math.Exp(-math.Pow(float64(j)-c, 2)/6))
			if i == 40 && j > 20 {
				column[j] = 30
			}
		}
		heat.Values = append(heat.Values, column)
	}
	fan := &Plot{
		Title: "Response against offered rate", Note: "Median of 3 repeats; the band is the 95 % interval. n ≥ 3,000 per point.",
		X: Axis{Label: "offered", Unit: PerSec}, Y: Axis{Label: "response", Unit: Seconds, Scale: Log},
		Series: []Series{{Name: "P50", Points: p50}, {Name: "P99", Points: p99}},
		Marks:  []Mark{{At: 7400, To: 7900, Label: "knee", State: Warn}, {OnY: true, At: 0.02, Label: "SLO 20 ms", State: Bad}},
	}
	return []exhibit{
		{"line", fan},
		{"scatter", &Plot{
			Title: "Completed against offered", X: Axis{Label: "offered", Unit: PerSec}, Y: Axis{Label: "completed", Unit: PerSec},
			Series: []Series{{Name: "levels", Kind: Points, Points: stairs}, {Name: "all of it", Dashed: true, Thin: true, Points: []Point{{X: 0, Y: 0}, {X: 11400, Y: 11400}}}},
			Marks:  []Mark{{OnY: true, At: 9800, Label: "plateau"}, {At: 7600, Label: "λ knee", State: Warn}, {At: 7900, Label: "λ SLO", State: Bad}},
		}},
		{"percentile", &Plot{
			Title: "Response by percentile", X: Axis{Scale: Percentile}, Y: Axis{Label: "at most", Unit: Seconds, Scale: Log},
			Series: []Series{{Name: "response", Points: pct}, {Name: "service", Points: scaleY(pct, 0.6), Dashed: true}},
		}},
		{"histogram", &Plot{
			Title: "Distribution of response", X: Axis{Unit: Seconds, Scale: Log}, Y: Axis{Label: "answers"},
			Series: []Series{{Name: "answers", Kind: Histogram, Points: hist}},
		}},
		{"heat", heat},
		{"strip", &Strip{Title: "State", X: Axis{Unit: Seconds, Label: "time"}, Rows: []StripRow{
			{Name: "rule", Spans: []Span{{0, 70, Good, "steady"}, {70, 100, Warn, "alert"}, {100, 130, Bad, "inflection"}}},
			{Name: "host", Spans: []Span{{0, 40, Good, "quiet"}, {40, 44, Unknown, "steal"}, {44, 130, Good, "quiet"}}},
		}}},
		{"bars", &Bars{
			Title: "What each rung was worth", Note: "Against the rung before; bars are medians of 5 interleaved runs, black ticks what was claimed.",
			X:      Axis{Label: "times the rung before", Unit: Times},
			Series: []string{"measured", "measured again"},
			Groups: []Group{
				{Name: "A goroutine per stream", Bars: []Point{{Y: 1, Lo: 0.97, Hi: 1.04}, {Y: 1.02, Lo: 1, Hi: 1.05}}, Claim: 1},
				{Name: "One write per tick <&>", Bars: []Point{{Y: 2.6, Lo: 2.2, Hi: 2.9}, {Y: 2.4, Lo: 2.2, Hi: 2.6}}, Claim: 3, ClaimHi: 4},
				{Name: "io_uring", Bars: []Point{{Y: 1.1, Lo: 0.9, Hi: 1.3}}, Claim: 1.4},
				{Name: "Not there on this kernel"},
			},
			Reference: 1, ReferenceLabel: "no change",
		}},
		{"model", &Plot{
			Title: "Scalability", X: Axis{Label: "concurrency"}, Y: Axis{Label: "completed", Unit: PerSec},
			Series: []Series{{Name: "measured", Kind: Points, Points: usl}, {Name: "USL", Points: model, Dashed: true}},
		}},
		{"grid", &Grid{Title: "Four windows", Drawings: []Drawing{small("rate", 1), small("in flight", 2), small("errors", 3), &Plot{Title: "nothing"}}}},
		{"empty", &Plot{Title: "Nothing yet", X: Axis{Label: "x"}, Y: Axis{Label: "y"}}},
		{"one", &Plot{Title: "One point", X: Axis{Unit: Seconds}, Y: Axis{Unit: PerSec}, Series: []Series{{Name: "a", Points: []Point{{X: 3, Y: 1000}}}}}},
	}
}

func scaleY(pts []Point, f float64) []Point {
	out := make([]Point, len(pts))
	for i, p := range pts {
		out[i] = Point{X: p.X, Y: p.Y * f}
	}
	return out
}

func small(name string, color int) *Plot {
	var pts []Point
	for i := 0.0; i < 30; i++ {
		pts = append(pts, Point{X: i, Y: 1000 + 300*math.Sin(i/4+float64(color))})
	}
	return &Plot{Title: name, X: Axis{Unit: Seconds}, Y: Axis{Unit: PerSec}, Series: []Series{{Name: name, Points: pts, Color: color, Thin: true}}}
}

func galleryPage() *Page {
	table := &Table{Caption: "Levels", Columns: []Column{{Name: "offered"}, {Name: "P99"}, {Name: "n"}, {Name: "verdict", Left: true}}}
	table.Add("1k/s", "2.1 ms", "3,000")
	table.Rows[0] = append(table.Rows[0], Cell{"pass", Good})
	table.Rows = append(table.Rows, []Cell{{"12k/s", ""}, {"240 ms", ""}, {"36,000", ""}, {"fail", Bad}})
	pg := &Page{
		Title: "Capacity of <http://127.0.0.1:8080/>", Lead: "Measured on a machine with 2 processors.",
		Footer: "weir devel",
		Data:   map[string]any{"version": 1, "text": "</script><script>alert(1)</script>"},
		Blocks: []Block{
			Verdict{Good, "PASS", "p99 < 5 ms at 3 of 3 windows."},
			Facts{{"λ max", "12.4k/s", "11.9k … 12.8k", Good}, {"λ SLO", "9.2k/s", "P99 ≤ 10 ms", Warn}, {"λ knee", "7.6k/s", "7.4k … 7.9k", ""}},
			Text("What follows shows one of each."), Code("weir bench http://127.0.0.1:8080/ --rate 1000"),
			Heading("Levels"), table,
		},
	}
	for _, e := range gallery() {
		pg.Blocks = append(pg.Blocks, Figure{e.d, "Figure " + e.name})
	}
	pg.Blocks = append(pg.Blocks, Details{"More", []Block{Text("Hidden until requested.")}})
	return pg
}

func TestDrawingsAreAsTheyWere(t *testing.T) {
	for _, e := range gallery() {
		var b bytes.Buffer
		if err := e.d.SVG(&b, Options{Theme: Light}); err != nil {
			t.Fatal(err)
		}
		golden(t, e.name+".svg", b.Bytes())
	}
	var b bytes.Buffer
	if err := galleryPage().HTML(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "page.html", b.Bytes())
}
