package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"
)

var testKey = [4]byte{0x37, 0xfa, 0x21, 0x3d}

// kept is an event with a payload of its own.
type kept struct {
	op      Opcode
	payload string
	code    uint16
}

// parse plays b to p in pieces of the given sizes (the last is used to the end;
// none means all at once) in the way of a loop: what is left is put before the
// next piece. It keeps the events and returns the error that ended it.
func parse(t testing.TB, p *Parser, b []byte, sizes ...int) (events []kept, err error) {
	t.Helper()
	var pending []byte
	for len(b) > 0 {
		size := len(b)
		if len(sizes) > 0 {
			size = min(max(sizes[0], 1), len(b))
			if len(sizes) > 1 {
				sizes = sizes[1:]
			}
		}
		pending = append(pending, b[:size]...)
		b = b[size:]
		for {
			ev, n, ok, err := p.Next(pending)
			if err != nil {
				var pe *ProtocolError
				if !errors.As(err, &pe) {
					t.Fatalf("error %v is not a *ProtocolError", err)
				}
				return events, err
			}
			if ok {
				events = append(events, kept{ev.Op, string(ev.Payload), ev.Code})
			}
			pending = pending[n:]
			if !ok {
				break
			}
		}
		if len(pending) >= MaxHeader {
			t.Fatalf("parser left %d bytes, more than part of a header", len(pending))
		}
		pending = bytes.Clone(pending)
	}
	return events, nil
}

func serverParser(o ParserOptions) *Parser {
	p := new(Parser)
	p.Init(o)
	return p
}

func maskedFrame(fin bool, op Opcode, payload string) []byte {
	b := AppendMaskedHeader(nil, fin, false, op, len(payload), testKey)
	start := len(b)
	b = append(b, payload...)
	Mask(b[start:], testKey)
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// RFC 6455 §5.7: the RFC's own bytes, read by the side that would get them.
func TestRFC6455Examples(t *testing.T) {
	big := strings.Repeat("x", 256)
	huge := strings.Repeat("y", 65536)
	f := func(client bool, in string, want ...kept) {
		t.Helper()
		p := serverParser(ParserOptions{Client: client, Limits: &Limits{MaxMessage: 1 << 20}})
		got, err := parse(t, p, []byte(in))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("parse(%.20q) = %v, %v, want %v", in, got, err, want)
		}
	}
	f(true, "\x81\x05Hello", kept{OpText, "Hello", 0})
	f(false, "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", kept{OpText, "Hello", 0})
	f(true, "\x01\x03Hel\x80\x02lo", kept{OpText, "Hello", 0})
	f(true, "\x89\x05Hello", kept{OpPing, "Hello", 0})
	f(false, "\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", kept{OpPong, "Hello", 0})
	f(true, "\x82\x7e\x01\x00"+big, kept{OpBinary, big, 0})
	f(true, "\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"+huge, kept{OpBinary, huge, 0})
}

func TestAppendWritesTheRFCsBytes(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("got %x, want %x", got, want)
		}
	}
	f(AppendFrame(nil, OpText, []byte("Hello")), "\x81\x05Hello")
	f(AppendMaskedFrame(nil, OpText, []byte("Hello"), testKey), "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58")
	f(append(AppendHeader(nil, false, false, OpText, 3), "Hel"...), "\x01\x03Hel")
	f(AppendHeader(nil, true, true, OpText, 7), "\xc1\x07")
	f(AppendHeader(nil, true, false, OpBinary, 125), "\x82\x7d")
	f(AppendHeader(nil, true, false, OpBinary, 126), "\x82\x7e\x00\x7e")
	f(AppendHeader(nil, true, false, OpBinary, 256), "\x82\x7e\x01\x00")
	f(AppendHeader(nil, true, false, OpBinary, 65535), "\x82\x7e\xff\xff")
	f(AppendHeader(nil, true, false, OpBinary, 65536), "\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00")
	f(AppendClose(nil, 1000, "bye"), "\x88\x05\x03\xe8bye")
	f(AppendClose(nil, CloseNoStatus, "ignored"), "\x88\x00")
	f(AppendMaskedClose(nil, 1000, "", [4]byte{}), "\x88\x82\x00\x00\x00\x00\x03\xe8")
}

func TestCloseReasonIsCutOnARuneBorder(t *testing.T) {
	f := func(reason string, want int) {
		t.Helper()
		b := AppendClose(nil, 4000, reason)
		got, err := parse(t, serverParser(ParserOptions{Client: true}), b)
		if err != nil || len(got) != 1 || got[0].code != 4000 || len(got[0].payload) != want || !strings.HasPrefix(reason, got[0].payload) {
			t.Errorf("reason of %d bytes arrives as %v, %v, want %d bytes", len(reason), got, err, want)
		}
	}
	f("", 0)
	f(strings.Repeat("a", 123), 123)
	f(strings.Repeat("a", 124), 123)
	f(strings.Repeat("a", 122)+"é", 122)
	f(strings.Repeat("a", 121)+"é!", 123)
	f(strings.Repeat("€", 42), 123)
	f(strings.Repeat("a", 120)+"😀", 120)
}

// Each refusal with its close code, then a twin beside it that is allowed.
func TestRefusals(t *testing.T) {
	no := func(in []byte, code uint16, opts ...ParserOptions) {
		t.Helper()
		o := append(opts, ParserOptions{})[0]
		for _, size := range []int{len(in), 1} {
			_, err := parse(t, serverParser(o), bytes.Clone(in), size)
			var pe *ProtocolError
			if !errors.As(err, &pe) || pe.Code != code {
				t.Errorf("%x in pieces of %d: %v, want close code %d", in[:min(len(in), 16)], size, err, code)
			}
		}
	}
	yes := func(in []byte, opts ...ParserOptions) {
		t.Helper()
		o := append(opts, ParserOptions{})[0]
		for _, size := range []int{len(in), 1} {
			if got, err := parse(t, serverParser(o), bytes.Clone(in), size); err != nil || len(got) == 0 {
				t.Errorf("%x in pieces of %d: %v, %v, want it accepted", in[:min(len(in), 16)], size, got, err)
			}
		}
	}
	m := func(fin bool, op Opcode, payload string) []byte { return maskedFrame(fin, op, payload) }
	first := func(b0 byte, frame []byte) []byte { frame[0] = b0; return frame }
	client, deflate := ParserOptions{Client: true}, ParserOptions{Deflate: true}

	// Reserved bits.
	for _, bit := range []byte{0x40, 0x20, 0x10, 0x70} {
		no(first(0x81|bit, m(true, OpText, "a")), 1002)
	}
	no(first(0xA1, m(true, OpText, "a")), 1002, deflate)
	no(first(0xC9, m(true, OpPing, "a")), 1002, deflate)
	no(join(m(false, OpText, "a"), first(0xC0, m(true, OpContinuation, "a"))), 1002, deflate)
	yes(m(true, OpText, "a"), deflate)

	// Reserved opcodes.
	for _, op := range []Opcode{3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF} {
		no(m(true, op, ""), 1002)
	}

	// Masking by role.
	no([]byte("\x81\x01a"), 1002)
	yes([]byte("\x81\x01a"), client)
	no(m(true, OpText, "a"), 1002, client)
	yes(m(true, OpText, "a"))

	// Control frames.
	for _, op := range []Opcode{OpPing, OpPong, OpClose} {
		no(m(false, op, ""), 1002)
		yes(m(true, op, ""))
	}
	no(m(true, OpPing, strings.Repeat("p", 126)), 1002)
	yes(m(true, OpPing, strings.Repeat("p", 125)))

	// Continuation.
	no(m(true, OpContinuation, "a"), 1002)
	no(m(false, OpContinuation, "a"), 1002)
	no(join(m(true, OpText, "a"), m(true, OpContinuation, "b")), 1002)
	no(join(m(false, OpText, "a"), m(true, OpText, "b")), 1002)
	no(join(m(false, OpText, ""), m(false, OpBinary, "")), 1002)
	yes(join(m(false, OpText, "a"), m(false, OpContinuation, ""), m(true, OpContinuation, "b")))

	// Lengths not minimal, or negative.
	no([]byte("\x82\xfe\x00\x7d"), 1002)
	yes([]byte("\x82\x7e\x00\x7e"+strings.Repeat("x", 126)), client)
	no([]byte("\x82\xff\x00\x00\x00\x00\x00\x00\xff\xff"), 1002)
	no([]byte("\x82\xff\x80\x00\x00\x00\x00\x00\x00\x01"), 1002)
	no([]byte("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 1002)

	// Sizes, from the header alone.
	small := ParserOptions{Limits: &Limits{MaxMessage: 100}}
	no([]byte("\x82\xff\x40\x00\x00\x00\x00\x00\x00\x00"), 1009)
	no([]byte("\x82\xff\x00\x00\x00\x00\x00\x01\x00\x01"), 1009)
	no([]byte("\x82\xe5"), 1009, small)
	yes(m(true, OpBinary, strings.Repeat("x", 100)), small)
	no(join(m(false, OpBinary, strings.Repeat("x", 99)), []byte("\x80\x82")), 1009, small)
	yes(join(m(false, OpBinary, strings.Repeat("x", 99)), m(true, OpContinuation, "x")), small)
	yes(m(true, OpPing, strings.Repeat("p", 125)), small)

	// Close.
	no(m(true, OpClose, "\x03"), 1002)
	no(m(true, OpClose, "\x03\xe8\xff"), 1007)
	no(m(true, OpClose, "\x03\xe8\xe2\x82"), 1007)
	yes(m(true, OpClose, "\x03\xe8\xe2\x82\xac"))
}

func TestCloseCodes(t *testing.T) {
	valid := func(c int) bool {
		switch c {
		case 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014:
			return true
		}
		return c >= 3000 && c < 5000
	}
	for c := range 1 << 16 {
		if got := ValidCloseCode(uint16(c)); got != valid(c) {
			t.Fatalf("ValidCloseCode(%d) = %v", c, got)
		}
	}
	for _, c := range []uint16{0, 999, 1000, 1004, 1005, 1006, 1014, 1015, 2999, 3000, 4999, 5000, 65535} {
		got, err := parse(t, new(Parser), maskedFrame(true, OpClose, string(binary.BigEndian.AppendUint16(nil, c))))
		if (err == nil) != valid(int(c)) || err == nil && (len(got) != 1 || got[0].code != c) {
			t.Errorf("close with code %d: %v, %v", c, got, err)
		}
	}
}

// Bad text is refused when the byte that spoils it arrives.
func TestBadTextFailsAtItsByte(t *testing.T) {
	f := func(text string, at int) { // at: index of the byte to fail at, -1: never
		t.Helper()
		frame := maskedFrame(true, OpText, text+strings.Repeat("x", 50))
		header := len(frame) - len(text) - 50
		p, failed := new(Parser), -1
		for i := range frame {
			// The header comes as one piece, then byte by byte.
			if i < header-1 {
				continue
			}
			from := i
			if i == header-1 {
				from = 0
			}
			if _, _, _, err := p.Next(bytes.Clone(frame[from : i+1])); err != nil {
				failed = i - header
				break
			}
		}
		if failed != at {
			t.Errorf("text %q failed at byte %d, want %d", text, failed, at)
		}
	}
	f("plain", -1)
	f("κόσμε", -1)
	f("a\xff", 1)
	f("a\x80", 1)
	f("\xc0\x80", 0)
	f("\xc1", 0)
	f("\xc2\x41", 1)
	f("\xe0\x9f\x80", 1)
	f("\xe0\xa0\x80", -1)
	f("\xed\xa0\x80", 1) // a surrogate
	f("\xed\x9f\xbf", -1)
	f("\xf0\x8f\xbf\xbf", 1)
	f("\xf0\x90\x80\x80", -1)
	f("\xf4\x8f\xbf\xbf", -1)
	f("\xf4\x90\x80\x80", 1) // past U+10FFFF
	f("\xf5", 0)
	f("\xe2\x82\x41", 2)
	f("\xf0\x9f\x98\x41", 3)
	f("\xf0\x9f\x98\x80\x80", 4)
}

func TestRuneMayBeCutByFragments(t *testing.T) {
	got, err := parse(t, new(Parser), join(maskedFrame(false, OpText, "a\xf0\x9f"), maskedFrame(true, OpPing, "\xff"),
		maskedFrame(false, OpContinuation, "\x98"), maskedFrame(true, OpContinuation, "\x80b")))
	if want := []kept{{OpPing, "\xff", 0}, {OpText, "a😀b", 0}}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	_, err = parse(t, new(Parser), join(maskedFrame(false, OpText, "a\xf0\x9f"), maskedFrame(true, OpContinuation, "")))
	var pe *ProtocolError
	if !errors.As(err, &pe) || pe.Code != 1007 {
		t.Errorf("message that ends inside a rune: %v, want close code 1007", err)
	}
	_, err = parse(t, new(Parser), maskedFrame(false, OpText, "a\xff"))
	if !errors.As(err, &pe) || pe.Code != 1007 {
		t.Errorf("bad fragment of an open message: %v, want close code 1007", err)
	}
}

func TestNothingCountsAfterClose(t *testing.T) {
	p := new(Parser)
	got, err := parse(t, p, join(maskedFrame(false, OpText, "cut off"), maskedFrame(true, OpClose, ""),
		maskedFrame(true, OpPing, ""), []byte("\xff\xff\xff")), 1)
	if want := []kept{{OpClose, "", CloseNoStatus}}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if p.asm != nil {
		t.Error("the message that the close cut off is still held")
	}
}

func TestErrorIsFinal(t *testing.T) {
	p := new(Parser)
	_, _, _, err1 := p.Next([]byte("\x83"))
	_, _, ok, err2 := p.Next(maskedFrame(true, OpText, "a"))
	if err1 == nil || err1 != err2 || ok {
		t.Errorf("errors %v then %v, want the same twice", err1, err2)
	}
}

func TestParserIsSmallAndIdleBetweenMessages(t *testing.T) {
	if n := unsafe.Sizeof(Parser{}); n > 64 {
		t.Errorf("Parser takes %d bytes", n)
	}
	in := join(maskedFrame(false, OpText, "one"), maskedFrame(true, OpPing, "ping"), maskedFrame(true, OpContinuation, "two"),
		compressedFrames(t, "three three three", 4), maskedFrame(true, OpText, "four"))
	p := serverParser(ParserOptions{Deflate: true})
	if _, _, _, err := p.Next(bytes.Clone(in[:7])); err != nil || p.Idle() {
		t.Errorf("inside a frame: idle %v, %v", p.Idle(), err)
	}
	p.Reset()
	if !p.Idle() {
		t.Error("not idle after Reset")
	}
	if got, err := parse(t, p, in, 1); err != nil || len(got) != 4 {
		t.Fatalf("got %v, %v", got, err)
	}
	if !p.Idle() {
		t.Errorf("not idle after the last message: %+v", p)
	}
}

// compressedFrames is a compressed message in masked fragments of n bytes.
func compressedFrames(t testing.TB, text string, n int) (b []byte) {
	t.Helper()
	c := Compress(nil, []byte(text), 0)
	op, rsv1 := OpText, true
	for {
		part := c[:min(n, len(c))]
		c = c[len(part):]
		b = AppendMaskedHeader(b, len(c) == 0, rsv1, op, len(part), testKey)
		start := len(b)
		b = append(b, part...)
		Mask(b[start:], testKey)
		if len(c) == 0 {
			return b
		}
		op, rsv1 = OpContinuation, false
	}
}

func TestWholeMessageIsNotCopied(t *testing.T) {
	in := maskedFrame(true, OpText, "Hello")
	ev, n, ok, err := new(Parser).Next(in)
	if !ok || err != nil || n != len(in) || string(ev.Payload) != "Hello" {
		t.Fatalf("Next = %v, %d, %v, %v", ev, n, ok, err)
	}
	if &ev.Payload[0] != &in[6] {
		t.Error("payload does not lie in the caller's bytes")
	}
	if cap(ev.Payload) != len(ev.Payload) {
		t.Error("appending to the payload would write on the caller's bytes")
	}
}

func TestNoAllocationPerMessage(t *testing.T) {
	frame := maskedFrame(true, OpText, `{"type":"ping"}`)
	in, p := make([]byte, len(frame)), new(Parser)
	f := func(what string, fn func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, fn); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	f("parse", func() {
		copy(in, frame)
		if _, _, ok, err := p.Next(in); !ok || err != nil {
			t.Fatal(ok, err)
		}
	})
	dst, payload := make([]byte, 0, 256), bytes.Repeat([]byte("x"), 200)
	f("AppendFrame", func() { dst = AppendFrame(dst[:0], OpText, payload) })
	f("AppendMaskedFrame", func() { dst = AppendMaskedFrame(dst[:0], OpText, payload, testKey) })
	f("AppendClose", func() { dst = AppendClose(dst[:0], 1000, "bye") })
	key := []byte("dGhlIHNhbXBsZSBub25jZQ==")
	f("AcceptKey", func() { _ = AcceptKey(key) })
	resp := make([]byte, 0, 512)
	f("AppendHandshakeResponse", func() { resp = AppendHandshakeResponse(resp[:0], key, ext, "") })
}

func TestClaimedSizeTakesNoMemory(t *testing.T) {
	p := serverParser(ParserOptions{Limits: &Limits{MaxMessage: 1 << 30}})
	in := []byte("\x82\xff\x00\x00\x00\x00\x20\x00\x00\x00kkkkabc") // claims 512 MiB
	if _, _, ok, err := p.Next(in); ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := cap(p.asm.buf); n > smallBuf {
		t.Errorf("three bytes are kept in %d", n)
	}
}

func TestMaskFitsAnyLengthAndPlace(t *testing.T) {
	for n := range 200 {
		for cut := 0; cut <= n; cut += 1 + n/7 {
			b, want := make([]byte, n), make([]byte, n)
			for i := range b {
				b[i] = byte(i * 7)
				want[i] = b[i] ^ testKey[i%4]
			}
			Mask(b[cut:], Mask(b[:cut], testKey))
			if !bytes.Equal(b, want) {
				t.Fatalf("masking %d bytes in parts of %d and %d went wrong", n, cut, n-cut)
			}
		}
	}
}

func BenchmarkMask(b *testing.B) {
	for _, n := range []int{16, 128, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			buf := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				Mask(buf, testKey)
			}
		})
	}
}

func BenchmarkParseSmallText(b *testing.B) {
	frame := maskedFrame(true, OpText, strings.Repeat("x", 100))
	in, p := make([]byte, len(frame)), new(Parser)
	for b.Loop() {
		copy(in, frame)
		if _, _, ok, err := p.Next(in); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
