package http1

import "bytes"

// AppendWithoutCookie appends the value of a Cookie field without the cookies called name.
// It appends nothing if no other is there.
func AppendWithoutCookie(dst, value []byte, name string) []byte {
	start := len(dst)
	for rest := value; rest != nil; {
		var pair []byte
		pair, rest, _ = bytes.Cut(rest, []byte(";")) // rest is nil behind the last
		pair = bytes.Trim(pair, " \t")
		if n, _, _ := bytes.Cut(pair, []byte("=")); len(pair) == 0 || EqualFold(bytes.Trim(n, " \t\""), name) {
			continue
		}
		if len(dst) > start {
			dst = append(dst, "; "...)
		}
		dst = append(dst, pair...)
	}
	return dst
}
