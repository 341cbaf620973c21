package fronts

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/test/judge"
)

// A probe is a connection of HTTP/2 on which any frame can be written.
type probe struct {
	*http2.Framer
	t    *testing.T
	conn net.Conn
	dec  *hpack.Decoder

	heads   map[uint32][]string // "200", "103", and "trailer name: value"
	fields  map[uint32][]hpack.HeaderField
	bodies  map[uint32]*bytes.Buffer
	ended   map[uint32]bool
	resets  map[uint32]http2.ErrCode
	goaway  *http2.GoAwayFrame
	pongs   int
	acks    int
	windows map[uint32]int // WINDOW_UPDATE, summed up
	err     error
}

func newProbe(t *testing.T, s *judge.Server, settings ...http2.Setting) *probe {
	t.Helper()
	var conn net.Conn
	var err error
	if s.Authority != "" {
		cfg := judge.Trust(t, s.Authority)
		cfg.NextProtos = []string{"h2"}
		cfg.ServerName = "localhost"
		conn, err = tls.Dial("tcp", s.Public, cfg)
	} else {
		conn, err = net.Dial("tcp", s.Public)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(trial.Patience))
	p := &probe{Framer: http2.NewFramer(conn, conn), t: t, conn: conn, dec: hpack.NewDecoder(4096, nil), heads: map[uint32][]string{}, fields: map[uint32][]hpack.HeaderField{},
		bodies: map[uint32]*bytes.Buffer{}, ended: map[uint32]bool{}, resets: map[uint32]http2.ErrCode{}, windows: map[uint32]int{}}
	p.AllowIllegalWrites, p.AllowIllegalReads = true, true
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = p.WriteSettings(settings...)
	return p
}

func fields(kv ...string) []byte {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(kv); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return b.Bytes()
}

func getting(path string, more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "http", ":authority", "site.example", ":path", path}, more...)
}

func posting(path string, more ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":authority", "site.example", ":path", path}, more...)
}

// open starts a stream.
func (p *probe) open(id uint32, ends bool, kv ...string) {
	p.block(id, ends, fields(kv...))
}

func (p *probe) block(id uint32, ends bool, block []byte) {
	first := min(len(block), 16<<10)
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:first], EndStream: ends, EndHeaders: first == len(block)})
	for block = block[first:]; len(block) > 0; {
		n := min(len(block), 16<<10)
		_ = p.WriteContinuation(id, n == len(block), block[:n])
		block = block[n:]
	}
}

// step reads a frame; false: the connection has ended.
func (p *probe) step() bool {
	f, err := p.ReadFrame()
	if err != nil {
		p.err = err
		return false
	}
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			p.acks++
		} else {
			_ = p.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if f.IsAck() {
			p.pongs++
		} else {
			_ = p.WritePing(true, f.Data)
		}
	case *http2.HeadersFrame:
		if !f.HeadersEnded() {
			p.t.Error("a head in pieces")
		}
		list, err := p.dec.DecodeFull(f.HeaderBlockFragment())
		if err != nil {
			p.t.Errorf("a header block of the gateway's: %v", err)
		}
		if len(list) > 0 && list[0].Name == ":status" {
			p.heads[id] = append(p.heads[id], list[0].Value)
		} else {
			for _, h := range list {
				p.heads[id] = append(p.heads[id], "trailer "+h.Name+": "+h.Value)
			}
		}
		p.fields[id] = append(p.fields[id], list...)
		p.ended[id] = p.ended[id] || f.StreamEnded()
	case *http2.DataFrame:
		if p.bodies[id] == nil {
			p.bodies[id] = &bytes.Buffer{}
		}
		p.bodies[id].Write(f.Data())
		p.ended[id] = p.ended[id] || f.StreamEnded()
	case *http2.RSTStreamFrame:
		p.resets[id] = f.ErrCode
	case *http2.WindowUpdateFrame:
		p.windows[id] += int(f.Increment)
	case *http2.GoAwayFrame:
		c := *f
		p.goaway = &c
	}
	return true
}

func (p *probe) until(ok func() bool) {
	for !ok() && p.step() {
	}
}

// outcome reads until stream id is over and says how: its heads, its body, and what ended it.
func (p *probe) outcome(id uint32) string {
	isReset := func() bool { _, ok := p.resets[id]; return ok }
	p.until(func() bool { return p.ended[id] || isReset() || p.goaway != nil && p.goaway.ErrCode != 0 })
	out := strings.Join(p.heads[id], ", ")
	if b := p.bodies[id]; b != nil && b.Len() > 0 {
		out += " " + strconv.Quote(b.String()[:min(b.Len(), 60)])
	}
	switch {
	case p.goaway != nil && p.goaway.ErrCode != 0:
		out += " goaway " + p.goaway.ErrCode.String()
	case isReset():
		out += " reset " + p.resets[id].String()
	case !p.ended[id]:
		out += fmt.Sprintf(" nothing: %v", p.err)
	}
	return strings.TrimSpace(out)
}

// alive reports whether the connection still serves, by a request on a later stream.
func (p *probe) alive(id uint32) string {
	p.open(id, true, getting("/who")...)
	if got := p.outcome(id); got != `200 "site.example"` {
		return "; then " + got
	}
	return ""
}

// A recorder is the backend, and remembers what it was asked.
type recorder struct {
	over chan struct{} // closed when the test ends
	*httptest.Server
	mu        sync.Mutex
	requested []string
}

func newRecorder(t *testing.T) *recorder {
	b := &recorder{over: make(chan struct{})}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(func() { close(b.over); b.Close() })
	return b
}

func (b *recorder) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requested)
}

func (b *recorder) serve(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.requested = append(b.requested, r.Method+" "+r.RequestURI)
	b.mu.Unlock()
	switch r.URL.Path {
	case "/who":
		_, _ = io.WriteString(w, r.Host)
	case "/unread":
		<-b.over
	case "/echo":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	case "/header":
		_, _ = fmt.Fprintf(w, "%q", r.Header[http.CanonicalHeaderKey(r.URL.RawQuery)])
	case "/trailer": // the request's, as the answer's
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", r.Trailer.Get("X-Sum"))
	case "/early":
		_ = http.NewResponseController(w).EnableFullDuplex() // net/http waits for the body otherwise
		w.WriteHeader(http.StatusForbidden)
	case "/hints":
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "done")
	case "/status":
		n, _ := strconv.Atoi(r.URL.RawQuery)
		w.WriteHeader(n)
	case "/big":
		n, _ := strconv.Atoi(r.URL.RawQuery)
		_, _ = io.Copy(w, io.LimitReader(endless{}, int64(n)))
	case "/length":
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "hello")
	case "/cut":
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "hello")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/hang":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
