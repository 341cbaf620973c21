package wire

import (
	"bytes"
	stdgzip "compress/gzip"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// events are payloads of every kind: short, repetitive, random, longer than a
// stored block.
func testEvents(seed uint64) [][]byte {
	r := rand.New(rand.NewPCG(seed, 2))
	random := make([]byte, 200_000)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	return [][]byte{[]byte("a"), []byte(strings.Repeat("data: {\"price\":101}\n", 500)), random[:300], random, []byte("end")}
}

func TestCompressedEventsArriveOneByOne(t *testing.T) {
	c, err := newCompressor()
	if err != nil {
		t.Fatal(err)
	}
	f := func(name string, header []byte, add func(dst, plain []byte) []byte, open func(io.Reader) (io.Reader, error)) {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			defer r.Close()
			begin := add(append([]byte(nil), header...), []byte("retry: 1\n\n"))
			go func() { _, _ = w.Write(begin) }()
			d, err := open(r)
			if err != nil {
				t.Fatal(err)
			}
			want := []byte("retry: 1\n\n")
			got := make([]byte, len(want))
			if _, err := io.ReadFull(d, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("first block %q, %v", got, err)
			}
			for i, ev := range testEvents(1) {
				frame := add(nil, ev)
				go func() { _, _ = w.Write(frame) }()
				got := make([]byte, len(ev)) // read in full before the next one is written
				if _, err := io.ReadFull(d, got); err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				if !bytes.Equal(got, ev) {
					t.Fatalf("event %d differs", i)
				}
			}
		})
	}
	gunzip := func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) }
	f("gzip", GzipHeader, c.appendGzip, gunzip)
	f("stored", GzipHeader, appendStored, gunzip)
}

// A zstd decoder may read ahead of what it hands out; that each event is a frame
// of its own is what makes it arrive.
func TestZstdEventsAreFramesOfTheirOwn(t *testing.T) {
	c, err := newCompressor()
	if err != nil {
		t.Fatal(err)
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var stream, want []byte
	for i, ev := range testEvents(4) {
		frame := c.appendZstd(nil, ev)
		if got, err := d.DecodeAll(frame, nil); err != nil || !bytes.Equal(got, ev) {
			t.Errorf("event %d alone: %v", i, err)
		}
		stream, want = append(stream, frame...), append(want, ev...)
	}
	if got, err := d.DecodeAll(stream, nil); err != nil || !bytes.Equal(got, want) {
		t.Errorf("all together: %v", err)
	}
}

func TestCompressedEventsNeedNoOthers(t *testing.T) {
	c, err := newCompressor()
	if err != nil {
		t.Fatal(err)
	}
	events := testEvents(2)
	for i := range events { // a stream that starts anywhere, in any order
		b := append([]byte(nil), GzipHeader...)
		want := append(append([]byte(nil), events[i]...), events[len(events)-1-i]...)
		b = c.appendGzip(c.appendGzip(b, events[i]), events[len(events)-1-i])
		r, err := stdgzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("from event %d on: %v", i, err)
		}
	}
}

func TestIncompressibleEventsGrowLittle(t *testing.T) {
	c, err := newCompressor()
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range testEvents(3) {
		if n, most := len(c.appendGzip(nil, ev)), len(ev)+5*(len(ev)/maxStored+2); n > most {
			t.Errorf("%d bytes became %d, want at most %d", len(ev), n, most)
		}
	}
}

func TestChooseCoding(t *testing.T) {
	f := func(accept string, want Coding) {
		t.Helper()
		if got := ChooseCoding([]byte(accept)); got != want {
			t.Errorf("ChooseCoding(%q) = %q, want %q", accept, got, want)
		}
	}
	f("", Plain)
	f("gzip, deflate, br, zstd", Zstd)
	f("gzip, deflate", Gzip)
	f("GZIP", Gzip)
	f("gzip;q=0", Plain)
	f("gzip;q=0.0, zstd;q=0", Plain)
	f("gzip; q=0.5", Gzip)
	f("zstd;q=0, Gzip", Gzip)
	f("gzip;Q=0", Plain)
	f("gzip ;\tq=0.000 ,zstd; Q=0.0", Plain)
	f("gzip;level=1;q=0", Plain)
	f("gzip;q=0.001", Gzip)
	f("gzip;q=1.0 ;", Gzip)
	f("x-gzip", Gzip)
	f("gzip;q=0.5, zstd;q=0.1", Gzip)
	f("zstd;q=0.501, gzip;q=0.5", Zstd)
	f("gzip;q=1.000, zstd;q=1", Zstd)
	f("gzip;q=0.5, identity;q=0.9, zstd;q=0.6", Plain)
	f("identity, gzip", Gzip)
	f("gzip;q=nonsense, zstd;q=2", Plain)
	f("gzip2, zstd2, azstd", Plain)
	f("br", Plain)
	f("*", Plain)
}

// What is a connection's own goes uncompressed: it costs no compressor.
func TestStoredZstdFramesAreFrames(t *testing.T) {
	f, err := NewFormats(nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	plain := bytes.Repeat([]byte("data: weir\n\n"), 1<<20/12)
	for _, n := range []int{0, 1, 254, 255, 256, 257, 1000, 65_535, 65_536, 65_791, 65_792, 128<<10 - 1, 128 << 10, 128<<10 + 1, 256 << 10, len(plain)} {
		b := f.Encode(Zstd, []byte("before"), plain[:n], false)[len("before"):]
		got, err := d.DecodeAll(b, nil)
		if err != nil || !bytes.Equal(got, plain[:n]) {
			t.Errorf("%d bytes: %d decoded, %v", n, len(got), err)
		}
		if most := n + 9 + 3*(1+n/(128<<10)); len(b) > most || len(b) < n {
			t.Errorf("%d bytes became %d, want them as they are and at most %d", n, len(b), most)
		}
	}
}

// Loops compress at the same time.
func TestZstdIsForEveryGoroutineAtOnce(t *testing.T) {
	c, err := newCompressor()
	if err != nil {
		t.Fatal(err)
	}
	ev := testEvents(5)[1]
	want := c.appendZstd(nil, ev)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if got := c.appendZstd(nil, ev); !bytes.Equal(got, want) {
					t.Error("the same event became another frame")
				}
			}
		})
	}
	all.Wait()
}
