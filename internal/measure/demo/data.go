package demo

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	//go:embed data/airports.csv
	airportsCSV string
	//go:embed data/routes.csv
	routesCSV string
	//go:embed data/market.csv
	marketCSV string
	//go:embed data/map.json
	mapJSON []byte
)

// An Airport is a place where routes start and end.
type Airport struct {
	IATA, Name, City, State string
	// Degrees, north and east positive.
	Lat, Lon float64
}

// A Route is a pair of airports and how often it was flown in 2008.
type Route struct {
	From, To Airport
	Flights  int
}

// A Series is the closes of one symbol, oldest first.
type Series struct {
	Symbol string
	Dates  []string // YYYY-MM-DD
	Closes []float64
}

// A World is the demo's data. It is not changed after Load.
type World struct {
	Airports map[string]Airport
	Routes   []Route
	// Market has the index first, then the shares by name.
	Market []Series
}

// Load reads the embedded data. An error means that the committed files are bad.
func Load() (*World, error) {
	w := &World{Airports: map[string]Airport{}}
	if err := rows("airports.csv", airportsCSV, 6, w.addAirport); err != nil {
		return nil, err
	}
	if err := rows("routes.csv", routesCSV, 3, w.addRoute); err != nil {
		return nil, err
	}
	if err := rows("market.csv", marketCSV, 3, w.addClose); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *World) addAirport(r []string) error {
	a := Airport{IATA: r[0], Name: r[1], City: r[2], State: r[3]}
	var err error
	if a.Lat, err = strconv.ParseFloat(r[4], 64); err != nil {
		return err
	}
	if a.Lon, err = strconv.ParseFloat(r[5], 64); err != nil {
		return err
	}
	w.Airports[a.IATA] = a
	return nil
}

func (w *World) addRoute(r []string) error {
	from, ok := w.Airports[r[0]]
	if !ok {
		return fmt.Errorf("airport %q is not known", r[0])
	}
	to, ok := w.Airports[r[1]]
	if !ok {
		return fmt.Errorf("airport %q is not known", r[1])
	}
	flights, err := strconv.Atoi(r[2])
	if err != nil {
		return err
	}
	w.Routes = append(w.Routes, Route{From: from, To: to, Flights: flights})
	return nil
}

func (w *World) addClose(r []string) error {
	if _, err := time.Parse(time.DateOnly, r[1]); err != nil {
		return err
	}
	price, err := strconv.ParseFloat(r[2], 64)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(w.Market, func(s Series) bool { return s.Symbol == r[0] })
	if i < 0 {
		i = len(w.Market)
		w.Market = append(w.Market, Series{Symbol: r[0]})
	}
	s := &w.Market[i]
	s.Dates = append(s.Dates, r[1])
	s.Closes = append(s.Closes, price)
	return nil
}

// rows calls add for each line after the heading.
func rows(name, text string, fields int, add func([]string) error) error {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = fields
	all, err := r.ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(all) < 2 {
		return fmt.Errorf("%s: it is empty", name)
	}
	for i, row := range all[1:] {
		if err := add(row); err != nil {
			return fmt.Errorf("%s: line %d: %w", name, i+2, err)
		}
	}
	return nil
}
