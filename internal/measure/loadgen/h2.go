package loadgen

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// An h2Conn is one HTTP/2 connection of net/http's, with exactly as many streams
// as the Spec's Pipeline. It is not on the event loop: each exchange has a
// goroutine while it is under way.
type h2Conn struct {
	requestConn
	cc    *http.ClientConn
	ended bool
	next  uint64
	life  context.Context // the connection's, for what runs on it
	stop  context.CancelFunc
}

var _ sender = (*h2Conn)(nil)

// newTransport makes a link's transport. It is the link's own, as net/http changes
// the TLS configuration in it.
func (g *traffic) newTransport() *http.Transport {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DisableCompression: true, HTTP2: &http.HTTP2Config{StrictMaxConcurrentRequests: true}}
	if g.target.tls != nil {
		tr.TLSClientConfig = g.target.tls.Clone()
	}
	return tr
}

// An endingConn calls ended when nothing more comes.
type endingConn struct {
	countedConn
	ended func()
}

func (c *endingConn) Read(b []byte) (int, error) {
	n, err := c.countedConn.Read(b)
	if err != nil {
		c.ended()
	}
	return n, err
}

func (h *h2Conn) dial() wire {
	g := h.s.g
	h.ended = false
	h.life, h.stop = context.WithCancel(context.Background()) //nolint:gosec // Close calls it
	life, stop := h.life, h.stop
	local := g.source(h)
	tr := g.newTransport()
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		d := net.Dialer{}
		if local.IsValid() {
			d.LocalAddr, d.Control = &net.TCPAddr{IP: local.AsSlice()}, sys.PortAtConnect
		}
		c, err := d.DialContext(ctx, network, g.target.addr.String())
		if err != nil {
			return nil, err
		}
		return &endingConn{countedConn{Conn: c, g: g}, func() {
			h.s.loop.Post(func() {
				if h.life == life && h.cc != nil && len(h.out) == 0 { // else done sees it
					h.Close(net.ErrClosed)
				}
			})
		}}, nil
	}
	scheme := "http"
	if g.target.tls != nil {
		scheme = "https"
	}
	g.work.Go(func() {
		ctx, cancel := context.WithTimeout(life, g.spec.Timeout)
		defer cancel()
		cc, err := tr.NewClientConn(ctx, scheme, g.target.address)
		if !h.s.loop.Post(func() { h.dialed(life, cc, err) }) {
			stop()
		}
	})
	return h
}

func (h *h2Conn) dialed(life context.Context, cc *http.ClientConn, err error) {
	switch {
	case err != nil:
		h.Close(err)
	case life.Err() != nil || h.ended:
		_ = cc.Close()
	default:
		h.cc = cc
		h.s.established(h)
	}
}

// dead reports whether cc takes no request while none is under way: the server has closed it, with
// GOAWAY for instance.
func dead(cc *http.ClientConn) bool {
	if cc.Reserve() != nil {
		return true
	}
	cc.Release()
	return false
}

// transmit implements sender.
func (h *h2Conn) transmit(ex *exchange) {
	h.next++
	ex.seq = h.next
	id, cc, life := ex.seq, h.cc, h.life
	g := h.s.g
	g.work.Go(func() {
		why, err := g.roundTrip(life, cc, int(h.num))
		now := g.now()
		h.s.loop.Post(func() { h.done(id, why, err, cc, now) })
	})
}

// roundTrip makes one request. why is what it counts as, "" for a right answer.
func (g *traffic) roundTrip(life context.Context, cc *http.ClientConn, n int) (why string, err error) {
	ctx, cancel := context.WithTimeout(life, g.spec.Timeout)
	defer cancel()
	path := fill(g.target.path, n, g.channelNumber(n))
	scheme := "http://"
	if g.target.tls != nil {
		scheme = "https://"
	}
	var body io.Reader
	if g.spec.Body != "" {
		body = strings.NewReader(g.spec.Body)
	}
	req, err := http.NewRequestWithContext(ctx, g.spec.Method, scheme+g.target.host+path, body)
	if err != nil {
		return reason(err), nil
	}
	for _, f := range g.spec.Headers {
		name, value, _ := strings.Cut(f, ":")
		req.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		if strings.EqualFold(name, "host") {
			req.Host = strings.TrimSpace(value)
		}
	}
	resp, err := cc.RoundTrip(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	switch {
	case err != nil && ctx.Err() != nil && life.Err() == nil:
		return "timeout", err
	case err != nil:
		return reason(err), err
	case resp.StatusCode >= 400:
		return statusReason(resp.StatusCode), nil
	}
	return "", nil
}

// done ends the exchange id.
func (h *h2Conn) done(id uint64, why string, err error, cc *http.ClientConn, now int64) {
	s := h.s
	s.touch()
	for i, ex := range h.out {
		if ex.seq != id || cc != h.cc {
			continue
		}
		h.out = append(h.out[:i], h.out[i+1:]...)
		if why == "" {
			s.complete(ex, now)
		} else {
			s.fail(ex, why, now)
		}
		break
	}
	switch {
	case h.ended || cc != h.cc:
	case err != nil && (cc.Err() != nil || len(h.out) == 0 && dead(cc)):
		h.Close(err)
	case h.retiring && len(h.out) == 0:
		h.Close(errRetired)
	default:
		s.free.offer(h)
		s.serve()
	}
}

// Write implements wire.
func (h *h2Conn) Write([]byte) {}

// SetTimer implements wire: requests have contexts.
func (h *h2Conn) SetTimer(int64) {}

// CloseAfterFlush implements wire.
func (h *h2Conn) CloseAfterFlush() { h.Close(nil) }

// Close implements wire.
func (h *h2Conn) Close(err error) {
	if h.ended {
		return
	}
	h.ended = true
	h.stop()
	if cc := h.cc; cc != nil {
		h.cc = nil
		_ = cc.Close()
	}
	h.Closed(nil, err)
}

// Connected implements eventloop.Connector.
func (h *h2Conn) Connected(*eventloop.Conn) {}

// Data implements eventloop.Handler.
func (h *h2Conn) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// Closed implements eventloop.Handler.
func (h *h2Conn) Closed(_ *eventloop.Conn, err error) { h.lost(h, err) }
