package http1

import "testing"

func TestDecodeTrailerHandsOutTheSection(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		for cut := range len(body) + 1 {
			var c Chunked
			var trailer []byte
			done := false
			for _, b := range [][]byte{[]byte(body[:cut]), []byte(body[cut:])} {
				for len(b) > 0 && !done {
					_, n, end, err := c.DecodeTrailer(b, &trailer)
					if err != nil {
						t.Fatalf("%q: %v", body, err)
					}
					b, done = b[n:], end
				}
			}
			if !done || string(trailer) != want {
				t.Fatalf("%q cut at %d: %q, done %v, want %q", body, cut, trailer, done, want)
			}
		}
	}
	f("0\r\n\r\n", "\r\n")
	f("2\r\nok\r\n0;x=y\r\nA: b\r\nC:\r\n\r\n", "A: b\r\nC:\r\n\r\n")
}
