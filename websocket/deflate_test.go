package websocket

import (
	"bytes"
	"compress/flate"
	"crypto/rand"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// inflateFrame parses one compressed server frame with the given payload.
func inflateFrame(t testing.TB, payload []byte, most int) (string, error) {
	t.Helper()
	p := serverParser(ParserOptions{Client: true, Deflate: true, Limits: &Limits{MaxMessage: most}})
	in := append(AppendHeader(nil, true, true, OpBinary, len(payload)), payload...)
	got, err := parse(t, p, in)
	if err != nil {
		return "", err
	}
	if len(got) != 1 {
		t.Fatalf("got %d events", len(got))
	}
	return got[0].payload, nil
}

// RFC 7692 §7.2.3: the RFC's own bytes.
func TestRFC7692Examples(t *testing.T) {
	f := func(payload, want string) {
		t.Helper()
		if got, err := inflateFrame(t, []byte(payload), 1000); err != nil || got != want {
			t.Errorf("inflate(%x) = %q, %v, want %q", payload, got, err, want)
		}
	}
	f("\xf2\x48\xcd\xc9\xc9\x07\x00", "Hello")
	f("\x00\x05\x00\xfa\xffHello\x00", "Hello")                        // no compression
	f("\xf3\x48\xcd\xc9\xc9\x07\x00\x00", "Hello")                     // BFINAL set
	f("\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00", "Hello") // two blocks
	f("\x00", "")
	f("", "")

	p := serverParser(ParserOptions{Client: true, Deflate: true})
	got, err := parse(t, p, []byte("\x41\x03\xf2\x48\xcd\x80\x04\xc9\xc9\x07\x00"))
	if err != nil || len(got) != 1 || got[0] != (kept{OpText, "Hello", 0}) {
		t.Errorf("fragmented: %v, %v", got, err)
	}
}

func TestCorruptCompressionIsRefused(t *testing.T) {
	f := func(payload string) {
		t.Helper()
		_, err := inflateFrame(t, []byte(payload), 1000)
		var pe *ProtocolError
		if !errors.As(err, &pe) || pe.Code != 1007 {
			t.Errorf("inflate(%x): %v, want close code 1007", payload, err)
		}
	}
	f("\xff\xff\xff")
	f("\x00\x05\x00\xfa\xffHel")                             // ends inside a stored block
	f("\xf2\x48\xcd")                                        // ends inside a fixed block
	f("\xf3\x48\xcd\xc9\xc9\x07\x00" + "\x00data behind it") // continues after the last block
	text := Compress(nil, []byte("caf\xe9"), 1)
	p := serverParser(ParserOptions{Client: true, Deflate: true})
	_, err := parse(t, p, append(AppendHeader(nil, true, true, OpText, len(text)), text...))
	var pe *ProtocolError
	if !errors.As(err, &pe) || pe.Code != 1007 {
		t.Errorf("compressed text that is not UTF-8: %v, want close code 1007", err)
	}
}

func TestCompressRoundTripsAtEachLevel(t *testing.T) {
	random := make([]byte, 100_000)
	_, _ = rand.Read(random)
	payloads := [][]byte{nil, []byte("a"), []byte("Hello"), bytes.Repeat([]byte("weir "), 40_000), random}
	for level := -1; level <= 10; level++ {
		for _, want := range payloads {
			c := Compress([]byte("before"), want, level)
			if !bytes.HasPrefix(c, []byte("before")) {
				t.Fatalf("level %d: Compress wrote over dst", level)
			}
			c = c[len("before"):]
			// The parser, with the limit at the exact size, and a reader that is not ours.
			got, err := inflateFrame(t, c, max(len(want), 1))
			if err != nil || got != string(want) {
				t.Errorf("level %d, %d bytes: %d bytes, %v", level, len(want), len(got), err)
			}
			other, err := io.ReadAll(flate.NewReader(strings.NewReader(string(c) + deflateTail)))
			if err != nil || !bytes.Equal(other, want) {
				t.Errorf("level %d, %d bytes, other reader: %d bytes, %v", level, len(want), len(other), err)
			}
		}
	}
}

func TestBombStopsAtTheLimit(t *testing.T) {
	bomb := Compress(nil, make([]byte, 16<<20), 9)
	if len(bomb) > 17_500 {
		t.Fatalf("the bomb is %d bytes", len(bomb))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := inflateFrame(t, bomb, 64<<10)
	runtime.ReadMemStats(&after)
	var pe *ProtocolError
	if !errors.As(err, &pe) || pe.Code != 1009 {
		t.Errorf("%v, want close code 1009", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("16 MiB in %d bytes took %d bytes of memory with a limit of 64 KiB", len(bomb), n)
	}
	if _, err := inflateFrame(t, Compress(nil, make([]byte, 1001), 1), 1000); !errors.As(err, &pe) || pe.Code != 1009 {
		t.Errorf("one byte past the limit: %v, want close code 1009", err)
	}
	if _, err := inflateFrame(t, Compress(nil, make([]byte, 1000), 1), 1000); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

func TestNegotiateDeflate(t *testing.T) {
	yes := func(offers string, bits int) {
		t.Helper()
		if d, ok := NegotiateDeflate([]byte(offers)); !ok || d.WindowBits != bits {
			t.Errorf("NegotiateDeflate(%q) = %v, %v, want window bits %d", offers, d, ok, bits)
		}
	}
	no := func(offers string) {
		t.Helper()
		if d, ok := NegotiateDeflate([]byte(offers)); ok {
			t.Errorf("NegotiateDeflate(%q) = %v, want it declined", offers, d)
		}
	}
	yes("permessage-deflate", 0)
	yes("permessage-deflate; client_max_window_bits", 0)
	yes("permessage-deflate; client_max_window_bits=10", 0)
	yes("Permessage-Deflate;server_no_context_takeover ; client_no_context_takeover", 0)
	yes("permessage-deflate; server_max_window_bits=15", 15)
	yes("permessage-deflate; server_max_window_bits=9", 9)
	yes(`permessage-deflate; server_max_window_bits="10"`, 10)
	yes("x-webkit-deflate-frame, permessage-deflate", 0)
	yes("permessage-deflate; server_max_window_bits=7, permessage-deflate", 0)
	yes(`x; a=", permessage-deflate"; b, permessage-deflate; server_max_window_bits=8`, 8)
	no("")
	no("deflate-frame")
	no(`x; a=", permessage-deflate"`)
	no("permessage-deflate;")
	no("permessage-deflate; unknown")
	no("permessage-deflate; server_max_window_bits")
	no("permessage-deflate; server_max_window_bits=")
	no("permessage-deflate; server_max_window_bits=16")
	no("permessage-deflate; server_max_window_bits=010")
	no("permessage-deflate; server_max_window_bits=10; server_max_window_bits=10")
	no("permessage-deflate; client_max_window_bits=7")
	no("permessage-deflate; server_no_context_takeover=1")
	no("permessage-deflate; client_no_context_takeover; client_no_context_takeover")

	if s := (Deflate{WindowBits: 9}).String(); s != ext+"; server_max_window_bits=9" {
		t.Errorf("answer %q", s)
	}
	if _, ok := NegotiateDeflate(nil); ok {
		t.Error("no header was treated as an offer")
	}
}

func TestAcceptDeflate(t *testing.T) {
	f := func(answer string, used, ok bool) {
		t.Helper()
		if _, u, o := acceptDeflate([]byte(answer)); u != used || o != ok {
			t.Errorf("acceptDeflate(%q) = %v, %v, want %v, %v", answer, u, o, used, ok)
		}
	}
	f("", false, true)
	f(ext, true, true)
	f("permessage-deflate; server_no_context_takeover", true, true)
	f("permessage-deflate; server_no_context_takeover; server_max_window_bits=10", true, true)
	f("permessage-deflate", true, false)
	f(ext+"; client_max_window_bits=15", true, false)
	f(ext+", other", true, false)
	f("other", true, false)
}

// A message sent under a smaller window must not point back past it.
func TestFitsKeepsTheWindow(t *testing.T) {
	f := func(bits, n int, want bool) {
		t.Helper()
		if got := (Deflate{WindowBits: bits}).Fits(n); got != want {
			t.Errorf("window bits %d, %d bytes: Fits = %v", bits, n, got)
		}
	}
	f(0, 1<<20, true)
	f(15, 1<<20, true)
	f(14, 1<<14, true)
	f(14, 1<<14+1, false)
	f(8, 256, true)
	f(8, 257, false)
}

func BenchmarkCompress(b *testing.B) {
	payload := []byte(strings.Repeat(`{"channel":"orders","id":"x-17","offset":17,"data":{"price":101.25}}`, 4))
	for _, level := range []int{0, 1, 6} {
		b.Run(string(rune('0'+level)), func(b *testing.B) {
			dst := make([]byte, 0, 1024)
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				dst = Compress(dst[:0], payload, level)
			}
			b.ReportMetric(float64(len(dst))/float64(len(payload)), "ratio")
		})
	}
}
