// Package demo is what `weir demo` shows: a page, the data behind it and a
// publisher that brings it to life through the real publish API.
//
// Where do the numbers come from? From real data, committed in data/ with its
// origin: airports, routes as they were flown, closes of the S&P 500 and of
// five shares. Shipments travel these routes ([Simulation]); that they do is the
// only invention.
//
// What proves that it works? Every message carries the run it belongs to, a
// sequence number without holes per channel, and the time it was published.
// The page and [Run] check what arrives by these alone, whatever the server
// says: lost, repeated, how late.
//
// The package starts no server: the caller serves [Files], configures
// [Namespaces] and calls [Run].
package demo

import (
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// The namespaces of the demo.
const (
	nsShipments = "shipments"
	nsMarket    = "market"
)

// Shares of the market are those of data/market.csv; the index comes first.
const indexSymbol = "sp500"

// Namespaces returns what the demo's channels need: readable by everyone, stored,
// with enough history for a page that was away for some minutes.
func Namespaces() []hub.Namespace {
	ns := hub.Namespace{
		Durability:      hub.Stored,
		HistorySize:     20_000,
		HistoryTTL:      hub.Duration(time.Hour),
		HistoryBytes:    128 << 20,
		Recent:          1024,
		MaxMessageBytes: 4 << 10,
		QueueMessages:   8192,
		QueueBytes:      4 << 20,
		Anonymous:       true,
	}
	shipments, market := ns, ns
	shipments.Name, market.Name = nsShipments, nsMarket
	return []hub.Namespace{shipments, market}
}

// Channels returns the full names of all channels that the demo publishes to.
func Channels() []string {
	channels := []string{nsShipments + ":west", nsShipments + ":central", nsShipments + ":east"}
	for _, s := range []string{indexSymbol, "AAPL", "AMZN", "GOOG", "IBM", "MSFT"} {
		channels = append(channels, nsMarket+":"+s)
	}
	return channels
}

// region names the channel of a shipment by where it started.
func region(from Airport) string {
	switch {
	case from.Lon < -104:
		return nsShipments + ":west"
	case from.Lon < -87:
		return nsShipments + ":central"
	default:
		return nsShipments + ":east"
	}
}

// A Command is a line to try in a shell while the demo runs.
type Command struct {
	Title string `json:"title"`
	Line  string `json:"line"`
}

// Commands returns lines that work as they are against the demo at origin, for
// example http://127.0.0.1:8000, given that weir is on the PATH. The page shows
// the same.
func Commands(origin string) []Command {
	origin = strings.TrimSuffix(origin, "/")
	return []Command{
		{"One channel, live", "curl -N '" + origin + "/sse?channel=market:sp500'"},
		{"Several channels on one stream", "curl -N '" + origin + "/sse?channel=shipments:west&channel=market:AAPL'"},
		{"What is retained, then live", "curl -N -H 'Last-Event-ID: 0' '" + origin + "/sse?channel=market:IBM'"},
		{"With the client that resumes", "weir sub --url " + origin + " market:sp500"},
	}
}
