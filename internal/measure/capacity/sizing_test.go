package capacity

import (
	"strings"
	"testing"
)

func TestSizingNamesMachinesAndPrice(t *testing.T) {
	f := func(recommended, fanout float64, conns int, d Demand, text, cost, note string) {
		t.Helper()
		if err := d.Validate(); err != nil {
			t.Fatal(err)
		}
		r := &Report{Recommended: recommended}
		r.Size(d, fanout, conns)
		if got := r.Sizing.Text(); got != text {
			t.Errorf("%q\nwant %q", got, text)
		}
		if got := r.Sizing.Cost(); got != cost {
			t.Errorf("%q\nwant %q", got, cost)
		}
		if got := strings.Join(r.Notes, "\n"); got != note {
			t.Errorf("%q\nwant %q", got, note)
		}
	}
	f(1000, 1, 10_000, Demand{Clients: 5000, PerClient: 0.2}, "5,000 clients at 0.2/s each take 1k/s: 1 machine like the target's, 2 so that one may fail; up to 5,000 clients on each", "", "")
	f(1000, 1, 10_000, Demand{Clients: 5001, PerClient: 0.2, Price: 40}, "5,001 clients at 0.2/s each take 1k/s: 2 machines like the target's, 3 so that one may fail; up to 5,000 clients on each",
		"price 80, or 0.016 per client; 120 and 0.024 with one more machine", "")
	// Of pubsub a message reaches 100 subscribers: 20 published per second are 2,000 deliveries.
	f(20, 100, 1000, Demand{Clients: 4000, PerClient: 1}, "4,000 clients at 1/s each take 4k/s: 2 machines like the target's, 3 so that one may fail; up to 2,000 clients on each", "",
		"sizing: 2,000 clients on a machine, and only 1,000 connections were open during the search; measure memory with more")
	f(0, 1, 10, Demand{Clients: 10, PerClient: 1, Price: 1}, "10 clients at 1/s each take 10/s: machines unknown, since there is no operating point", "", "")
}

func TestDemandsThatMeanNothingAreRefused(t *testing.T) {
	f := func(want string, d Demand) {
		t.Helper()
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	f("clients 0: want 1 or more", Demand{PerClient: 1})
	f("rate per client 0: want more than 0", Demand{Clients: 1})
	f("price -1: want 0 or more", Demand{Clients: 1, PerClient: 1, Price: -1})
}
