package downstream

import (
	"bytes"
	"encoding/base64"
	"testing"
)

// FuzzBase64Stream: in whatever pieces base64 comes, it decodes to the same, and what is no
// base64 as a whole is none in pieces.
func FuzzBase64Stream(f *testing.F) {
	f.Add("AAAAAAVoZWxsbw==", 3)
	f.Add("AA==AAA=AAAA", 1)
	f.Add("AAA", 2)
	f.Add("A===", 5)
	f.Add("AA=A\n", 4)
	f.Fuzz(func(t *testing.T, text string, size int) {
		want, good := []byte(nil), len(text)%4 == 0
		for i := 0; good && i < len(text); i += 4 {
			b, err := base64.StdEncoding.Strict().DecodeString(text[i : i+4])
			if _, lax := base64.StdEncoding.DecodeString(text[i : i+4]); lax == nil && err != nil {
				return // bits that are not zero: either reading is fine
			}
			want, good = append(want, b...), err == nil && len(b) > 0
		}
		var s base64Stream
		var got []byte
		ok := true
		for rest := []byte(text); ok && len(rest) > 0; {
			n := min(max(size%7, 1), len(rest))
			got, ok = s.decode(got, rest[:n])
			rest = rest[n:]
		}
		if ok = ok && s.n == 0; ok != good || ok && !bytes.Equal(got, want) {
			t.Errorf("%q in pieces: %q %v, want %q %v", text, got, ok, want, good)
		}
	})
}
