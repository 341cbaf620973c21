package router

import "math/bits"

// knownMethods have a bit each in a leaf: those of RFC 9110 §9 and PATCH (RFC 5789).
// CONNECT has no path.
var knownMethods = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}

// methodBit returns the index of method in knownMethods, or -1.
func methodBit(method []byte) int {
	switch string(method) {
	case "GET":
		return 0
	case "HEAD":
		return 1
	case "POST":
		return 2
	case "PUT":
		return 3
	case "PATCH":
		return 4
	case "DELETE":
		return 5
	case "OPTIONS":
		return 6
	case "TRACE":
		return 7
	}
	return -1
}

// byMethod returns the rule of l for method, or -1.
func (r *Router) byMethod(l *leaf, method []byte) int32 {
	if l.known|l.custom == 0 {
		return l.any
	}
	if bit := methodBit(method); bit >= 0 {
		if l.known>>bit&1 == 0 {
			return l.any
		}
		before := bits.OnesCount16(l.known & (1<<bit - 1))
		return r.methods[l.first+uint32(before)].rule
	}
	custom := l.first + uint32(bits.OnesCount16(l.known))
	for _, m := range r.methods[custom : custom+uint32(l.custom)] {
		if m.method == string(method) {
			return m.rule
		}
	}
	return l.any
}
