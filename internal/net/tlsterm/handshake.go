package tlsterm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/weir-gateway/weir/internal/net/acme"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// Why a connection ended before it was established.
var (
	ErrTimeout = errors.New("tls: the handshake took too long")
	ErrBusy    = errors.New("tls: too many handshakes wait")
	ErrNotTLS  = errors.New("tls: the connection does not start with a ClientHello")

	errEarly = errors.New("tls: the client does not wait for an answer to its ClientHello")
)

const (
	// maxHello bounds a ClientHello. Those with post-quantum keys have 2 KB.
	maxHello = 16 << 10
	// maxEarly bounds what is taken in while the handshake runs; then the socket's
	// window holds the client back.
	maxEarly = 64 << 10
	// maxWire bounds what a ClientHello takes with the heads of its records, which may
	// be many.
	maxWire = 2 * maxHello
	// maxBehind bounds what may appear behind a ClientHello before it is answered. There
	// is nothing to say: data that early is for servers that have offered to take it.
	maxBehind = 1 << 10
)

// Accept returns a loops' accept function: it ends TLS on each connection and
// gives those that are established to next. loops is the number of loops.
func (t *Terminator) Accept(loops int, next func(*eventloop.Conn) eventloop.Handler) func(*eventloop.Conn) eventloop.Handler {
	loopStates := make([]*loopState, loops)
	for i := range loopStates {
		loopStates[i] = newLoopState()
	}
	t.loopStates = loopStates
	return func(c *eventloop.Conn) eventloop.Handler {
		c.SetTimer(int64(t.cfg.HelloTimeout))
		return &handshake{t: t, c: c, loopState: loopStates[c.Loop().ID()], next: next, hello: helloReader{tlcp: t.cfg.GM.Enabled()}}
	}
}

// handshake is a connection that is not established yet.
type handshake struct {
	// Fixed at accept.
	t         *Terminator
	c         *eventloop.Conn
	loopState *loopState
	next      func(*eventloop.Conn) eventloop.Handler

	// Owned by the connection's loop.
	hello helloReader
	x     *exchange // nil until the ClientHello is there
	place *place
	// national is the version of package gm that the client is served with; 0: none. Fixed
	// before the handshake starts.
	national uint16
	started  bool // the timer has seen it run
	over     bool

	// Written by the handshake's goroutine before its last post to the loop.
	result *result
}

type result struct {
	records *records
	chains  [][]*x509.Certificate // of the client's certificate, verified
	resumed bool
	// protocol is what ALPN agreed on, on the client's side.
	protocol string
	// established is for metrics, on the server's side.
	established established
	err         error
}

var _ eventloop.Handler = (*handshake)(nil)

// Data implements eventloop.Handler. Until the ClientHello is complete it waits
// here, and costs a slow client nothing but the bytes it sent.
func (h *handshake) Data(c *eventloop.Conn, b []byte) int {
	if h.over {
		return len(b)
	}
	if h.x == nil {
		random, err := h.hello.read(b)
		if err != nil {
			h.refuse(c, b, err)
			return len(b)
		}
		switch {
		case random == nil && len(b) > maxWire:
			h.refuse(c, b, &recordError{alertDecodeError, "a ClientHello in too many records"})
			return len(b)
		case random == nil:
			return 0
		}
		if h.hello.tlcp {
			h.national = gm.Sniff(helloMessage(b))
		}
		h.begin(c, random)
		if c.Closing() {
			return len(b)
		}
	}
	switch n := h.x.feed(b); {
	case n > h.hello.end+maxBehind && h.t.admission.inLine(h.place):
		h.t.counters.failed.Add(1)
		c.Close(errEarly)
	case n > maxEarly:
		c.PauseReading()
	}
	return len(b)
}

// A helloReader looks at a ClientHello, which may be spread over several records.
// It does not look at a record again that it has seen whole: they may be many.
type helloReader struct {
	at    int  // where the first record starts that is not seen whole
	got   int  // of the message, in the records before
	end   int  // of the record in which the message ends; 0 before it does
	tlcp  bool // its records are accepted, too
	start [4 + 2 + randomLen]byte
}

// read looks at b, which is what came before and what followed. It returns the
// client's random once b has the whole message, nil before that.
func (r *helloReader) read(b []byte) (random []byte, err error) {
	for r.at < len(b) {
		rec := b[r.at:]
		if rec[0] != typeHandshake || len(rec) > 1 && rec[1] != 3 && !(r.tlcp && rec[1] == gm.VersionTLCP>>8) {
			return nil, ErrNotTLS
		}
		if len(rec) < headerLen {
			return nil, nil
		}
		n := int(binary.BigEndian.Uint16(rec[3:]))
		switch {
		case n == 0:
			return nil, ErrNotTLS
		case n > maxPlaintext:
			return nil, &recordError{alertRecordOverflow, fmt.Sprintf("a record of %d bytes", n)}
		}
		part := rec[headerLen:min(len(rec), headerLen+n)]
		if whole, err := r.add(part); whole || err != nil {
			r.end = r.at + headerLen + len(part)
			return r.start[len(r.start)-randomLen:], err
		}
		if len(part) < n {
			return nil, nil
		}
		r.got += n
		r.at += headerLen + n
	}
	return nil, nil
}

// add looks at the part of the message that follows the first got bytes, and
// reports whether it ends there.
func (r *helloReader) add(part []byte) (whole bool, err error) {
	if r.got < len(r.start) {
		copy(r.start[r.got:], part)
	}
	got := r.got + len(part)
	if got > 0 && r.start[0] != clientHello {
		return false, ErrNotTLS
	}
	if got < 4 {
		return false, nil
	}
	size := int(binary.BigEndian.Uint32(r.start[:]) & 0xffffff)
	if size < len(r.start)-4 || size > maxHello {
		return false, &recordError{alertDecodeError, fmt.Sprintf("a ClientHello of %d bytes", size)}
	}
	return got >= 4+size, nil
}

// refuse answers what is not TLS in a way that its sender understands.
func (h *handshake) refuse(c *eventloop.Conn, b []byte, err error) {
	h.over = true
	h.t.counters.notTLS.Add(1)
	h.t.log.Debug("no handshake", "conn", c.ID(), "peer", c.Peer(), "err", err)
	if looksLikeHTTP(b) {
		c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 37\r\n\r\n" +
			"this port speaks TLS: use https://\n"))
	} else {
		alert := uint8(alertUnexpectedMessage)
		if e, ok := errors.AsType[*recordError](err); ok {
			alert = e.alert
		}
		c.Write([]byte{typeAlert, 3, 1, 0, 2, 2, alert})
	}
	c.CloseAfterFlush()
}

func looksLikeHTTP(b []byte) bool {
	for _, method := range []string{"GET ", "POST ", "HEAD ", "OPTIONS ", "PUT ", "PRI "} {
		if bytes.HasPrefix(b, []byte(method[:min(len(method), len(b))])) {
			return true
		}
	}
	return false
}

// begin requests a place among the handshakes.
func (h *handshake) begin(c *eventloop.Conn, random []byte) {
	t := h.t
	x := newExchange(net.TCPAddrFromAddrPort(c.Peer()), random, t.gate, func() { c.Loop().Post(h.step) })
	p := &place{run: func() { h.run(x) }, end: x.cancel}
	x.line, x.place = t.admission, p
	if !t.live.add(x) || !t.admission.admit(p) {
		h.over = true
		t.live.remove(x)
		t.counters.shed.Add(1)
		c.Close(ErrBusy)
		return
	}
	h.x, h.place = x, p
	c.SetTimer(max(h.left()-int64(t.cfg.HandshakeTimeout)/reserved, 1))
}

// reserved is the part of the time for a handshake that is left to one that starts:
// who has waited beyond that would be cut off in the middle, and the work lost.
const reserved = 4

// left is how much time there is until the handshake has to be over.
func (h *handshake) left() int64 {
	return h.c.Accepted() + int64(h.t.cfg.HandshakeTimeout) - h.c.Loop().Now()
}

// run is the handshake, on a goroutine of its own.
func (h *handshake) run(x *exchange) {
	h.t.gate <- struct{}{}
	res := h.shake(x)
	<-h.t.gate
	h.c.Loop().Post(func() {
		h.result = res
		h.step()
	})
}

func (h *handshake) shake(x *exchange) *result {
	if cfg := h.t.current.Load().gm; h.national != 0 && cfg != nil {
		return h.shakeGM(x, cfg, h.national)
	}
	conn := tls.Server(x, h.t.current.Load().configFor(x))
	if err := conn.Handshake(); err != nil {
		return &result{err: err}
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol == acme.Protocol {
		return &result{err: errValidated}
	}
	r, err := x.finish(&state, h.loopState)
	if err == nil {
		r.peer = newPeer(&state)
	}
	return &result{
		records: r, chains: state.VerifiedChains, resumed: state.DidResume, err: err,
		established: established{version: state.Version, suite: state.CipherSuite, group: groupName(state.CurveID)},
	}
}

// configFor is the configuration with a way to the secrets of one handshake.
func (s *service) configFor(x *exchange) *tls.Config {
	cfg := s.config.Clone()
	cfg.KeyLogWriter = &x.secrets
	if cfg.SessionTicketsDisabled || cfg.MinVersion > tls.VersionTLS12 {
		return cfg
	}
	// The key log is silent when a TLS 1.2 session resumes. So the master secret
	// travels once more in the part of the ticket that is ours; the ticket holds it
	// anyway and is encrypted.
	cfg.WrapSession = func(state tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		if state.Version == tls.VersionTLS12 {
			s.Extra = append(s.Extra, append([]byte(masterPrefix), x.secrets.master...))
		}
		return cfg.EncryptTicket(state, s)
	}
	cfg.UnwrapSession = func(ticket []byte, state tls.ConnectionState) (*tls.SessionState, error) {
		s, err := cfg.DecryptTicket(ticket, state)
		if s == nil || err != nil || state.Version != tls.VersionTLS12 {
			return s, err
		}
		for _, extra := range s.Extra {
			if master, ok := bytes.CutPrefix(extra, []byte(masterPrefix)); ok {
				x.secrets.master = master
				return s, nil
			}
		}
		return nil, nil // not ours: no session
	}
	return cfg
}

const masterPrefix = "weir tls12 master\x00"

// step sends what the handshake has to say, and takes its result. Loop only.
func (h *handshake) step() {
	c := h.c
	if h.over || c.Closing() {
		return
	}
	if b := h.x.drainOutput(); len(b) > 0 {
		c.Write(b)
	}
	if h.result == nil || c.Closing() {
		return
	}
	h.over = true
	h.t.live.remove(h.x)
	c.SetTimer(0)
	res := h.result
	if res.err != nil {
		switch {
		case errors.Is(res.err, errHung):
			h.t.counters.timeouts.Add(1)
		case errors.Is(res.err, errValidated):
			h.t.counters.validated.Add(1)
		case errors.Is(res.err, errClientRevoked), errors.Is(res.err, errNoList):
			h.t.counters.revoked.Add(1)
		default:
			h.t.counters.failed.Add(1)
		}
		h.t.log.Debug("handshake", "conn", c.ID(), "peer", c.Peer(), "err", res.err)
		c.CloseAfterFlush()
		return
	}
	if res.resumed {
		h.t.counters.resumed.Add(1)
	} else {
		h.t.counters.full.Add(1)
	}
	h.t.tally.add(res.established)
	h.establish(c, res)
}

// establish gives the connection to the handler, with what came right behind
// the handshake.
func (h *handshake) establish(c *eventloop.Conn, res *result) {
	defer func() {
		if p := recover(); p != nil { // in a post the loop does not know whose it is
			c.Close(fmt.Errorf("panic: %v", p))
			panic(p)
		}
	}()
	next := h.next(c)
	if next == nil {
		c.Close(nil)
		return
	}
	c.SetHandler(next)
	c.ResumeReading()
	res.records.forget = h.t.certify(c, res.chains)
	h.loopState.connected()
	c.SetFilter(res.records, h.x.rest())
}

// EndOfStream implements eventloop.Handler: what the peer sent before may be a
// whole request, but not if it has seen nothing of ours yet.
func (h *handshake) EndOfStream(*eventloop.Conn) bool {
	if h.x == nil || h.over || h.t.admission.inLine(h.place) {
		return false
	}
	h.x.end()
	return true
}

// Drained implements eventloop.Handler.
func (h *handshake) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: the client is too slow, or waited too long.
func (h *handshake) Timer(c *eventloop.Conn, _ int64) {
	if h.x != nil && !h.started && !h.t.admission.inLine(h.place) {
		h.started = true
		c.SetTimer(max(h.left(), 1))
		return
	}
	h.t.counters.timeouts.Add(1)
	c.Close(ErrTimeout)
}

// Closed implements eventloop.Handler.
func (h *handshake) Closed(c *eventloop.Conn, err error) {
	if h.x != nil && !h.over {
		h.t.admission.leave(h.place)
		h.x.cancel(errGone)
		h.t.live.remove(h.x)
		h.t.log.Debug("handshake", "conn", c.ID(), "peer", c.Peer(), "after", time.Duration(c.Loop().Now()-c.Accepted()), "err", err)
	}
	h.over = true
}
