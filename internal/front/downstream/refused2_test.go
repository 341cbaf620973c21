package downstream_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

// framePeer is a backend of raw frames: f gets each frame but SETTINGS.
func framePeer(t *testing.T, f func(fr *http2.Framer, frame http2.Frame)) string {
	return wiretest.Peer(t, func(_ int, c *wiretest.Conn) {
		preface := make([]byte, len(h2.Preface))
		if _, err := io.ReadFull(c.R, preface); err != nil || string(preface) != h2.Preface {
			return
		}
		fr := http2.NewFramer(c, c.R)
		_ = fr.WriteSettings()
		for {
			frame, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if s, ok := frame.(*http2.SettingsFrame); ok {
				if !s.IsAck() {
					_ = fr.WriteSettingsAck()
				}
				continue
			}
			f(fr, frame)
		}
	})
}

func okHead() []byte {
	var b bytes.Buffer
	_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	return b.Bytes()
}

// What a backend says it has not processed goes to another one, even a POST; what it may have
// processed does not.
func TestUnprocessedRequestsGoElsewhere(t *testing.T) {
	good := newBackend2(t, false, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	f := func(what string, wantAll bool, end func(fr *http2.Framer, id uint32)) {
		t.Helper()
		bad := framePeer(t, func(fr *http2.Framer, frame http2.Frame) {
			if head, ok := frame.(*http2.HeadersFrame); ok {
				end(fr, head.StreamID)
			}
		})
		g := start(t, settings{cluster: upstream.Config{Protocol: "http2", Retry: upstream.RetryConfig{MinPerSecond: 1000}}, loops: oneLoop}, bad, good.addr())
		failed := 0
		for range 6 {
			res, err := http.Post(g.url("/"), "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 200 || string(b) != "hello" {
				failed++
			}
		}
		if failed > 0 == wantAll {
			t.Errorf("%s: %d of 6 failed", what, failed)
		}
	}
	f("REFUSED_STREAM", true, func(fr *http2.Framer, id uint32) { _ = fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
	f("GOAWAY before it", true, func(fr *http2.Framer, id uint32) { _ = fr.WriteGoAway(id-1, http2.ErrCodeNo, nil) })
	f("another reset", false, func(fr *http2.Framer, id uint32) { _ = fr.WriteRSTStream(id, http2.ErrCodeInternal) })
}

// A client that leaves in the middle of a reply resets its stream alone.
func TestAClientThatLeavesResetsItsStream(t *testing.T) {
	reset := make(chan http2.ErrCode, 1)
	addr := framePeer(t, func(fr *http2.Framer, frame http2.Frame) {
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: okHead(), EndHeaders: true, EndStream: frame.StreamID > 1})
		case *http2.RSTStreamFrame:
			reset <- frame.ErrCode
		}
	})
	g := start(t, settings{cluster: upstream.Config{Protocol: "http2"}, loops: oneLoop}, addr)
	c := g.dial()
	c.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	c.Head()
	c.Close()
	if code := <-reset; code != http2.ErrCodeCancel {
		t.Errorf("reset with %v", code)
	}
	if got := fetch(t, g.url("/")); got != "200 " {
		t.Errorf("the next request on the connection: %s", got)
	}
}
