package tlsterm

import (
	"bytes"
	"crypto/tls"
	"io"
	"testing"
)

var allSuites = []*suite{
	suiteOf(tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256),
	suiteOf(tls.VersionTLS13, tls.TLS_AES_256_GCM_SHA384),
	suiteOf(tls.VersionTLS13, tls.TLS_CHACHA20_POLY1305_SHA256),
	suiteOf(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
	suiteOf(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
	suiteOf(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
}

// pair returns two ends of one connection.
func pair(s *suite) (a, b *records) {
	a, b = &records{loopState: newLoopState(), suite: s}, &records{loopState: newLoopState(), suite: s}
	one, two := bytes.Repeat([]byte{1}, 48), bytes.Repeat([]byte{2}, 48)
	if s.v13 {
		s.setSecret(&a.out, one[:s.hashLen])
		s.setSecret(&b.in, one[:s.hashLen])
		s.setSecret(&a.in, two[:s.hashLen])
		s.setSecret(&b.out, two[:s.hashLen])
		return a, b
	}
	s.setMaster(&a.in, &a.out, one, two[:32], one[:32])
	s.setMaster(&b.out, &b.in, one, two[:32], one[:32])
	return a, b
}

// FuzzSplits cuts a stream of records, with key updates between, at any places:
// what comes out is what went in, whatever the cuts.
func FuzzSplits(f *testing.F) {
	f.Add(uint8(0), []byte("hello"), []byte{1, 2, 3})
	f.Add(uint8(1), bytes.Repeat([]byte("long "), 4000), []byte{0, 255, 4, 5, 6, 7})
	f.Add(uint8(3), []byte("x"), []byte{1})
	f.Add(uint8(5), bytes.Repeat([]byte{0}, 18_000), []byte{255, 255, 255, 200})
	f.Fuzz(func(t *testing.T, kind uint8, data, cuts []byte) {
		data = data[:min(len(data), 20_000)]
		s := allSuites[int(kind)%len(allSuites)]
		a, b := pair(s)
		var wire []byte
		for i, rest := 0, data; len(rest) > 0; i++ {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)])*97)
			}
			wire = a.Seal(wire, rest[:n])
			rest = rest[n:]
			if s.v13 && i%5 == 4 {
				wire = a.updateKey(wire)
			}
		}
		wire = a.Close(wire)
		var got []byte
		ended := false
		for i, at := 0, 0; at < len(wire); i++ {
			n := len(wire)
			if len(cuts) > 0 {
				n = 1 + int(cuts[(i*7)%len(cuts)])*3
			}
			end := min(len(wire), at+n)
			plain, reply, err := b.Open(bytes.Clone(wire[at:end]))
			got = append(got, plain...)
			at = end
			if len(reply) > 0 || err != nil && (err != io.EOF || at < len(wire)) {
				t.Fatalf("at %d of %d: %x and %v", at, len(wire), reply, err)
			}
			ended = err == io.EOF
		}
		if !bytes.Equal(got, data) || !ended || b.partial != nil {
			t.Fatalf("%d bytes came out of %d, ended %v", len(got), len(data), ended)
		}
	})
}

// FuzzOpen feeds anything at all: it must fail in words, with an alert at most
// once, and nothing unauthenticated may come out.
func FuzzOpen(f *testing.F) {
	a, _ := pair(allSuites[0])
	f.Add(uint8(0), a.Seal(nil, []byte("good")), 4)
	f.Add(uint8(3), []byte{23, 3, 3, 0, 0}, 1)
	f.Add(uint8(0), []byte{21, 3, 3, 0, 2, 1, 0}, 2)
	f.Fuzz(func(t *testing.T, kind uint8, wire []byte, cut int) {
		s := allSuites[int(kind)%len(allSuites)]
		a, b := pair(s)
		good := a.Seal(nil, []byte("good"))
		cut = min(max(cut, 1), 1<<16)
		failed := false
		for at := 0; at < len(wire); at += cut {
			plain, reply, err := b.Open(bytes.Clone(wire[at:min(len(wire), at+cut)]))
			if len(plain) > 0 && !bytes.HasPrefix(wire, good) {
				t.Fatalf("%q came out of nothing", plain)
			}
			if failed && (err == nil || len(reply) > 0 || len(plain) > 0) {
				t.Fatalf("after it failed: %q, %x and %v", plain, reply, err)
			}
			failed = failed || err != nil
		}
		if len(b.partial) > headerLen+maxCiphertext12 {
			t.Fatalf("%d bytes are kept", len(b.partial))
		}
	})
}

// FuzzHello feeds a ClientHello in any form: it is the same at once and a byte at a
// time, and no record is looked at twice.
func FuzzHello(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	message := append([]byte{clientHello, 0, 0, 40, 3, 3}, make([]byte, 38)...)
	f.Add(append([]byte{typeHandshake, 3, 1, 0, 44}, message...))
	var tiny []byte
	for _, c := range message {
		tiny = append(tiny, typeHandshake, 3, 1, 0, 1, c)
	}
	f.Add(tiny)
	f.Fuzz(func(t *testing.T, b []byte) {
		random, err := new(helloReader).read(b)
		if random != nil && err == nil && len(random) != randomLen {
			t.Fatalf("%x and %v", random, err)
		}
		var slow helloReader
		for n := range min(len(b), 200) + 1 {
			r, e := slow.read(b[:n])
			switch {
			case e != nil || r != nil: // it knew before it had all, and does not change its mind
				if (e == nil) != (err == nil) || e == nil && !bytes.Equal(r, random) {
					t.Fatalf("%d of %d bytes: %x and %v, of all %x and %v", n, len(b), r, e, random, err)
				}
				return
			case n == len(b) && (random != nil || err != nil):
				t.Fatalf("of all bytes one by one came nothing, at once %x and %v", random, err)
			case n-slow.at > headerLen+maxPlaintext:
				t.Fatalf("after %d bytes it starts again at %d", n, slow.at)
			}
		}
	})
}

func TestRecordsOfAClientHelloAreLookedAtOnce(t *testing.T) {
	var r helloReader
	var b []byte
	size := maxHello
	message := append([]byte{clientHello, byte(size >> 16), byte(size >> 8), byte(size)}, make([]byte, size-1)...)
	for i, c := range message {
		b = append(b, typeHandshake, 3, 1, 0, 1, c)
		if random, err := r.read(b); random != nil || err != nil {
			t.Fatalf("after %d bytes: %x and %v", i+1, random, err)
		}
		if r.at != len(b) {
			t.Fatalf("after %d records it starts again at byte %d of %d", i+1, r.at, len(b))
		}
	}
	b = append(b, typeHandshake, 3, 1, 0, 1, 0)
	if random, err := r.read(b); len(random) != randomLen || err != nil {
		t.Errorf("of all: %x and %v", random, err)
	}
}
