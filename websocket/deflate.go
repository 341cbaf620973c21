package websocket

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
)

// deflateTail is put behind a compressed message before it is inflated: the four
// bytes its sender took off (RFC 7692 §7.2.2), then an empty last block, so that
// a sound message ends with io.EOF and a cut one does not.
const deflateTail = "\x00\x00\xff\xff" + "\x01\x00\x00\xff\xff"

// flushTail is how a flushed deflate stream ends; it is not sent (§7.2.1).
const flushTail = "\x00\x00\xff\xff"

// compressedMost is how many compressed bytes a message of most bytes may have.
// Deflate grows what it cannot shrink by a few bytes in a block, fixed codes by an
// eighth; no honest encoder needs more than that.
func compressedMost(most int) int { return most + most/8 + 256 }

// inflater is a deflate reader with the source it reads.
type inflater struct {
	src bytes.Reader
	r   io.ReadCloser
}

var inflaters = sync.Pool{New: func() any {
	f := new(inflater)
	f.r = flate.NewReader(&f.src)
	return f
}}

// inflate inflates a whole message into a buffer of its own and stops at the first
// byte past most. It appends the tail to *src, so src may move.
func inflate(src *[]byte, most int) ([]byte, *ProtocolError) {
	*src = append(grow(*src, len(deflateTail), cap(*src)), deflateTail...)
	f := inflaters.Get().(*inflater)
	defer func() {
		f.src.Reset(nil)
		inflaters.Put(f)
	}()
	f.src.Reset(*src)
	if err := f.r.(flate.Resetter).Reset(&f.src, nil); err != nil {
		return nil, errDeflate
	}
	out := getBuf(min(4*len(*src), most))
	for {
		out = grow(out, 1, most+1)
		n, err := f.r.Read(out[len(out):min(cap(out), most+1)])
		out = out[:len(out)+n]
		switch {
		case len(out) > most:
			return out, errTooBig
		case err == io.EOF:
			// A sender may end its stream with a last block of its own and one zero
			// byte (§7.2.3.4); data behind that would be lost, so it is refused.
			if f.src.Len() > len(deflateTail)+1 {
				return out, errDeflate
			}
			return out, nil
		case err != nil:
			return out, errDeflate
		}
	}
}

// appendWriter is an io.Writer onto a slice.
type appendWriter struct{ b []byte }

func (w *appendWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

// deflater is a deflate writer with the slice it writes to. w is nil for level 0.
type deflater struct {
	out appendWriter
	w   *flate.Writer
}

// deflaters holds idle deflaters by level.
var deflaters [10]sync.Pool

// Compress appends payload as the payload of one compressed message, to be sent in
// a frame with rsv1 set. It depends on no other message, so one result serves any
// number of connections (those whose Deflate.Fits allows it).
//
// Level 0 keeps no state and little memory, compresses a little less and is right
// for most; 1 (fast) to 9 (small) use pooled writers of some hundred KiB each.
// Other levels count as 0.
func Compress(dst, payload []byte, level int) []byte {
	if len(payload) == 0 {
		return append(dst, 0) // an empty message is one zero byte (§7.2.3.6)
	}
	if level < 0 || level > 9 {
		level = 0
	}
	f, _ := deflaters[level].Get().(*deflater)
	if f == nil {
		f = newDeflater(level)
	}
	f.out.b = dst
	if err := f.deflate(payload); err != nil {
		// The sink never fails and the level is valid.
		panic(fmt.Sprintf("websocket: deflate: %v", err))
	}
	dst = f.out.b
	f.out.b = nil
	deflaters[level].Put(f)
	return dst[:len(dst)-len(flushTail)]
}

func newDeflater(level int) *deflater {
	f := new(deflater)
	if level > 0 {
		w, err := flate.NewWriter(&f.out, level)
		if err != nil {
			panic(fmt.Sprintf("websocket: deflate level %d: %v", level, err))
		}
		f.w = w
	}
	return f
}

func (f *deflater) deflate(payload []byte) error {
	if f.w == nil {
		return flate.StatelessDeflate(&f.out, payload, false, nil)
	}
	f.w.Reset(&f.out)
	if _, err := f.w.Write(payload); err != nil {
		return err
	}
	return f.w.Flush()
}
