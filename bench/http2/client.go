package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// mark starts every published payload, and is found nowhere else in what a subscriber is
// sent.
const mark = '^'

// A conn is a client's connection, of any version. It parses no more than it must, so
// that it costs every server the same.
type conn struct {
	net.Conn // nil with h3, as raw and r
	raw      *net.TCPConn
	r        *bufio.Reader
	h2       *frames // nil: another version
	h3       *http3Conn
}

// patience bounds a connection's life.
const patience = 5 * time.Minute

// ownTLS trusts any certificate: it is our own, on this machine.
func ownTLS(protocol string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13}
}

func dial(ctx context.Context, addr string, w way, buffer int) (*conn, error) {
	if w.version == 3 {
		h, err := dialHTTP3(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &conn{h3: h}, nil
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, raw: raw.(*net.TCPConn)}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if w.tls {
		cfg := ownTLS("http/1.1")
		if w.version == 2 {
			cfg = ownTLS("h2")
		}
		secure := tls.Client(raw, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		if p := secure.ConnectionState().NegotiatedProtocol; p != cfg.NextProtos[0] {
			return nil, fmt.Errorf("ALPN agreed on %q, want %q", p, cfg.NextProtos[0])
		}
		c.Conn = secure
	}
	c.r = bufio.NewReaderSize(c.Conn, buffer)
	if w.version == 2 {
		return c, c.startHTTP2()
	}
	return c, nil
}

// reset closes the connection and leaves no TIME_WAIT.
func (c *conn) reset() {
	if c.h3 != nil {
		c.h3.close()
		return
	}
	_ = c.raw.SetLinger(0)
	_ = c.raw.Close()
}

// subscribe opens n SSE streams and returns when all are answered.
func (c *conn) subscribe(ctx context.Context, n int) error {
	if c.h3 != nil {
		return c.h3.subscribe(ctx, n)
	}
	if c.h2 == nil {
		if _, err := io.WriteString(c, "GET /sse?channel=c HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
			return err
		}
		return c.head()
	}
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	for range n {
		if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: c.h2.open(), BlockFragment: c.h2.block(":method", "GET", ":scheme", "http", ":path", "/sse?channel=c",
			":authority", "127.0.0.1", "accept", "text/event-stream"), EndHeaders: true, EndStream: true}); err != nil {
			return err
		}
	}
	if _, err := c.Write(b.Bytes()); err != nil {
		return err
	}
	for c.h2.answered < n {
		if err := c.step(); err != nil {
			return err
		}
	}
	return nil
}

// head reads a head of HTTP/1.1.
func (c *conn) head() error {
	status, err := c.r.ReadString('\n')
	if err != nil {
		return err
	}
	if len(status) < 12 || status[9:12] != "200" {
		return fmt.Errorf("the answer is %q", status)
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return err
		}
	}
}

// step reads what is there, at least something, and takes it in.
func (c *conn) step() error {
	if _, err := c.r.Peek(1); err != nil {
		return err
	}
	b, _ := c.r.Peek(c.r.Buffered())
	err := c.h2.feed(b)
	_, _ = c.r.Discard(len(b)) // they are buffered
	return err
}

// count reads to the end and gives how many marks came to on.
func (c *conn) count(on func(int)) error {
	if c.h3 != nil {
		return c.h3.count(on)
	}
	for {
		if c.h2 != nil {
			before := c.h2.marks
			if err := c.step(); err != nil {
				return err
			}
			on(c.h2.marks - before)
			continue
		}
		if _, err := c.r.Peek(1); err != nil {
			return err
		}
		b, _ := c.r.Peek(c.r.Buffered())
		n := bytes.Count(b, []byte{mark})
		_, _ = c.r.Discard(len(b)) // they are buffered
		on(n)
	}
}

const largestWindow = 1<<31 - 1

// startHTTP2 sends the preface, with windows so large that none has to be renewed.
func (c *conn) startHTTP2() error {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&b, nil)
	if err := errors.Join(fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: largestWindow}),
		fr.WriteWindowUpdate(0, largestWindow-65535)); err != nil {
		return err
	}
	_, err := c.Write(b.Bytes())
	c.h2 = newFrames(c)
	return err
}

// frames takes in what a server sends in HTTP/2.
type frames struct {
	c    *conn
	next uint32
	enc  *hpack.Encoder
	out  bytes.Buffer
	dec  *hpack.Decoder

	head    [9]byte
	have    int // bytes of head
	left    int // bytes of the payload still to come
	payload []byte

	answered, marks int
	data            int64
	status          string
	ended           bool // a stream has

	// Any goroutine.
	mu             sync.Mutex
	room           *sync.Cond
	window, stream int64 // of the connection, and of the one stream that uploads
	initial        int64
	failed         error
}

func newFrames(c *conn) *frames {
	f := &frames{c: c, next: 1, window: 65535, stream: 65535, initial: 65535}
	f.room = sync.NewCond(&f.mu)
	f.enc = hpack.NewEncoder(&f.out)
	f.dec = hpack.NewDecoder(4096, func(h hpack.HeaderField) {
		if h.Name == ":status" {
			f.status = h.Value
		}
	})
	return f
}

// open returns the next stream's number.
func (f *frames) open() uint32 {
	f.next += 2
	return f.next - 2
}

func (f *frames) block(fields ...string) []byte {
	f.out.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into a buffer
	}
	return f.out.Bytes()
}

// feed takes in bytes, however frames are cut.
func (f *frames) feed(b []byte) error {
	for len(b) > 0 {
		if f.have < 9 {
			n := copy(f.head[f.have:], b)
			f.have, b = f.have+n, b[n:]
			if f.have < 9 {
				return nil
			}
			f.left, f.payload = int(binary.BigEndian.Uint32(append([]byte{0}, f.head[:3]...))), f.payload[:0]
		}
		n := min(f.left, len(b))
		if f.head[3] == byte(http2.FrameData) {
			f.marks += bytes.Count(b[:n], []byte{mark})
			f.data += int64(n)
		} else {
			f.payload = append(f.payload, b[:n]...)
		}
		f.left, b = f.left-n, b[n:]
		if f.left == 0 {
			f.have = 0
			if err := f.whole(); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole takes in a frame that is complete.
func (f *frames) whole() error {
	flags, p := http2.Flags(f.head[4]), f.payload
	stream := binary.BigEndian.Uint32(f.head[5:]) & largestWindow
	switch http2.FrameType(f.head[3]) {
	case http2.FrameHeaders:
		if !flags.Has(http2.FlagHeadersEndHeaders) || flags.Has(http2.FlagHeadersPadded) || flags.Has(http2.FlagHeadersPriority) {
			return errors.New("a head in a form that this client does not read")
		}
		f.status = ""
		if _, err := f.dec.Write(p); err != nil {
			return err
		}
		if f.status != "" && f.status != strconv.Itoa(http.StatusOK) {
			return errors.New("the answer is " + f.status)
		}
		f.answered++
		f.ended = f.ended || flags.Has(http2.FlagHeadersEndStream)
	case http2.FrameData:
		f.ended = f.ended || flags.Has(http2.FlagDataEndStream)
	case http2.FrameSettings:
		if flags.Has(http2.FlagSettingsAck) {
			return nil
		}
		for ; len(p) >= 6; p = p[6:] {
			if http2.SettingID(binary.BigEndian.Uint16(p)) == http2.SettingInitialWindowSize {
				f.widen(func() {
					now := int64(binary.BigEndian.Uint32(p[2:]))
					f.stream, f.initial = f.stream+now-f.initial, now
				})
			}
		}
		return http2.NewFramer(f.c, nil).WriteSettingsAck()
	case http2.FramePing:
		if !flags.Has(http2.FlagPingAck) {
			return http2.NewFramer(f.c, nil).WritePing(true, [8]byte(p))
		}
	case http2.FrameWindowUpdate:
		f.widen(func() {
			if n := int64(binary.BigEndian.Uint32(p) & largestWindow); stream == 0 {
				f.window += n
			} else {
				f.stream += n
			}
		})
	case http2.FrameRSTStream, http2.FrameGoAway:
		return fmt.Errorf("%s: %x", http2.FrameType(f.head[3]), p)
	}
	return nil
}

func (f *frames) widen(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.room.Broadcast()
}

// take waits until something may be sent and returns how much, at most n.
func (f *frames) take(n int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for min(f.window, f.stream) <= 0 && f.failed == nil {
		f.room.Wait()
	}
	k := min(int64(n), f.window, f.stream)
	f.window, f.stream = f.window-k, f.stream-k
	return int(k), f.failed
}
