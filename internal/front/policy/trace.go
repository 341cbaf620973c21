package policy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// Trace is a request's trace context (W3C Trace Context).
type Trace struct {
	ID     [16]byte
	Parent [8]byte // the caller's span; zero: the trace began here
	Span   [8]byte // ours, the upstream's parent
	Flags  byte    // bit 0: sampled, bit 1: the id is random
}

// Bits of Trace.Flags.
const (
	FlagSampled = 1
	FlagRandom  = 2
)

// ParseTraceparent reads a traceparent (§3.2). Of a version to come it takes what
// version 00 knows, as §3.2.4 requires. ok is false for what must be ignored.
func ParseTraceparent(v []byte) (t Trace, ok bool) {
	const size = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(v) < size || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return t, false
	}
	var version, flags [1]byte
	if !lowerHex(version[:], v[:2]) || !lowerHex(t.ID[:], v[3:35]) || !lowerHex(t.Parent[:], v[36:52]) || !lowerHex(flags[:], v[53:55]) {
		return Trace{}, false
	}
	t.Flags = flags[0] & (FlagSampled | FlagRandom)
	switch {
	case version[0] == 0xff, version[0] == 0 && len(v) != size, len(v) > size && v[size] != '-':
		return Trace{}, false
	case t.ID == [16]byte{}, t.Parent == [8]byte{}:
		return Trace{}, false
	}
	return t, true
}

// lowerHex decodes src, in which upper-case digits are not allowed (§3.2.2).
func lowerHex(dst, src []byte) bool {
	for i := range dst {
		hi, lo := hexDigit(src[2*i]), hexDigit(src[2*i+1])
		if hi|lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// AppendTraceparent appends t as the upstream gets it: our span is its parent.
func (t *Trace) AppendTraceparent(dst []byte) []byte {
	dst = append(dst, "00-"...)
	dst = hex.AppendEncode(dst, t.ID[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, t.Span[:])
	dst = append(dst, '-')
	return hex.AppendEncode(dst, []byte{t.Flags})
}

// continueTrace continues the trace of a request, or starts one. sample is the
// threshold below which one that starts here is marked as sampled.
func continueTrace(fields http1.Fields, sample uint32) (t Trace) {
	ok := false
	if fields.Count("traceparent") == 1 { // two of them say nothing (§2.2)
		t, ok = ParseTraceparent(fields.Get("traceparent"))
	}
	if !ok {
		for t.ID == [16]byte{} {
			binary.LittleEndian.PutUint64(t.ID[:], rand.Uint64())
			binary.LittleEndian.PutUint64(t.ID[8:], rand.Uint64())
		}
		t.Flags = FlagRandom
		if sample > 0 && rand.Uint32() <= sample {
			t.Flags |= FlagSampled
		}
	}
	for t.Span == [8]byte{} {
		binary.LittleEndian.PutUint64(t.Span[:], rand.Uint64())
	}
	return t
}

// appendTrace appends traceparent, and tracestate if the trace is the caller's.
func appendTrace(dst []byte, x *Exchange) []byte {
	dst = append(dst, "traceparent: "...)
	dst = x.Trace.AppendTraceparent(dst)
	dst = append(dst, "\r\n"...)
	if x.Trace.Parent == [8]byte{} {
		return dst
	}
	for i := range x.Fields {
		if f := &x.Fields[i]; len(f.Name) == len("tracestate") && http1.EqualFold(f.Name, "tracestate") && len(f.Value) <= 1024 {
			dst = http1.AppendField(dst, "tracestate", f.Value)
		}
	}
	return dst
}
