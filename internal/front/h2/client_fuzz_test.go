package h2

import (
	"bytes"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// reading is what a caller makes of a reply: how it ended, and its head and body.
type reading struct {
	head, body, trailer []byte
	ended               bool
}

// read reads b as HTTP/1.1; ok is false if it is none.
func read(b []byte) (r reading, ok bool) {
	var res http1.Response
	for {
		n, err := http1.ParseResponse(&res, b, http1.Limits{MaxHead: 64 << 10, MaxLine: 64 << 10, MaxFields: 1 << 10}, "GET")
		if err != nil {
			return r, false
		}
		if n == 0 {
			return r, len(b) == 0 // heads come whole
		}
		r.head, b = append(r.head, b[:n]...), b[n:]
		if res.Status >= 200 {
			break
		}
	}
	var chunks http1.Chunked
	if res.Body != http1.BodyChunked {
		r.ended = true
		return r, len(b) == 0
	}
	for len(b) > 0 {
		data, n, done, err := chunks.DecodeTrailer(b, &r.trailer)
		if err != nil || done && n != len(b) {
			return r, false
		}
		r.body, r.ended, b = append(r.body, data...), done, b[n:]
	}
	return r, true
}

// FuzzReplies sends any frames as a backend: what callers get is HTTP/1.1 in order, or the
// end of their call, and the same however the bytes were split.
func FuzzReplies(f *testing.F) {
	frames := func(write func(fr *http2.Framer)) []byte {
		var b bytes.Buffer
		fr := http2.NewFramer(&b, nil)
		fr.AllowIllegalWrites = true
		write(fr)
		return b.Bytes()
	}
	head := func(fr *http2.Framer, ends bool, fields ...string) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(fields...), EndStream: ends, EndHeaders: true})
	}
	f.Add(frames(func(fr *http2.Framer) {
		head(fr, false, ":status", "200", "x", "y")
		_ = fr.WriteData(1, false, []byte("hello"))
		_ = fr.WriteDataPadded(1, false, []byte("hello"), make([]byte, 7))
		head(fr, true, "grpc-status", "0")
	}), 9)
	f.Add(frames(func(fr *http2.Framer) {
		head(fr, false, ":status", "103", "link", "</a>")
		head(fr, false, ":status", "200", "content-length", "5")
		_ = fr.WriteData(1, true, []byte("hello"))
		_ = fr.WriteGoAway(1, http2.ErrCodeNo, nil)
	}), 20)
	f.Add(frames(func(fr *http2.Framer) {
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		_ = fr.WritePing(false, [8]byte{})
		_ = fr.WriteWindowUpdate(1, 5)
		_ = fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
	}), 1)
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		if len(sent) > 64<<10 {
			return
		}
		whole := receiving(t, sent, len(sent))
		split := receiving(t, sent, max(1, min(cut, len(sent))))
		same := bytes.Equal(whole.head, split.head) && whole.ended == split.ended
		if same && whole.ended { // of a body that was cut, as much is shown as had come
			same = bytes.Equal(whole.body, split.body) && bytes.Equal(whole.trailer, split.trailer)
		}
		if !same {
			t.Errorf("in one piece %q %q %q, in pieces of %d %q %q %q", whole.head, whole.body, whole.trailer, cut, split.head, split.body, split.trailer)
		}
	})
}

// receiving lets a caller read what a backend sends in pieces of n bytes.
func receiving(t *testing.T, sent []byte, n int) reading {
	t.Helper()
	p := calling(t, "epoll", usual...)
	k := p.call(get1)
	p.until("the request", p.requested(1))
	for b := sent; len(b) > 0; {
		m := min(n, len(b))
		if _, err := p.conn.Write(b[:m]); err != nil {
			break
		}
		b = b[m:]
	}
	_ = p.conn.(interface{ CloseWrite() error }).CloseWrite()
	trial.Eventually(t, "the end of the call", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.closed })
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := read(k.got.Bytes())
	if !ok {
		t.Errorf("what the caller got is not HTTP/1.1: %q", k.got.Bytes())
	}
	p.conn.Close()
	return r
}
