package demo

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// SimulationConfig reports what a Simulation plays. Its zero value works.
type SimulationConfig struct {
	// Run marks the messages of one run apart from those of another; a run's
	// sequence numbers start at 1. Empty means "0".
	Run string
	// Seed of all chance; the same seed and clock give the same events.
	Seed uint64
	// Fleet is how many shipments are under way at a time; 0 means 150.
	Fleet int
}

const (
	defaultFleet = 150
	// One event in marketEvery is a tick, of these every second one the index's.
	marketEvery = 10
	// Kilometres per second: a coast is about a minute from the other.
	slowest, fastest = 45, 75
	firstShipment    = 10_000
)

// A Simulation makes the demo's events, one per call. It has no clock and no
// goroutine of its own. One goroutine at a time may use it.
type Simulation struct {
	// Fixed by NewSimulation.
	run     string
	world   *World
	weights []int            // of world.Routes, summed up
	leaving map[string][]int // airport → its routes, as indices
	rand    *rand.Rand

	// Changed by Next.
	turn     int
	fleet    []shipment
	nextShip int
	shipped  int
	market   []replay
	nextTick int
	seq      map[string]uint64
}

// A shipment is on its way along one route.
type shipment struct {
	id       string
	route    Route
	started  time.Time
	duration time.Duration
	fresh    bool // its departure has not been published yet
}

// A replay is a place in a series.
type replay struct {
	series *Series
	at     int
	lap    int
}

// Move is what a message on a shipments channel says.
type Move struct {
	ID       string  `json:"id"`
	From     string  `json:"from"`
	To       string  `json:"to"`
	Lat      float64 `json:"lat"`
	Lon      float64 `json:"lon"`
	Progress float64 `json:"progress"` // 0 to 1, along the great circle
	Status   string  `json:"status"`   // "departed", "moving" or "arrived"
	Seconds  float64 `json:"seconds"`  // the whole way takes this long
}

// Tick is what a message on a market channel says: the close of one day (of one
// month for the shares) and how it differs from the one before.
type Tick struct {
	Symbol  string  `json:"symbol"`
	Date    string  `json:"date"`
	Price   float64 `json:"price"`
	Change  float64 `json:"change"`
	Percent float64 `json:"percent"`
	Lap     int     `json:"lap"` // rises when the series starts over
}

// An Event is a message to publish: a Move or a Tick, the other is nil.
type Event struct {
	Channel string
	// Key is the conflation key: only the newest message per key matters to
	// someone who cannot keep up.
	Key string
	Run string
	// Seq numbers the channel's messages of this run from 1, without holes.
	Seq  uint64
	Move *Move
	Tick *Tick
}

// Payload returns the event as JSON, stamped with the time of its publication.
func (e Event) Payload(at time.Time) []byte {
	b, err := json.Marshal(struct {
		Run string  `json:"run"`
		Seq uint64  `json:"seq"`
		T   float64 `json:"t"` // milliseconds since 1970, to the microsecond
		*Move
		*Tick
	}{e.Run, e.Seq, float64(at.UnixMicro()) / 1000, e.Move, e.Tick})
	if err != nil {
		panic("demo: an event has a number that JSON cannot hold: " + err.Error())
	}
	return b
}

// NewSimulation returns a simulation whose fleet is already spread over the map
// at now.
func NewSimulation(cfg SimulationConfig, now time.Time) (*Simulation, error) {
	w, err := Load()
	if err != nil {
		return nil, fmt.Errorf("load the demo's data: %w", err)
	}
	if cfg.Run == "" {
		cfg.Run = "0"
	}
	if cfg.Fleet <= 0 {
		cfg.Fleet = defaultFleet
	}
	s := &Simulation{
		run:     cfg.Run,
		world:   w,
		leaving: map[string][]int{},
		rand:    rand.New(rand.NewPCG(cfg.Seed, 0x77656972)),
		seq:     map[string]uint64{},
	}
	sum := 0
	for i, r := range w.Routes {
		sum += r.Flights
		s.weights = append(s.weights, sum)
		s.leaving[r.From.IATA] = append(s.leaving[r.From.IATA], i)
	}
	for i := range w.Market {
		s.market = append(s.market, replay{series: &w.Market[i], at: -1})
	}
	for range cfg.Fleet {
		ship := s.ship(s.anyRoute(), now)
		ship.started = now.Add(-time.Duration(s.rand.Float64() * float64(ship.duration)))
		ship.fresh = false
		s.fleet = append(s.fleet, ship)
	}
	return s, nil
}

// Next returns the next event as of now, which must not go back.
func (s *Simulation) Next(now time.Time) Event {
	s.turn++
	var e Event
	if s.turn%marketEvery == 0 {
		e = s.tick()
	} else {
		e = s.move(now)
	}
	s.seq[e.Channel]++
	e.Run, e.Seq = s.run, s.seq[e.Channel]
	return e
}

// move returns where the next shipment of the fleet is. One that has arrived is
// replaced by a new one, which leaves from the same airport.
func (s *Simulation) move(now time.Time) Event {
	ship := &s.fleet[s.nextShip]
	s.nextShip = (s.nextShip + 1) % len(s.fleet)

	m := &Move{
		ID: ship.id, From: ship.route.From.IATA, To: ship.route.To.IATA,
		Progress: min(1, float64(now.Sub(ship.started))/float64(ship.duration)),
		Status:   "moving",
		Seconds:  round(ship.duration.Seconds(), 10),
	}
	lat, lon := along(ship.route.From, ship.route.To, m.Progress)
	m.Lat, m.Lon, m.Progress = round(lat, 1e4), round(lon, 1e4), round(m.Progress, 1e4)
	e := Event{Channel: region(ship.route.From), Key: ship.id, Move: m}

	switch {
	case now.Sub(ship.started) >= ship.duration:
		m.Status = "arrived"
		*ship = s.ship(s.routeFrom(ship.route.To), now)
	case ship.fresh:
		m.Status = "departed"
		ship.fresh = false
	}
	return e
}

// tick replays the next close: the index and the shares take turns.
func (s *Simulation) tick() Event {
	which := 0
	if s.nextTick%2 == 1 {
		which = 1 + (s.nextTick/2)%(len(s.market)-1)
	}
	s.nextTick++

	r := &s.market[which]
	r.at++
	if r.at == len(r.series.Closes) {
		r.at = 0
		r.lap++
	}
	t := &Tick{Symbol: r.series.Symbol, Date: r.series.Dates[r.at], Price: r.series.Closes[r.at], Lap: r.lap}
	if r.at > 0 {
		before := r.series.Closes[r.at-1]
		t.Change = round(t.Price-before, 100)
		t.Percent = round((t.Price-before)/before*100, 100)
	}
	return Event{Channel: nsMarket + ":" + t.Symbol, Key: t.Symbol, Tick: t}
}

func (s *Simulation) ship(r Route, now time.Time) shipment {
	s.shipped++
	speed := slowest + s.rand.Float64()*(fastest-slowest)
	return shipment{
		id:       fmt.Sprintf("W%d", firstShipment+s.shipped),
		route:    r,
		started:  now,
		duration: time.Duration(distance(r.From, r.To) / speed * float64(time.Second)),
		fresh:    true,
	}
}

// anyRoute picks a route as often as it was flown.
func (s *Simulation) anyRoute() Route {
	n := s.rand.IntN(s.weights[len(s.weights)-1])
	return s.world.Routes[sort.SearchInts(s.weights, n+1)]
}

// routeFrom picks one of the routes that leave a.
func (s *Simulation) routeFrom(a Airport) Route {
	sum := 0
	for _, i := range s.leaving[a.IATA] {
		sum += s.world.Routes[i].Flights
	}
	if sum == 0 {
		return s.anyRoute()
	}
	n := s.rand.IntN(sum)
	for _, i := range s.leaving[a.IATA] {
		if n -= s.world.Routes[i].Flights; n < 0 {
			return s.world.Routes[i]
		}
	}
	panic("demo: the weights of the routes from " + a.IATA + " do not add up")
}

func round(x, unit float64) float64 { return math.Round(x*unit) / unit }
