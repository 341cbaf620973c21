package websocket

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Config is what both sides of a Conn can choose. The zero value works.
type Config struct {
	// MaxMessage limits what is read, see Limits. 0 means DefaultMaxMessage.
	MaxMessage int

	// Deflate offers (client) or accepts (server) permessage-deflate.
	Deflate bool

	// DeflateLevel is the level of Compress for what is written.
	DeflateLevel int

	// DeflateMin is the shortest message that is written compressed. 0 means 128.
	DeflateMin int

	// WriteTimeout bounds each write; a connection whose peer does not read for so
	// long is closed. 0 means 10 seconds.
	WriteTimeout time.Duration

	// CloseTimeout bounds the close handshake. 0 means 5 seconds.
	CloseTimeout time.Duration

	// IdleTimeout ends a Read during which no byte came for so long, and closes the
	// connection. Pings count. 0 means none.
	IdleTimeout time.Duration

	// OnPong is called by Read for each pong; payload is valid until it returns.
	// nil means pongs are passed over.
	OnPong func(payload []byte)
}

const (
	defaultDeflateMin   = 128
	defaultWriteTimeout = 10 * time.Second
	defaultCloseTimeout = 5 * time.Second
	readBuf             = 4 << 10
	maxKeptWrite        = 64 << 10 // a larger write buffer is not kept
	maxLinger           = 256 << 10
)

// lock is a mutex one can hold over I/O: a waiter waits on a channel,
// for no longer than the holder's deadline.
type lock chan struct{}

func newLock() lock     { return make(lock, 1) }
func (l lock) acquire() { l <- struct{}{} }
func (l lock) release() { <-l }

// Conn is a WebSocket connection for programs with goroutines. One goroutine at a
// time may Read; any number may Write, Ping and Close.
//
// Something must Read all the time: that is where pings are answered and the
// peer's close is seen.
type Conn struct {
	// Fixed at the handshake.
	nc          net.Conn
	cfg         Config
	limits      Limits
	client      bool
	deflates    bool
	deflate     Deflate
	subprotocol string

	// Held while reading; guards the fields below it.
	reading lock
	parser  Parser
	in      []byte // read buffer
	r, w    int    // in[r:w] is not parsed yet
	rerr    error  // why reading ended
	timed   bool   // a read deadline is set

	// Held while writing; guards the fields below it.
	writing   lock
	out       []byte
	closeSent bool
	werr      error // why writing ended

	// Any goroutine.
	closing atomic.Bool // Close or CloseNow was called
}

// ConnOptions is what NewConn must know of a handshake that is done.
type ConnOptions struct {
	Config

	// Client marks the client side. False means server.
	Client bool

	// Agreed is the agreement on compression; it counts only if Config.Deflate is
	// set.
	Agreed Deflate

	// Subprotocol is what was agreed, "" if none.
	Subprotocol string

	// Early is what was read behind the handshake already. It is copied.
	Early []byte
}

// NewConn makes a Conn of a connection whose handshake is done. The Conn owns nc
// from here on.
func NewConn(nc net.Conn, o ConnOptions) *Conn {
	c := &Conn{
		nc: nc, cfg: o.Config, limits: Limits{MaxMessage: o.MaxMessage}, client: o.Client,
		deflates: o.Deflate, deflate: o.Agreed, subprotocol: o.Subprotocol,
		reading: newLock(), writing: newLock(),
		in: make([]byte, max(readBuf, len(o.Early))),
	}
	c.w = copy(c.in, o.Early)
	c.cfg.DeflateMin = cmp.Or(c.cfg.DeflateMin, defaultDeflateMin)
	c.cfg.WriteTimeout = cmp.Or(c.cfg.WriteTimeout, defaultWriteTimeout)
	c.cfg.CloseTimeout = cmp.Or(c.cfg.CloseTimeout, defaultCloseTimeout)
	c.parser.Init(ParserOptions{Client: o.Client, Deflate: o.Deflate, Limits: &c.limits})
	return c
}

// Subprotocol is what the handshake agreed on, "" if nothing.
func (c *Conn) Subprotocol() string { return c.subprotocol }

// Compresses reports whether the handshake agreed on permessage-deflate.
func (c *Conn) Compresses() bool { return c.deflates }

// NetConn is the connection below. Reading or writing it breaks the framing.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Read waits for the next message, OpText or OpBinary. Pings are answered and
// pongs reported on the way. The payload is valid until the next Read.
//
// When ctx ends, Read returns its error and may be called again: nothing is lost.
// All other errors are final and the connection is closed: *CloseError if the peer
// said so, *ProtocolError if it broke the rules (the code was sent to it), ErrClosed
// after Close on this side.
func (c *Conn) Read(ctx context.Context) (Opcode, []byte, error) {
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	defer c.reading.release()
	defer c.watch(ctx)()
	for {
		ev, err := c.next(ctx)
		if err != nil {
			return 0, nil, err
		}
		if ev.Op == OpText || ev.Op == OpBinary {
			if c.closing.Load() {
				continue // Close said that no more is wanted
			}
			return ev.Op, ev.Payload, nil
		}
	}
}

// watch lets the end of ctx interrupt reads until the function it returns is called.
func (c *Conn) watch(ctx context.Context) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	ran := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		c.interrupt()
		close(ran)
	})
	return func() {
		if !cancel() {
			<-ran
			c.timed = true // the next read clears it
		}
	}
}

// interrupt ends a read that waits and those that start before the deadline is set anew.
func (c *Conn) interrupt() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) }

// next returns the next event, having done what the protocol requires for it. The
// caller holds the reading lock.
func (c *Conn) next(ctx context.Context) (Event, error) {
	for {
		if c.rerr != nil {
			return Event{}, c.rerr
		}
		ev, n, ok, err := c.parser.Next(c.in[c.r:c.w])
		c.r += n
		switch {
		case err != nil:
			return Event{}, c.refuse(err)
		case !ok:
			if err := c.fill(ctx); err != nil {
				return Event{}, err
			}
			continue
		}
		switch ev.Op {
		case OpPing:
			// A failed answer is not the reader's to report: if the connection is
			// gone, the next read says so.
			_ = c.write(OpPong, false, ev.Payload)
		case OpPong:
			if c.cfg.OnPong != nil {
				c.cfg.OnPong(ev.Payload)
			}
		case OpClose:
			return Event{}, c.closedByPeer(ev)
		}
		return ev, nil
	}
}

// fill reads more bytes behind the few the parser left.
func (c *Conn) fill(ctx context.Context) error {
	c.w = copy(c.in, c.in[c.r:c.w])
	c.r = 0
	if c.cfg.IdleTimeout > 0 {
		_ = c.nc.SetReadDeadline(time.Now().Add(c.cfg.IdleTimeout))
		c.timed = true
	} else if c.timed {
		_ = c.nc.SetReadDeadline(time.Time{})
		c.timed = false
	}
	if ctx.Err() != nil { // it may have ended before the deadline was set
		c.interrupt()
		c.timed = true
	}
	n, err := c.nc.Read(c.in[c.w:])
	c.w += n
	if n > 0 || err == nil {
		return nil
	}
	var ne net.Error
	if ctx.Err() != nil && errors.As(err, &ne) && ne.Timeout() {
		return ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // no close frame came
	}
	return c.endRead(fmt.Errorf("websocket: read: %w", err))
}

// endRead ends reading and closes the connection below.
func (c *Conn) endRead(err error) error {
	if c.closing.Load() {
		var ce *CloseError
		if !errors.As(err, &ce) {
			err = ErrClosed
		}
	}
	c.rerr = err
	c.parser.Reset()
	_ = c.nc.Close()
	return err
}

// refuse sends a peer that broke the rules the code and closes.
func (c *Conn) refuse(err error) error {
	code, reason := CloseInternal, ""
	var pe *ProtocolError
	if errors.As(err, &pe) {
		code, reason = pe.Code, pe.Reason
	}
	_ = c.writeClose(code, reason)
	c.linger()
	return c.endRead(err)
}

// closedByPeer answers the peer's close frame (RFC 6455 §5.5.1) and ends the
// connection; the server closes first, the client waits for it (§7.1.1).
func (c *Conn) closedByPeer(ev Event) error {
	err := &CloseError{Code: ev.Code, Reason: string(ev.Payload)}
	_ = c.writeClose(ev.Code, "")
	if c.client {
		c.linger()
	}
	return c.endRead(err)
}

// linger waits, bounded in time and bytes, until the peer ends the connection
// too: closing with unread bytes resets the connection, and the reset could
// overtake the close frame.
func (c *Conn) linger() {
	if cw, ok := c.nc.(interface{ CloseWrite() error }); ok && !c.client {
		_ = cw.CloseWrite()
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(c.cfg.lingerTime()))
	for n := 0; n < maxLinger; {
		m, err := c.nc.Read(c.in)
		if err != nil {
			return
		}
		n += m
	}
}

// Write sends one message, OpText or OpBinary, compressed if that was agreed and
// is worth it. It copies nothing for later: payload is the caller's again when it
// returns. An error other than a refused argument closes the connection; what the peer
// sent before, such as its close frame, is still read.
func (c *Conn) Write(op Opcode, payload []byte) error {
	if op != OpText && op != OpBinary {
		return fmt.Errorf("websocket: write: opcode %v is not a message", op)
	}
	if op == OpText && !utf8.Valid(payload) {
		return errors.New("websocket: write: text is not UTF-8")
	}
	if c.deflates && len(payload) >= c.cfg.DeflateMin && (c.client || c.deflate.Fits(len(payload))) {
		b := Compress(getBuf(len(payload)), payload, c.cfg.DeflateLevel)
		defer putBuf(b)
		if len(b) < len(payload) {
			return c.write(op, true, b)
		}
	}
	return c.write(op, false, payload)
}

// Ping sends a ping with at most 125 bytes of payload. The pong comes to
// Config.OnPong.
func (c *Conn) Ping(payload []byte) error {
	if len(payload) > maxControl {
		return errors.New("websocket: ping: payload longer than 125 bytes")
	}
	return c.write(OpPing, false, payload)
}

// write sends one frame.
func (c *Conn) write(op Opcode, rsv1 bool, payload []byte) error {
	c.writing.acquire()
	defer c.writing.release()
	if c.werr != nil {
		return c.werr
	}
	if !c.client {
		c.out = AppendHeader(c.out[:0], true, rsv1, op, len(payload))
		c.out = append(c.out, payload...)
		return c.flush()
	}
	key := newMask()
	c.out = AppendMaskedHeader(c.out[:0], true, rsv1, op, len(payload), key)
	start := len(c.out)
	c.out = append(c.out, payload...)
	Mask(c.out[start:], key)
	return c.flush()
}

// writeClose sends a close frame, once; later writes fail with ErrClosed.
func (c *Conn) writeClose(code uint16, reason string) error {
	c.writing.acquire()
	defer c.writing.release()
	if c.closeSent || c.werr != nil {
		return c.werr
	}
	if c.client {
		c.out = AppendMaskedClose(c.out[:0], code, reason, newMask())
	} else {
		c.out = AppendClose(c.out[:0], code, reason)
	}
	err := c.flush()
	c.closeSent = true
	if err == nil {
		c.werr = ErrClosed
	}
	return err
}

// flush writes c.out. The caller holds the writing lock.
func (c *Conn) flush() error {
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.cfg.WriteTimeout))
	_, err := c.nc.Write(c.out)
	if cap(c.out) > maxKeptWrite {
		c.out = nil
	}
	if err == nil {
		return nil
	}
	if c.closing.Load() {
		err = ErrClosed
	} else {
		err = fmt.Errorf("websocket: write: %w", err)
	}
	c.werr = err // half a frame may be out: nothing can follow it
	var ne net.Error
	if c.closing.Load() || errors.As(err, &ne) && ne.Timeout() {
		_ = c.nc.Close()
		return err
	}
	// The peer is gone. What it sent before, which may say why, can still be read.
	time.AfterFunc(c.cfg.lingerTime(), func() { _ = c.nc.Close() })
	return err
}

// lingerTime bounds the wait for the rest of what a peer sent that takes no more.
func (c *Config) lingerTime() time.Duration { return min(c.CloseTimeout, time.Second) }

// newMask is a fresh masking key (RFC 6455 §10.3).
func newMask() (key [4]byte) {
	_, _ = rand.Read(key[:]) // never fails
	return key
}

// Close closes in the orderly way: it sends a close frame, waits for the peer's,
// at most Config.CloseTimeout in all, and closes the connection. Messages that
// come meanwhile are dropped. A Read that waits elsewhere returns; a payload that
// Read gave out stays valid. nil means that the peer answered; on a connection
// that had ended otherwise Close only says why.
func (c *Conn) Close(code uint16, reason string) error {
	again := c.closing.Swap(true)
	timer := time.AfterFunc(c.cfg.CloseTimeout, func() { _ = c.nc.Close() })
	defer timer.Stop()
	_ = c.writeClose(code, reason) // if it failed, reading fails too

	c.reading.acquire() // a Read that holds it continues until the close comes
	defer c.reading.release()
	c.leavePayload()
	for c.rerr == nil {
		if _, err := c.next(context.Background()); err != nil {
			break
		}
	}
	var ce *CloseError
	switch {
	case again || errors.As(c.rerr, &ce):
		return nil
	case !timer.Stop():
		return fmt.Errorf("websocket: close: peer did not answer: %w", os.ErrDeadlineExceeded)
	}
	return c.rerr
}

// leavePayload continues reading with other buffers: the last payload may be in the
// hands of the goroutine that reads, while another closes.
func (c *Conn) leavePayload() {
	if c.rerr != nil {
		return
	}
	in := make([]byte, max(readBuf, c.w-c.r))
	c.w = copy(in, c.in[c.r:c.w])
	c.in, c.r = in, 0
	c.parser.disown()
}

// CloseNow closes the connection without a word to the peer. It is safe to call
// more than once and after Close; defer it where a connection may be left early.
func (c *Conn) CloseNow() {
	c.closing.Store(true)
	_ = c.nc.Close()
}
