// Package redirect is the plaintext listener beside one that speaks TLS: it answers the HTTP-01
// challenges of a CA (RFC 8555 §8.3) and redirects every other request to https. It speaks
// HTTP/1.1, the only version that CAs and browsers use without TLS.
package redirect

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Config of a Server.
type Config struct {
	// HeadTimeout bounds the time for a request's head, KeepAlive that between two requests.
	HeadTimeout, KeepAlive time.Duration
	// Head bounds a request's head.
	Head http1.Limits
	// Prefix starts the paths of challenges; a token follows.
	Prefix string
	// Port is the TLS listener's, which redirects lead to. Any goroutine may call it.
	Port func() uint16
	// Answer returns the answer to a challenge without blocking, Find also where that takes
	// a while.
	Answer func(token string) (string, bool)
	Find   func(ctx context.Context, token string) (string, bool)
}

// A Server serves the connections of the plaintext listener.
type Server struct {
	// Fixed at New.
	cfg Config

	// Any goroutine.
	ctx      context.Context
	cancel   context.CancelFunc
	finding  sync.WaitGroup
	searches atomic.Int64
}

// maxSearches bounds the requests that wait for Find; others are answered as unknown.
const maxSearches = 64

// New returns a Server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Accept returns the handler of a new connection.
func (s *Server) Accept(c *eventloop.Conn) eventloop.Handler {
	c.SetTimer(int64(s.cfg.HeadTimeout))
	return &conn{s: s}
}

// Close waits for searches under way. The loops must have ended.
func (s *Server) Close() {
	s.cancel()
	s.finding.Wait()
}

// conn is a connection to the plaintext listener. Owned by its loop.
type conn struct {
	s       *Server
	seen    int  // bytes of an incomplete head that were looked at
	later   bool // there was a request: the next head's time starts with its first byte
	head    bool // the request's method is HEAD
	waiting bool // for Find
	ended   bool // the client sends no more
}

var _ eventloop.Handler = (*conn)(nil)

// Data implements eventloop.Handler.
func (h *conn) Data(c *eventloop.Conn, b []byte) int {
	if c.Closing() {
		return len(b)
	}
	used := 0
	for used < len(b) {
		if h.waiting {
			c.PauseReading()
			break
		}
		n := h.one(c, b[used:])
		if n == 0 {
			break
		}
		used += n
		if c.Closing() {
			return len(b)
		}
	}
	return used
}

// one serves the request at the start of b and returns its length; 0: it is not complete.
func (h *conn) one(c *eventloop.Conn, b []byte) int {
	if h.seen > 0 && h.seen <= len(b) && http1.HeadPending(b, h.seen, h.s.cfg.Head) {
		h.seen = len(b)
		return 0
	}
	var req http1.Request
	n, err := http1.ParseRequest(&req, b, h.s.cfg.Head)
	if err != nil {
		h.head = false
		h.answer(c, http.StatusBadRequest, "", "bad request\n", false)
		return len(b)
	}
	if n == 0 {
		if h.seen == 0 && h.later {
			c.SetTimer(int64(h.s.cfg.HeadTimeout))
		}
		h.seen = len(b)
		return 0
	}
	h.seen, h.later, h.head = 0, true, string(req.Method) == http.MethodHead
	h.serve(c, &req)
	return n
}

// serve answers a request. One with a body ends the connection: the body is not read.
func (h *conn) serve(c *eventloop.Conn, req *http1.Request) {
	keepAlive := req.KeepAlive && !req.Chunked && req.ContentLength <= 0
	token, challenge := strings.CutPrefix(string(req.Path), h.s.cfg.Prefix)
	if !challenge {
		h.redirect(c, req, keepAlive)
		return
	}
	if m := string(req.Method); m != http.MethodGet && m != http.MethodHead {
		h.answer(c, http.StatusMethodNotAllowed, "Allow: GET, HEAD\r\n", "method not allowed\n", keepAlive)
		return
	}
	if answer, ok := h.s.cfg.Answer(token); ok {
		h.challenge(c, answer, true, keepAlive)
		return
	}
	if h.s.searches.Add(1) > maxSearches {
		h.s.searches.Add(-1)
		h.challenge(c, "", false, keepAlive)
		return
	}
	h.waiting = true
	c.SetTimer(0)
	h.s.finding.Go(func() {
		answer, ok := h.s.cfg.Find(h.s.ctx, token)
		h.s.searches.Add(-1)
		c.Loop().Post(func() {
			if c.Closing() {
				return
			}
			h.waiting = false
			h.challenge(c, answer, ok, keepAlive && !h.ended)
			if !c.Closing() {
				c.ResumeReading()
				c.Redeliver()
			}
		})
	})
}

func (h *conn) challenge(c *eventloop.Conn, answer string, ok, keepAlive bool) {
	if !ok {
		h.answer(c, http.StatusNotFound, "", "no such challenge\n", keepAlive)
		return
	}
	h.answer(c, http.StatusOK, "", answer, keepAlive)
}

// redirect sends the client to the same place with TLS.
func (h *conn) redirect(c *eventloop.Conn, req *http1.Request, keepAlive bool) {
	host := hostname(req.Host)
	if host == "" || req.Path[0] != '/' {
		h.answer(c, http.StatusBadRequest, "", "bad request: want a Host field and a path\n", false)
		return
	}
	b := append([]byte("Location: https://"), host...)
	if port := h.s.cfg.Port(); port != 443 {
		b = strconv.AppendUint(append(b, ':'), uint64(port), 10)
	}
	b = append(b, req.Path...)
	if req.Query != nil {
		b = append(append(b, '?'), req.Query...)
	}
	h.answer(c, http.StatusPermanentRedirect, string(append(b, "\r\n"...)), "", keepAlive)
}

// hostname returns host without its port, "" if it is not a plain name or address.
func hostname(host []byte) string {
	name := string(host)
	if strings.HasPrefix(name, "[") {
		end := strings.IndexByte(name, ']')
		if end < 0 || strings.Trim(name[1:end], "0123456789abcdefABCDEF:.") != "" {
			return ""
		}
		return name[:end+1]
	}
	name, _, _ = strings.Cut(name, ":")
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "" {
		return ""
	}
	return name
}

func (h *conn) answer(c *eventloop.Conn, status int, fields, body string, keepAlive bool) {
	b := http1.AppendStatusLine(nil, status)
	b = http1.AppendDate(b, time.Now())
	b = append(b, "Content-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(append(b, "\r\n"...), fields...)
	if !keepAlive {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	if !h.head {
		b = append(b, body...)
	}
	c.Write(b)
	if !keepAlive || h.ended {
		c.CloseAfterFlush()
		return
	}
	c.SetTimer(int64(h.s.cfg.KeepAlive))
}

// EndOfStream implements eventloop.Handler.
func (h *conn) EndOfStream(c *eventloop.Conn) bool {
	h.ended = true
	if !h.waiting {
		c.CloseAfterFlush()
	}
	return true
}

// Drained implements eventloop.Handler.
func (h *conn) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: the client is too slow, or idle.
func (h *conn) Timer(c *eventloop.Conn, _ int64) { c.Close(nil) }

// Closed implements eventloop.Handler.
func (h *conn) Closed(*eventloop.Conn, error) {}
