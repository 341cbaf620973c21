package hub

import (
	"math"
	"strings"
	"testing"
	"time"
)

// Whatever reads as positions is written as it was read, within its bounds.
func FuzzParsePositions(f *testing.F) {
	now := time.Unix(1900000000, 12345)
	for _, p := range []Position{
		{"Ab3", 17, 0}, {"Ab3", 17, NewCheck(17, now)}, {"e", math.MaxUint64, NewContentCheck(1, now, "k", []byte("x"))},
		{"e", 0, 1}, {"e", 1, checkEnd - 1}, {"e", 1, 2*checkEnd - 1},
	} {
		f.Add(p.String())
		f.Add(p.String() + "~" + p.String())
	}
	for _, s := range []string{"", "-", "e-", "e-1.", "e-18446744073709551616", "e-01", "e-+1", "e-1.000000", "e-1.2000000", "e-1.zzzzzzz", "e-1.1000000",
		"a.b-1", strings.Repeat("e", 33) + "-1", strings.Repeat("e-1~", 17), "e-1.abcdef.ghijkl", "e-1\x00", "é-1", "e-1~", "~"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ps, err := ParsePositions(s)
		if err != nil {
			return
		}
		if got := string(ps.AppendTo(nil)); got != s || len(ps) > MaxPositions {
			t.Fatalf("%q is written %q", s, got)
		}
		for _, p := range ps {
			if p.Epoch == "" || len(p.Epoch) > maxEpoch || p.Check >= 2*checkEnd {
				t.Fatalf("%q has %+v", s, p)
			}
			p.Check.Proves(p.Offset, now, "", nil)
			if p.Check != 0 && p.Check.Latest(now).After(now.Add(8*time.Minute)) {
				t.Fatalf("%q was stored until %v", s, p.Check.Latest(now))
			}
		}
	})
}
