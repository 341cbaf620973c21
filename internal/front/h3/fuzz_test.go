package h3

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"testing"
)

// FuzzFrames has any input, cut anywhere, read alike and within bounds.
func FuzzFrames(f *testing.F) {
	f.Add(get("/"), uint8(3))
	f.Add(append(post("/"), data("abc")...), uint8(1))
	f.Add(appendSettings(nil, 1<<10), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		read := func(r io.Reader) (all []uint64, err error) {
			in := frames{bufio.NewReaderSize(r, 16)}
			for {
				kind, n, err := in.next()
				if err != nil {
					return all, err
				}
				all = append(all, kind, n)
				if err := in.skip(n); err != nil {
					return all, err
				}
			}
		}
		whole, err1 := read(bytes.NewReader(b))
		pieces, err2 := read(&choppy{b, int(cut)%7 + 1})
		if !slices.Equal(whole, pieces) || err1.Error() != err2.Error() {
			t.Errorf("%v %v, in pieces %v %v", whole, err1, pieces, err2)
		}
		_ = checkSettings(b)
	})
}

// choppy reads a few bytes at a time.
type choppy struct {
	b []byte
	n int
}

func (c *choppy) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}
