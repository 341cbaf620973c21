package main

import (
	"context"
	"fmt"
)

// A way is how clients ask.
type way struct {
	version int // of HTTP
	tls     bool
	streams int // at a time on one connection
}

func (w way) String() string {
	name := "HTTP/1.1"
	if w.version > 1 {
		name = fmt.Sprintf("HTTP/%d, %d a connection", w.version, w.streams)
	}
	if w.tls {
		name += ", TLS"
	}
	return name
}

// base is what w is compared with.
func (w way) base() way { return way{1, w.tls, 1} }

// A sample is what one run gave, by metric.
type sample map[string]float64

// A scenario is one load over several ways of asking.
type scenario struct {
	name, what string
	ways       []way
	metrics    []metric
	run        func(*bench, context.Context, way) (sample, error)

	got [][]sample // by way and round
}

// A metric is one value of a sample.
type metric struct {
	key, title string
	decimals   int
	targets    map[way]float64 // the most that it may be: of the ratio to the base if there is one
	ratio      bool            // is compared with that of the base
}

var (
	plain  = []way{{1, false, 1}, {2, false, 1}, {2, false, 100}}
	secure = []way{{1, true, 1}, {2, true, 1}, {2, true, 100}, {3, true, 1}, {3, true, 100}}
	single = []way{{1, false, 1}, {2, false, 1}, {1, true, 1}, {2, true, 1}}
)

func scenarios(o options) []*scenario {
	both := append(append([]way(nil), plain...), secure...)
	bodies := []metric{
		{key: "cpu", title: "CPU ms", decimals: 0, ratio: true, targets: map[way]float64{{2, false, 1}: 1.5, {2, true, 1}: 1.5}},
		{key: "peak", title: "peak memory above idle, MB", decimals: 1},
		{key: "seconds", title: "seconds", decimals: 2},
	}
	return []*scenario{
		{name: "memory", what: fmt.Sprintf("%d idle SSE subscribers (%d where each has a TLS connection): growth of Rss, live heap and stacks after a collection, "+
			"and goroutines, for each", o.idle, o.idleTLS),
			ways: both, run: (*bench).idleMemory, metrics: []metric{
				{key: "rss", title: "user bytes (Rss)", targets: map[way]float64{{2, false, 100}: 600, {2, true, 100}: 600, {2, false, 1}: 2500, {2, true, 1}: 4000}},
				{key: "live", title: "live bytes"},
				{key: "goroutines", title: "goroutines", decimals: 2, targets: map[way]float64{{2, false, 100}: 0.005, {2, true, 100}: 0.005, {2, false, 1}: 0.005, {2, true, 1}: 0.005}},
				{key: "connect", title: "CPU µs to open", decimals: 0},
			}},
		{name: "fanout", what: fmt.Sprintf("one channel with %d SSE subscribers, messages of 128 bytes; the next is published when all have the last", o.subscribers),
			ways: both, run: (*bench).fanout, metrics: []metric{
				{key: "cpu", title: "CPU µs per delivery", decimals: 2, ratio: true, targets: map[way]float64{
					{2, false, 1}: 1.3, {2, true, 1}: 1.3, {2, false, 100}: 0.5, {2, true, 100}: 0.5,
				}},
				{key: "rate", title: "deliveries per second", decimals: 0},
			}},
		{name: "upload", what: fmt.Sprintf("one body of %d MB to a backend, through a route", o.megabytes), ways: single, run: (*bench).upload, metrics: bodies},
		{name: "download", what: fmt.Sprintf("one body of %d MB from a backend, through a route", o.megabytes), ways: single, run: (*bench).download, metrics: bodies},
	}
}
