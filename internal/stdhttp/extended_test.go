package stdhttp_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-gateway/weir/websocket"
)

// TestWebSocketOverHTTP2 runs itself again with what net/http asks for to offer
// RFC 8441: it reads the environment when the process starts.
func TestWebSocketOverHTTP2(t *testing.T) {
	if !strings.Contains(os.Getenv("GODEBUG"), "http2xconnect=1") {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestWebSocketOverHTTP2$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG=http2xconnect=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	s := newSite(t, nil, nil, nil, overHTTP2)
	fromClient, toServer := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodConnect, s.url+"/ws?channel=a&hello=1", fromClient)
	req.Header.Set(":protocol", "websocket")
	req.Header.Set("Sec-WebSocket-Version", "13")
	// net/http's own client refuses the pseudo-header, and has nothing in its place.
	tr := &http2.Transport{TLSClientConfig: s.c.Transport.(*http.Transport).TLSClientConfig.Clone()} //nolint:forcetypeassert,staticcheck // httptest's; above
	tr.TLSClientConfig.NextProtos = []string{"h2"}                                                   //nolint:staticcheck // above
	defer tr.CloseIdleConnections()                                                                  //nolint:staticcheck // above
	res, err := tr.RoundTrip(req)                                                                    //nolint:staticcheck // above
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 || res.ProtoMajor != 2 {
		t.Fatalf("%s %s", res.Proto, res.Status)
	}
	c := websocket.NewConn(&stream{res.Body, toServer}, websocket.ConnOptions{Client: true})
	defer c.CloseNow()
	if _, b, err := c.Read(t.Context()); err != nil || !strings.Contains(string(b), "subscribed") {
		t.Fatalf("%q %v", b, err)
	}
	s.do("POST", "/api/publish", `{"channel":"a","data":{"n":1}}`, "X-API-Key", key)
	if _, b, err := c.Read(t.Context()); err != nil || !strings.Contains(string(b), `"data":{"n":1}`) {
		t.Errorf("%q %v", b, err)
	}
	if err := c.Write(websocket.OpText, []byte(`{"type":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(t.Context()); err != nil || string(b) != `{"type":"pong"}` {
		t.Errorf("%q %v", b, err)
	}
}

// stream is both halves of an HTTP/2 stream as a net.Conn.
type stream struct {
	io.ReadCloser
	w *io.PipeWriter
}

func (s *stream) Write(b []byte) (int, error)      { return s.w.Write(b) }
func (s *stream) Close() error                     { _ = s.w.Close(); return s.ReadCloser.Close() }
func (s *stream) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *stream) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
