package fronts

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A tunnel is one stream of an HTTP/2 connection of its own, opened by extended CONNECT
// (RFC 8441), as a connection.
type tunnel struct {
	net.Conn
	fr   *http2.Framer
	left []byte

	mu sync.Mutex // of writes
}

func newTunnel(nc net.Conn) *tunnel {
	t := &tunnel{Conn: nc, fr: http2.NewFramer(nc, nc)}
	t.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return t
}

// open opens the stream and returns its status, or what came in its place.
func (t *tunnel) open(target string) string {
	_ = t.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(t.Conn, http2.ClientPreface) // reading reports what came of it
	_ = t.fr.WriteSettings()
	f, err := t.fr.ReadFrame()
	if err != nil {
		return "no answer"
	}
	s, ok := f.(*http2.SettingsFrame)
	if !ok {
		return "no settings"
	}
	if v, _ := s.Value(http2.SettingEnableConnectProtocol); v != 1 {
		return "not offered"
	}
	_ = t.fr.WriteSettingsAck()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "http"}, {":path", target}, {":authority", "site.example"}, {"sec-websocket-version", "13"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into a buffer
	}
	_ = t.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b.Bytes(), EndHeaders: true})
	for {
		f, err := t.next()
		if err != nil {
			return "no answer"
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			if status := h.PseudoValue("status"); status != "200" {
				return "refused with " + status
			}
			return "200"
		}
	}
}

// next reads a frame, and answers those that want an answer.
func (t *tunnel) next() (http2.Frame, error) {
	f, err := t.fr.ReadFrame()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = t.fr.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = t.fr.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame, *http2.GoAwayFrame:
		err = io.EOF
	}
	return f, err
}

func (t *tunnel) Read(p []byte) (int, error) {
	for len(t.left) == 0 {
		f, err := t.next()
		if err != nil {
			return 0, err
		}
		if d, ok := f.(*http2.DataFrame); ok {
			t.left = bytes.Clone(d.Data())
			if len(t.left) == 0 && d.StreamEnded() {
				return 0, io.EOF
			}
		}
	}
	n := copy(p, t.left)
	t.left = t.left[n:]
	return n, nil
}

// Write takes no account of windows: what tests send is small.
func (t *tunnel) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) > 16384 {
		return 0, errors.New("more than one frame")
	}
	return len(p), t.fr.WriteData(1, false, p)
}
