package websocket

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const fuzzLimit = 300

// sizesOf makes piece sizes of fuzzed bytes; the last one is used to the end.
func sizesOf(b []byte) []int {
	sizes := []int{}
	for _, c := range b {
		sizes = append(sizes, 1+int(c)%40)
	}
	return append(sizes, 1)
}

// FuzzParserSplit plays any bytes at once, byte by byte and in odd pieces: the
// events and the error must be the same, nothing may panic, and no event or
// buffer may pass the limit.
func FuzzParserSplit(f *testing.F) {
	add := func(b []byte) {
		f.Add(b, []byte{0, 3, 17}, false, true)
		f.Add(b, []byte{5}, false, false)
	}
	add([]byte("\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"))
	add(join(maskedFrame(false, OpText, "Hel"), maskedFrame(true, OpPing, "p"), maskedFrame(true, OpContinuation, "lo")))
	add(join(maskedFrame(true, OpBinary, strings.Repeat("x", 200)), maskedFrame(true, OpClose, "\x03\xe8bye")))
	add(join(maskedFrame(false, OpText, "\xf0\x9f"), maskedFrame(true, OpContinuation, "\x98\x80")))
	add(maskedFrame(true, OpText, "a\xed\xa0\x80"))
	add(compressedFrames(f, "compressed compressed compressed", 5))
	add(compressedFrames(f, strings.Repeat("bomb", 500), 9))
	add(join(compressedFrames(f, "one", 2), maskedFrame(true, OpText, "two"), compressedFrames(f, "κόσμε", 3)))
	add([]byte("\x82\xff\x80\x00\x00\x00\x00\x00\x00\x01"))
	f.Add([]byte("\x81\x05Hello\x01\x03Hel\x80\x02lo\x89\x05Hello\x88\x00"), []byte{1, 2}, true, true)

	f.Fuzz(func(t *testing.T, b, pieces []byte, client, deflate bool) {
		o := ParserOptions{Client: client, Deflate: deflate, Limits: &Limits{MaxMessage: fuzzLimit}}
		play := func(sizes ...int) string {
			p := serverParser(o)
			got, err := parse(t, p, bytes.Clone(b), sizes...)
			for _, ev := range got {
				if len(ev.payload) > fuzzLimit {
					t.Fatalf("%v of %d bytes passed the limit", ev.op, len(ev.payload))
				}
				if ev.op == OpText && !utf8.ValidString(ev.payload) {
					t.Fatalf("bad text %q passed", ev.payload)
				}
			}
			if p.asm != nil && cap(p.asm.buf) > smallBuf {
				t.Fatalf("%d bytes kept with a limit of %d", cap(p.asm.buf), fuzzLimit)
			}
			if err != nil && p.asm != nil {
				t.Fatal("buffers kept after an error")
			}
			return fmt.Sprintf("%+q %v", fmt.Sprint(got), err)
		}
		whole := play()
		if got := play(1); got != whole {
			t.Errorf("byte by byte: %s\nat once: %s", got, whole)
		}
		if sizes := sizesOf(pieces); play(sizes...) != whole {
			t.Errorf("in pieces of %v: %s\nat once: %s", sizes, play(sizes...), whole)
		}
	})
}

// FuzzRoundTrip writes a message as client and server, plain, compressed and in
// fragments, and reads it back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("Hello"), uint32(0x3d21fa37), byte(2), true)
	f.Add([]byte(""), uint32(0), byte(0), false)
	f.Add([]byte("κόσμε\xff"), uint32(1), byte(1), true)
	f.Add(bytes.Repeat([]byte("abc"), 1000), uint32(0xFFFFFFFF), byte(126), false)
	f.Fuzz(func(t *testing.T, payload []byte, k uint32, cut byte, text bool) {
		op := OpBinary
		if text {
			op = OpText
		}
		key := [4]byte{byte(k), byte(k >> 8), byte(k >> 16), byte(k >> 24)}
		check := func(client bool, in []byte) {
			t.Helper()
			o := ParserOptions{Client: client, Deflate: true, Limits: &Limits{MaxMessage: max(1, len(payload))}}
			for _, sizes := range [][]int{nil, {int(cut), 3, 1000}} {
				got, err := parse(t, serverParser(o), bytes.Clone(in), sizes...)
				if text && !utf8.Valid(payload) {
					var pe *ProtocolError
					if !errors.As(err, &pe) || pe.Code != CloseInvalidData {
						t.Fatalf("bad text came through: %v, %v", got, err)
					}
					continue
				}
				if err != nil || !slices.Equal(got, []kept{{op, string(payload), 0}}) {
					t.Fatalf("wrote %v %s, read %v, %v", op, hex.EncodeToString(payload), got, err)
				}
			}
		}
		at := min(int(cut), len(payload))
		check(false, AppendMaskedFrame(nil, op, payload, key))
		check(true, AppendFrame(nil, op, payload))
		check(true, join(AppendHeader(nil, false, false, op, at), payload[:at], AppendFrame(nil, OpContinuation, payload[at:])))
		c := Compress(nil, payload, int(cut)%10)
		check(true, join(AppendHeader(nil, true, true, op, len(c)), c))
		at = min(at, len(c))
		check(true, join(AppendHeader(nil, false, true, op, at), c[:at], AppendFrame(nil, OpContinuation, c[at:])))
	})
}

// FuzzHandshakeFields throws any field values at the readers of lists.
func FuzzHandshakeFields(f *testing.F) {
	f.Add("permessage-deflate; server_max_window_bits=10", "websocket", "dGhlIHNhbXBsZSBub25jZQ==", "chat, superchat")
	f.Add(`a; b="\",permessage-deflate", permessage-deflate;`, "h2c, WebSocket", "", ",,")
	f.Fuzz(func(t *testing.T, extensions, upgrade, key, protocols string) {
		if d, ok := NegotiateDeflate([]byte(extensions)); ok {
			if _, used, sound := acceptDeflate([]byte(d.String())); !used || !sound {
				t.Errorf("our answer %q to %q is not sound", d, extensions)
			}
		}
		if p := SelectSubprotocol([]byte(protocols), "chat"); p == "chat" && !strings.Contains(protocols, "chat") {
			t.Errorf("chose what %q does not offer", protocols)
		}
		fields := map[string]string{"Upgrade": upgrade, "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
		got, err := CheckUpgrade("GET", true, func(name string) []byte { return []byte(fields[name]) })
		if err == nil && len(got) != 24 {
			t.Errorf("key %q accepted", got)
		}
	})
}
