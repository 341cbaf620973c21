package demo

import (
	"encoding/json"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func load(t *testing.T) *World {
	t.Helper()
	w, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestEveryRouteJoinsTwoKnownAirportsFarEnoughApart(t *testing.T) {
	w := load(t)
	if len(w.Routes) < 3000 || len(w.Airports) < 200 {
		t.Fatalf("%d routes between %d airports: the data is cut off", len(w.Routes), len(w.Airports))
	}
	used := map[string]bool{}
	seen := map[[2]string]bool{}
	for _, r := range w.Routes {
		used[r.From.IATA], used[r.To.IATA] = true, true
		pair := [2]string{r.From.IATA, r.To.IATA}
		if seen[pair] {
			t.Errorf("%v is listed twice", pair)
		}
		seen[pair] = true
		if d := distance(r.From, r.To); d < 349 || d > 4600 {
			t.Errorf("%v: %.0f km", pair, d)
		}
		if r.Flights < 365 {
			t.Errorf("%v: %d flights", pair, r.Flights)
		}
	}
	for iata, a := range w.Airports {
		if !used[iata] {
			t.Errorf("no route uses %s", iata)
		}
		if a.Lat < 24 || a.Lat > 50 || a.Lon < -125 || a.Lon > -66 {
			t.Errorf("%s at %v, %v is off the map", iata, a.Lat, a.Lon)
		}
	}
}

func TestDistancesAgreeWithTheWorld(t *testing.T) {
	w := load(t)
	f := func(from, to string, kilometres float64) {
		t.Helper()
		d := distance(w.Airports[from], w.Airports[to])
		if d < kilometres*0.99 || d > kilometres*1.01 {
			t.Errorf("%s-%s: %.0f km, want about %.0f", from, to, d, kilometres)
		}
	}
	f("JFK", "LAX", 3983)
	f("ORD", "SEA", 2769)
	f("BOS", "DCA", 642)
}

func TestClosesAreThoseOfTheirDays(t *testing.T) {
	w := load(t)
	f := func(symbol, date string, want float64) {
		t.Helper()
		for _, s := range w.Market {
			for i, d := range s.Dates {
				if s.Symbol == symbol && d == date {
					if s.Closes[i] != want {
						t.Errorf("%s on %s closed at %v, want %v", symbol, date, s.Closes[i], want)
					}
					return
				}
			}
		}
		t.Errorf("%s has no close on %s", symbol, date)
	}
	f("sp500", "2000-01-03", 1455.22)
	f("sp500", "2008-09-15", 1192.70)
	f("sp500", "2020-04-17", 2874.56)
	f("AAPL", "2010-03-01", 223.02)
	f("MSFT", "2000-01-01", 39.81)
}

func TestMarketIsInOrderWithTheIndexFirst(t *testing.T) {
	w := load(t)
	if len(w.Market) != 6 || w.Market[0].Symbol != indexSymbol || len(w.Market[0].Closes) != 5105 {
		t.Fatalf("%d series, the first %s", len(w.Market), w.Market[0].Symbol)
	}
	for _, s := range w.Market {
		for i, c := range s.Closes {
			if c <= 0 || (i > 0 && s.Dates[i] <= s.Dates[i-1]) {
				t.Errorf("%s: %s closed at %v after %s", s.Symbol, s.Dates[i], c, s.Dates[max(0, i-1)])
			}
		}
	}
}

func TestEveryChannelBelongsToANamespaceOfTheDemo(t *testing.T) {
	known := map[string]bool{}
	for _, ns := range Namespaces() {
		if err := ns.Validate(); err != nil {
			t.Error(err)
		}
		if !ns.Anonymous || ns.Durability != hub.Stored {
			t.Errorf("%s: anonymous %v, durability %s", ns.Name, ns.Anonymous, ns.Durability)
		}
		known[ns.Name] = true
	}
	for _, c := range Channels() {
		if err := hub.CheckChannel(c); err != nil || !known[hub.NamespaceOf(c)] {
			t.Errorf("%s: %v", c, err)
		}
	}
}

// The page decodes map.json the same way.
func TestMapRingsAreClosedAndOnTheMap(t *testing.T) {
	var m struct {
		Scale int
		Arcs  [][]int
		Rings [][]int
	}
	if err := json.Unmarshal(mapJSON, &m); err != nil {
		t.Fatal(err)
	}
	type xy [2]int
	ends := make([][2]xy, len(m.Arcs))
	for i, arc := range m.Arcs {
		var p xy
		for j := 0; j+1 < len(arc); j += 2 {
			p[0], p[1] = p[0]+arc[j], p[1]+arc[j+1]
			if lon, lat := float64(p[0])/float64(m.Scale), float64(p[1])/float64(m.Scale); lon < -125 || lon > -66 || lat < 24 || lat > 50 {
				t.Fatalf("arc %d: %v, %v is off the map", i, lon, lat)
			}
			if j == 0 {
				ends[i][0] = p
			}
		}
		ends[i][1] = p
	}
	if len(m.Rings) < 49 {
		t.Errorf("%d rings cannot be 48 states and the capital", len(m.Rings))
	}
	for n, ring := range m.Rings {
		var first, at xy
		for i, a := range ring {
			var e [2]xy
			if a >= 0 {
				e = ends[a]
			} else {
				e = [2]xy{ends[^a][1], ends[^a][0]}
			}
			if i == 0 {
				first = e[0]
			} else if e[0] != at {
				t.Errorf("ring %d: arc %d starts at %v, the one before ended at %v", n, a, e[0], at)
			}
			at = e[1]
		}
		if at != first {
			t.Errorf("ring %d is open", n)
		}
	}
}
