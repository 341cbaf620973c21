//go:build ignore

// Reduce makes the small files of this folder from an unpacked vega-datasets
// package:
//
//	go run reduce.go reducemap.go <package>/data
//
// README.md reports what is kept and why. The result depends on the input alone.
package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// minFlights keeps the routes that were flown at least once a day in 2008, and
// minKilometres those that are long enough to be seen on a map.
const (
	minFlights    = 365
	minKilometres = 350
)

func main() {
	if len(os.Args) != 2 {
		fatal("usage: go run reduce.go reducemap.go <package>/data")
	}
	dir := os.Args[1]
	check(reduceRoutes(dir))
	check(reduceMarket(dir))
	check(reduceMap(dir))
}

func check(err error) {
	if err != nil {
		fatal("reduce: " + err.Error())
	}
}

func fatal(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}

// reduceRoutes writes airports.csv and routes.csv: the contiguous states only.
func reduceRoutes(dir string) error {
	airports, err := table(dir, "airports.csv", "iata", "name", "city", "state", "latitude", "longitude")
	if err != nil {
		return err
	}
	flights, err := table(dir, "flights-airport.csv", "origin", "destination", "count")
	if err != nil {
		return err
	}
	at := map[string][2]float64{}
	for _, a := range airports {
		lat, lon := number(a[4]), number(a[5])
		if lat > 24 && lat < 50 && lon > -125 && lon < -66 {
			at[a[0]] = [2]float64{lat, lon}
		}
	}
	used := map[string]bool{}
	routes := [][]string{{"from", "to", "flights"}}
	for _, f := range flights {
		a, okA := at[f[0]]
		b, okB := at[f[1]]
		if okA && okB && number(f[2]) >= minFlights && kilometres(a, b) >= minKilometres {
			used[f[0]], used[f[1]] = true, true
			routes = append(routes, f)
		}
	}
	kept := [][]string{{"iata", "name", "city", "state", "lat", "lon"}}
	for _, a := range airports {
		if used[a[0]] {
			a[4] = strconv.FormatFloat(number(a[4]), 'f', 4, 64)
			a[5] = strconv.FormatFloat(number(a[5]), 'f', 4, 64)
			kept = append(kept, a)
		}
	}
	if err := write("airports.csv", kept); err != nil {
		return err
	}
	return write("routes.csv", routes)
}

// reduceMarket writes market.csv: symbol, date, close. The index is daily, the
// shares monthly, each as its source has it.
func reduceMarket(dir string) error {
	index, err := table(dir, "sp500-2000.csv", "date", "close")
	if err != nil {
		return err
	}
	shares, err := table(dir, "stocks.csv", "symbol", "date", "price")
	if err != nil {
		return err
	}
	rows := [][]string{{"symbol", "date", "close"}}
	for _, r := range index {
		rows = append(rows, []string{"sp500", r[0], strconv.FormatFloat(number(r[1]), 'f', 2, 64)})
	}
	for _, r := range shares {
		day, err := time.Parse("Jan 2 2006", r[1])
		if err != nil {
			return fmt.Errorf("stocks.csv: %w", err)
		}
		rows = append(rows, []string{r[0], day.Format(time.DateOnly), r[2]})
	}
	return write("market.csv", rows)
}

// table reads the named columns of a CSV file.
func table(dir, name string, columns ...string) ([][]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var at []int
	for _, c := range columns {
		for i, h := range rows[0] {
			if h == c {
				at = append(at, i)
			}
		}
	}
	if len(at) != len(columns) {
		return nil, fmt.Errorf("%s: want the columns %q, it has %q", name, columns, rows[0])
	}
	var out [][]string
	for _, r := range rows[1:] {
		kept := make([]string, len(at))
		for i, j := range at {
			kept[i] = r[j]
		}
		out = append(out, kept)
	}
	return out, nil
}

func write(name string, rows [][]string) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	if err := w.WriteAll(rows); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func number(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	check(err)
	return f
}

// kilometres between two (lat, lon) in degrees, by the haversine formula.
func kilometres(a, b [2]float64) float64 {
	const rad = math.Pi / 180
	h := hav((b[0]-a[0])*rad) + math.Cos(a[0]*rad)*math.Cos(b[0]*rad)*hav((b[1]-a[1])*rad)
	return 2 * 6371 * math.Asin(math.Sqrt(h))
}

func hav(x float64) float64 { return (1 - math.Cos(x)) / 2 }
