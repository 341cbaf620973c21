package demo

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// play returns n events at 200 a second.
func play(t *testing.T, cfg SimulationConfig, n int) []Event {
	t.Helper()
	s, err := NewSimulation(cfg, noon)
	if err != nil {
		t.Fatal(err)
	}
	events := make([]Event, n)
	for i := range events {
		events[i] = s.Next(noon.Add(time.Duration(i) * 5 * time.Millisecond))
	}
	return events
}

func payloads(events []Event) []byte {
	var b bytes.Buffer
	for _, e := range events {
		b.WriteString(e.Channel)
		b.Write(e.Payload(noon))
	}
	return b.Bytes()
}

func TestSameSeedAndClockGiveTheSameEvents(t *testing.T) {
	a := payloads(play(t, SimulationConfig{Seed: 7}, 5000))
	if !bytes.Equal(a, payloads(play(t, SimulationConfig{Seed: 7}, 5000))) {
		t.Error("two plays with one seed differ")
	}
	if bytes.Equal(a, payloads(play(t, SimulationConfig{Seed: 8}, 5000))) {
		t.Error("another seed gives the same play")
	}
}

func TestSequenceNumbersAreDensePerChannel(t *testing.T) {
	last := map[string]uint64{}
	for _, e := range play(t, SimulationConfig{Run: "r"}, 20_000) {
		if e.Seq != last[e.Channel]+1 || e.Run != "r" {
			t.Fatalf("%s: %s/%d after %d", e.Channel, e.Run, e.Seq, last[e.Channel])
		}
		last[e.Channel] = e.Seq
	}
	for _, c := range Channels() {
		if last[c] == 0 {
			t.Errorf("%s stays silent", c)
		}
		delete(last, c)
	}
	if len(last) > 0 {
		t.Errorf("not listed by Channels: %v", last)
	}
}

// A point is on the great circle if it makes the way no longer.
func TestShipmentsStayOnTheirRouteAndAdvance(t *testing.T) {
	w := load(t)
	routes := map[[2]string]bool{}
	for _, r := range w.Routes {
		routes[[2]string{r.From.IATA, r.To.IATA}] = true
	}
	progress := map[string]float64{}
	states := map[string]int{}
	for _, e := range play(t, SimulationConfig{Seed: 3, Fleet: 40}, 30_000) {
		m := e.Move
		if m == nil {
			continue
		}
		from, to := w.Airports[m.From], w.Airports[m.To]
		if !routes[[2]string{m.From, m.To}] || e.Channel != region(from) || e.Key != m.ID {
			t.Fatalf("%+v on %s with key %s", *m, e.Channel, e.Key)
		}
		at := Airport{Lat: m.Lat, Lon: m.Lon}
		whole := distance(from, to)
		if detour := distance(from, at) + distance(at, to) - whole; math.Abs(detour) > 0.05 {
			t.Fatalf("%+v is off its route: %.3f km longer", *m, detour)
		}
		if done := distance(from, at); math.Abs(done-m.Progress*whole) > 1 {
			t.Fatalf("%+v: %.0f of %.0f km done", *m, done, whole)
		}
		if before, known := progress[m.ID]; known && m.Progress < before {
			t.Fatalf("%s went back from %v to %v", m.ID, before, m.Progress)
		}
		if (m.Status == "arrived") != (m.Progress == 1) && m.Progress < 0.9999 {
			t.Fatalf("%+v", *m)
		}
		progress[m.ID] = m.Progress
		states[m.Status]++
	}
	if states["departed"] < 50 || states["arrived"] < states["departed"] || states["moving"] < 10_000 {
		t.Errorf("%v", states)
	}
}

func TestShipmentThatArrivedIsFollowedByOneFromThere(t *testing.T) {
	var at string
	var fleet = 1
	for _, e := range play(t, SimulationConfig{Seed: 5, Fleet: fleet}, 60_000) {
		switch m := e.Move; {
		case m == nil:
		case m.Status == "arrived":
			at = m.To
		case at != "":
			if m.From != at || m.Status != "departed" {
				t.Fatalf("after an arrival at %s: %+v", at, *m)
			}
			at = ""
		}
	}
}

func TestMarketReplaysEveryCloseInOrder(t *testing.T) {
	w := load(t)
	got := map[string][]float64{}
	laps := map[string]int{}
	events := play(t, SimulationConfig{}, 5200*2*marketEvery)
	for _, e := range events {
		if e.Tick != nil {
			got[e.Tick.Symbol] = append(got[e.Tick.Symbol], e.Tick.Price)
			laps[e.Tick.Symbol] = e.Tick.Lap
			if n := len(got[e.Tick.Symbol]); n > 1 && e.Tick.Date != w.Market[0].Dates[0] && e.Tick.Change != 0 {
				if want := round(e.Tick.Price-got[e.Tick.Symbol][n-2], 100); e.Tick.Change != want {
					t.Fatalf("%+v: want change %v", *e.Tick, want)
				}
			}
		}
	}
	for _, s := range w.Market {
		n := len(s.Closes)
		if len(got[s.Symbol]) <= n {
			t.Fatalf("%s: %d ticks do not reach the end of %d", s.Symbol, len(got[s.Symbol]), n)
		}
		if !slices.Equal(got[s.Symbol][:n], s.Closes) || got[s.Symbol][n] != s.Closes[0] || laps[s.Symbol] < 1 {
			t.Errorf("%s is not replayed as it is", s.Symbol)
		}
	}
}

func TestPayloadCarriesRunSequenceAndTime(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_123_456)
	for _, e := range play(t, SimulationConfig{Run: "x1"}, 20) {
		var p struct {
			Run    string
			Seq    uint64
			T      float64
			ID     *string
			Symbol *string
		}
		if err := json.Unmarshal(e.Payload(at), &p); err != nil {
			t.Fatal(err)
		}
		if p.Run != "x1" || p.Seq != e.Seq || p.T != 1_700_000_000_123.456 {
			t.Errorf("%+v", p)
		}
		if (p.ID != nil) == (p.Symbol != nil) {
			t.Errorf("%s is both or neither of a move and a tick", e.Payload(at))
		}
	}
}
