package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

// wellFormed parses an SVG to its end.
func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%.2000s", err, svg)
		}
	}
}

func TestUnitsAreWritten(t *testing.T) {
	f := func(u Unit, v float64, want string) {
		t.Helper()
		if got := u.Format(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	f(Seconds, 0, "0 s")
	f(Seconds, 1e-9, "1 ns")
	f(Seconds, 0.00015, "150 µs")
	f(Seconds, 0.0009999, "1 ms")
	f(Seconds, 0.0025, "2.5 ms")
	f(Seconds, 3.14159, "3.14 s")
	f(Seconds, -0.002, "-2 ms")
	f(PerSec, 0, "0")
	f(PerSec, 1500, "1.5k/s")
	f(PerSec, 999.9, "1k/s")
	f(PerSec, 12.34, "12.3/s")
	f(Number, 1e6, "1M")
	f(Number, 2.5e13, "25T")
	f(Number, 1e20, "1e+08T")
	f(Bytes, 2048, "2 KiB")
	f(Bytes, 1<<30, "1 GiB")
	f(Bytes, 10, "10 B")
	f(Share, 0.25, "25 %")
	f(Share, 0.99996, "99.996 %")
	f(Share, 1, "100 %")
	f(Times, 2.5, "×2.5")
	f(Number, math.NaN(), "–")
	f(Seconds, math.Inf(1), "–")
	if got := Grouped(1234567); got != "1,234,567" {
		t.Errorf("%q", got)
	}
	if got := Grouped(12); got != "12" {
		t.Errorf("%q", got)
	}
}

func TestTicksAreNumbersPeopleCountIn(t *testing.T) {
	f := func(a Axis, lo, hi float64, want int, outward bool, texts string) {
		t.Helper()
		var d span
		d.add(lo)
		d.add(hi)
		r := newRuler(a, d, want, outward)
		var got []string
		for _, k := range r.ticks {
			got = append(got, k.text)
		}
		if strings.Join(got, " | ") != texts {
			t.Errorf("%v to %v: %s", lo, hi, strings.Join(got, " | "))
		}
	}
	f(Axis{}, 0, 100, 5, false, "0 | 20 | 40 | 60 | 80 | 100")
	f(Axis{}, 3, 97, 5, true, "0 | 20 | 40 | 60 | 80 | 100")
	f(Axis{Tight: true}, 91, 97, 4, true, "90 | 92 | 94 | 96 | 98")
	f(Axis{Unit: PerSec}, 0, 12000, 6, false, "0 | 2k/s | 4k/s | 6k/s | 8k/s | 10k/s | 12k/s")
	f(Axis{Unit: Seconds}, 0, 130, 6, false, "0 s | 30 s | 60 s | 90 s | 120 s")
	f(Axis{Unit: Seconds}, 0, 0.004, 4, false, "0 s | 1 ms | 2 ms | 3 ms | 4 ms")
	f(Axis{Unit: Bytes}, 0, 4<<20, 4, false, "0 B | 1 MiB | 2 MiB | 3 MiB | 4 MiB") // not 1,000,000
	f(Axis{}, 1000000, 1000010, 5, false, "1M | 1.000002M | 1.000004M | 1.000006M | 1.000008M | 1.00001M")
	f(Axis{Unit: Seconds, Scale: Log}, 0.00013, 0.09, 9, true, "100 µs | 200 µs | 500 µs | 1 ms | 2 ms | 5 ms | 10 ms | 20 ms | 50 ms | 100 ms")
	f(Axis{Unit: Seconds, Scale: Log}, 0.0001, 1000, 4, true, "100 µs | 10 ms | 1 s | 100 s")
	f(Axis{Scale: Log, Unit: Times}, 0.7, 1.02, 2, true, "×0.5 | ×1 | ×2")
	f(Axis{Scale: Log}, 10, 20, 5, false, "10 | 12 | 14 | 16 | 18 | 20")
	f(Axis{Scale: Percentile}, 0, 99.95, 9, false, "0 % | 50 % | 90 % | 99 % | 99.9 % | 99.99 %")
	f(Axis{Scale: Percentile}, 0, 40, 9, false, "0 % | 50 % | 90 % | 99 %")
	f(Axis{}, 5, 5, 5, true, "0 | 1 | 2 | 3 | 4 | 5")
	f(Axis{}, 0, 0, 2, true, "0 | 0.5 | 1")
}

func TestPlacesFollowTheScale(t *testing.T) {
	at := func(r ruler, v, want float64) {
		t.Helper()
		if got := r.at(v); math.Abs(got-want) > 1e-6 {
			t.Errorf("%v is at %v, want %v", v, got, want)
		}
	}
	lin := ruler{lo: 10, hi: 20, from: 100, to: 200}
	at(lin, 10, 100)
	at(lin, 15, 150)
	at(lin, 20, 200)
	at(lin, math.MaxFloat64, 400) // just outside
	up := ruler{lo: 0, hi: 10, from: 300, to: 100}
	at(up, 0, 300)
	at(up, 10, 100)
	log := ruler{scale: Log, lo: 1, hi: 1000, from: 0, to: 300}
	at(log, 1, 0)
	at(log, 10, 100)
	at(log, 1000, 300)
	pct := ruler{scale: Percentile, lo: 0, hi: 99.9, from: 0, to: 300}
	at(pct, 0, 0)
	at(pct, 90, 100)
	at(pct, 99, 200)
	at(pct, 99.9, 300)
	if pct.shows(100.1) || pct.shows(-1) || log.shows(0) || lin.shows(math.NaN()) || lin.shows(math.Inf(1)) || !pct.shows(100) {
		t.Error("an axis shows what it has no place for")
	}
}

func TestALineBreaksWhereNothingIs(t *testing.T) {
	f := func(want int, ys ...float64) {
		t.Helper()
		var pts []Point
		for i, y := range ys {
			pts = append(pts, Point{X: float64(i), Y: y})
		}
		var b bytes.Buffer
		p := Plot{Series: []Series{{Points: pts}}}
		if err := p.SVG(&b, Options{}); err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`<path d="([^"]*)" class="l"`).FindSubmatch(b.Bytes())
		got := 0
		if m != nil {
			got = bytes.Count(m[1], []byte("M"))
		}
		if got != want {
			t.Errorf("%v: %d strokes, want %d: %s", ys, got, want, m)
		}
	}
	nan := math.NaN()
	f(1, 1, 2, 3)
	f(2, 1, 2, nan, 3, 4)
	f(1, nan, 1, 2, math.Inf(1))
	f(0, nan, nan)
}

// Very many points are drawn as few, and the extremes stay.
func TestManyPointsAreThinned(t *testing.T) {
	pts := make([]Point, 500_000)
	for i := range pts {
		pts[i] = Point{X: float64(i), Y: math.Sin(float64(i) / 1000)}
	}
	pts[250_001].Y = 40
	p := Plot{Series: []Series{{Points: pts, Thin: true}}}
	var b bytes.Buffer
	if err := p.SVG(&b, Options{}); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 60_000 {
		t.Errorf("%d bytes", b.Len())
	}
	dx, dy, _ := p.spans()
	f := frame{left: 0, right: 700, top: 0, bottom: 300, x: newRuler(Axis{}, dx, 5, false), y: newRuler(Axis{}, dy, 5, true)}
	f.x.from, f.x.to = 0, 700
	greatest := 0.0
	for _, q := range thinned(f, pts) {
		greatest = max(greatest, q.Y)
	}
	if greatest != 40 {
		t.Errorf("the greatest that is drawn is %v", greatest)
	}
}

// Hostile texts stay text, in every place that takes one.
func TestTextsAreEscaped(t *testing.T) {
	const evil = "<script>alert('x')</script>\"&\x00\x1b[31m\xff"
	axis := Axis{Label: evil}
	pts := []Point{{X: 1, Y: 1, Label: evil, State: evil}, {X: 2, Y: 3}}
	drawings := []Drawing{
		&Plot{Title: evil, Note: evil, X: axis, Y: axis, Series: []Series{{Name: evil, Points: pts}, {Name: evil, Kind: Points, Points: pts}}, Marks: []Mark{{At: 1, Label: evil, State: evil}}},
		&Bars{Title: evil, Note: evil, X: axis, Series: []string{evil, evil}, Groups: []Group{{Name: evil, Bars: pts}}, Reference: 1, ReferenceLabel: evil},
		&Heat{Title: evil, Note: evil, X: axis, Y: axis, XEdges: []float64{0, 1}, YEdges: []float64{0, 1}, Values: [][]float64{{1}}},
		&Strip{Title: evil, Note: evil, X: axis, Rows: []StripRow{{Name: evil, Spans: []Span{{0, 1, evil, evil}}}}},
	}
	drawings = append(drawings, &Grid{Title: evil, Drawings: drawings})
	table := &Table{Caption: evil, Columns: []Column{{Name: evil}}, Rows: [][]Cell{{{evil, evil}}}}
	pg := &Page{Title: evil, Lead: evil, Footer: evil, Data: evil, Blocks: []Block{
		Heading(evil), Text(evil), Code(evil), Verdict{evil, evil, evil}, Facts{{evil, evil, evil, evil}}, table, Details{evil, []Block{Text(evil)}},
	}}
	for _, d := range drawings {
		var b bytes.Buffer
		if err := d.SVG(&b, Options{}); err != nil {
			t.Fatal(err)
		}
		wellFormed(t, b.Bytes())
		pg.Blocks = append(pg.Blocks, Figure{d, evil})
	}
	var b bytes.Buffer
	if err := pg.HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>alert", "\x00", "\x1b", "\xff"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	b.Reset()
	if err := errors.Join(table.Text(&b, ""), table.Markdown(&b)); err != nil || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%v, %q", err, b.String())
	}
}

// The page's policy allows its own style and nothing else, and its data can be read.
func TestAPageNeedsNothingButItself(t *testing.T) {
	var b bytes.Buffer
	if err := galleryPage().HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	css := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(page, -1)
	if len(css) != 1 {
		t.Fatalf("%d style sheets", len(css))
	}
	sum := sha256.Sum256([]byte(css[0][1]))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	if !strings.Contains(page, `content="`+policy+`"`) {
		t.Error("the policy is not the style's")
	}
	outside := regexp.MustCompile(`(?i)(\s(src|href|style|on[a-z]+)=)|url\(|@import|<link|<iframe`)
	if m := outside.FindString(strings.ReplaceAll(page, css[0][1], "")); m != "" {
		t.Errorf("the page has %q", m)
	}
	m := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	var data struct{ Version int }
	if m == nil || json.Unmarshal([]byte(m[1]), &data) != nil || data.Version != 1 {
		t.Errorf("data: %v", m)
	}
	if err := (&Page{Data: math.NaN()}).HTML(io.Discard); err == nil {
		t.Error("data that is not JSON is not an error")
	}
}

func TestTablesAreAligned(t *testing.T) {
	table := &Table{Columns: []Column{{Name: "name", Left: true}, {Name: "P99"}}}
	table.Add("a", "150 µs")
	table.Add("a|b <c>", "1 s", "beyond the columns")
	table.Add("short")
	var b bytes.Buffer
	if err := table.Text(&b, "  "); err != nil {
		t.Fatal(err)
	}
	if want := "  name        P99\n  a        150 µs\n  a|b <c>     1 s\n  short\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	if err := table.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	if want := "| name | P99 |\n| :-- | --: |\n| a | 150 µs |\n| a\\|b &lt;c&gt; | 1 s |\n| short |  |\n"; b.String() != want {
		t.Errorf("%q", b.String())
	}
}

func TestLiveIsQuietWithoutATerminal(t *testing.T) {
	var b bytes.Buffer
	l := NewLive(&b)
	l.Show("one", "two")
	l.Clear()
	if l.Enabled() || b.Len() > 0 {
		t.Errorf("%q", b.String())
	}
	if l.Paint(Bad, "x") != "x" {
		t.Errorf("%q", b.String())
	}
}

func TestLiveRewritesItsLines(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(0, 0)
	l := &Live{out: &b, on: true, color: true, size: func() int { return 10 }, now: func() time.Time { return now }}
	f := func(want string) {
		t.Helper()
		if b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
		b.Reset()
	}
	l.Show("first", "a line that is too long")
	f("\rfirst\x1b[K\na line th\x1b[K\n\x1b[J")
	now = now.Add(100 * time.Millisecond)
	l.Show("too early")
	f("")
	now = now.Add(150 * time.Millisecond)
	l.Show(l.Paint(Bad, "red red red red"))
	f("\x1b[2A\r\x1b[31mred red r\x1b[0m\x1b[K\n\x1b[J")
	l.Clear()
	f("\x1b[1A\r\x1b[J")
	l.Clear()
	f("")
}

func TestLinesAreCutAtColumns(t *testing.T) {
	f := func(s string, n int, want string) {
		t.Helper()
		if got := cut(s, n); got != want {
			t.Errorf("%q at %d: %q, want %q", s, n, got, want)
		}
	}
	f("abc", 3, "abc")
	f("abcd", 3, "abc")
	f("世界", 3, "世")
	f("µµµµ", 2, "µµ")
	f("e\u0301e\u0301x", 2, "e\u0301e\u0301")
	f("a\x1b[31mb\x1b[0mc", 2, "a\x1b[31mb\x1b[0m")
	f("a\x1b[2Jb", 9, "a[2Jb") // not a colour
	f("a\r\nb", 9, "ab")
	f("abc", 0, "")
}

func TestSparklinesKeepTheLast(t *testing.T) {
	f := func(n int, want string, vs ...float64) {
		t.Helper()
		if got := Spark(vs, n); got != want {
			t.Errorf("%v: %q, want %q", vs, got, want)
		}
	}
	f(8, "▁▂▃▄▅▆▇█", 0, 1, 2, 3, 4, 5, 6, 7)
	f(2, "▄█", 100, 4, 9)
	f(8, "▁ █", 0, math.NaN(), 5)
	f(8, "▁▁", 0, 0)
	f(0, "", 1, 2)
	f(8, "")
}

// Any numbers whatever make a drawing that is well-formed and has no coordinate
// that is not a number.
func FuzzDrawings(f *testing.F) {
	f.Add([]byte{}, uint8(0), uint16(720))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\xf0\x7f\x00\x00\x00\x00\x00\x00\xf8\x7f"), uint8(1), uint16(360))
	for s := range uint8(9) {
		f.Add(bytes.Repeat([]byte{s, 17, 200, 63, 255, 0xef, 0x7f, 0x40}, 40), s*27, uint16(s)*100)
	}
	f.Fuzz(func(t *testing.T, data []byte, how uint8, width uint16) {
		var vs []float64
		for len(data) >= 8 && len(vs) < 400 {
			vs = append(vs, math.Float64frombits(binary.LittleEndian.Uint64(data)))
			data = data[8:]
		}
		next := func() float64 {
			if len(vs) == 0 {
				return 0
			}
			v := vs[0]
			vs = vs[1:]
			return v
		}
		axis := func(n uint8) Axis { return Axis{Unit: Unit(n % 6), Scale: Scale(n / 6 % 3), Tight: n > 20} }
		p := &Plot{X: axis(how), Y: axis(how / 3), Marks: []Mark{{At: next(), To: next(), Label: "m"}, {OnY: true, At: next(), Label: "n"}}}
		heat := &Heat{X: axis(how), Y: axis(how / 5)}
		strip := &Strip{X: axis(how), Rows: []StripRow{{Name: "r"}}}
		bars := &Bars{X: axis(how), Series: []string{"a"}, Reference: next()}
		if how > 128 {
			p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = next(), next(), next(), next()
		}
		for k := range 4 {
			s := Series{Kind: Kind((int(how) + k) % 4), Name: "s"}
			for range len(vs) / 12 {
				s.Points = append(s.Points, Point{next(), next(), next(), next(), next(), next(), "", Good})
			}
			p.Series = append(p.Series, s)
			strip.Rows[0].Spans = append(strip.Rows[0].Spans, Span{next(), next(), Bad, "b"})
			bars.Groups = append(bars.Groups, Group{Name: "g", Bars: s.Points, Claim: next(), ClaimHi: next()})
			heat.XEdges, heat.YEdges = append(heat.XEdges, next()), append(heat.YEdges, next())
			heat.Values = append(heat.Values, []float64{next(), next(), next()})
		}
		for _, d := range []Drawing{p, bars, heat, strip, &Grid{Drawings: []Drawing{p, nil, heat}}} {
			var b bytes.Buffer
			if err := d.SVG(&b, Options{Width: int(width), Theme: Theme(how % 3)}); err != nil {
				t.Fatal(err)
			}
			wellFormed(t, b.Bytes())
			if m := badNumber.Find(b.Bytes()); m != nil {
				t.Fatalf("a coordinate is %q", m)
			}
		}
	})
}

var badNumber = regexp.MustCompile(`"[^"]*(NaN|Inf|e[+-][0-9])[^"]*" (class|y|width|cx)`)
