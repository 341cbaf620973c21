package hub

import (
	"testing"
	"time"
)

func TestDurationsMayHaveDays(t *testing.T) {
	f := func(text string, want time.Duration) {
		t.Helper()
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || time.Duration(d) != want {
			t.Errorf("%q: %v, %v; want %v", text, d, err, want)
		}
	}
	const day = 24 * time.Hour
	f("7d", 7*day)
	f("1d12h", 36*time.Hour)
	f("0.5d", 12*time.Hour)
	f("-1d1h", -25*time.Hour)
	f("90s", 90*time.Second)
	f("106751d", 106751*day)

	bad := func(text string) {
		t.Helper()
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: read as %v", text, d)
		}
	}
	bad("d")
	bad("3 days")
	bad("1d-1h")
	bad("1d1d")
	bad("106752d")
	bad("106751d48h")
	bad("-106751d48h")
	bad("999999999999d")
	bad("")
}
