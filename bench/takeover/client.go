package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/websocket"
)

// A way is how a client follows its channel.
type way uint8

const (
	sse way = iota
	socket
	stream // SSE on HTTP/2
	tunnel // WebSocket of a backend
)

// client follows a channel on a connection of its own and accounts for each message.
type client struct {
	conn    net.Conn
	way     way
	channel int
	newest  *atomic.Uint64 // that was published on it

	up, last     atomic.Uint64 // 1: its stream is open; the newest number received
	disconnected atomic.Bool

	// Of the goroutine that reads.
	scan                     scanner
	received                 uint64
	lost, repeated, reversed uint64
	late                     []time.Duration
	longest                  time.Duration
}

// dial connects to s.
func (c *client) dial(s *server) (err error) {
	if s.tls == nil {
		c.conn, err = net.Dial("tcp", s.addr)
		return err
	}
	cfg := s.tls.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if c.way == stream {
		cfg.NextProtos = []string{"h2"}
	}
	c.conn, err = tls.Dial("tcp", s.addr, cfg)
	return err
}

// follow reads until the connection ends.
func (c *client) follow() error {
	path := "/sse?channel=" + channelName(c.channel)
	switch c.way {
	case stream:
		return c.followStream(path)
	case socket:
		return c.followSocket("/ws?channel=" + channelName(c.channel))
	case tunnel:
		return c.followSocket("/tunnel?channel=" + strconv.Itoa(c.channel))
	}
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n", path); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	for {
		n, err := c.conn.Read(buf)
		if err != nil {
			return err
		}
		if c.up.Load() == 0 {
			if !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200")) {
				return fmt.Errorf("answered %.60q", buf[:n])
			}
			c.up.Store(1)
		}
		c.data(buf[:n])
	}
}

// followSocket is follow for a WebSocket: pings are answered, and messages of a tunnel sent back.
func (c *client) followSocket(path string) error {
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", path); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c.conn, 1024)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("answered %s", res.Status)
	}
	c.up.Store(1)
	if c.way != tunnel {
		return readFrames(r, c.conn, c.data)
	}
	var back []byte
	return readFrames(r, c.conn, func(payload []byte) {
		c.data(payload)
		back = websocket.AppendMaskedFrame(back[:0], websocket.OpText, payload, [4]byte{})
		_, _ = c.conn.Write(back) // the end is seen by reading
	})
}

// readFrames calls data with the payload of each message, which has one frame and is masked with zeros, if at all.
func readFrames(r *bufio.Reader, w io.Writer, data func([]byte)) error {
	for {
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		n := int(head[1] & 0x7f)
		if n == 126 {
			var long [2]byte
			if _, err := io.ReadFull(r, long[:]); err != nil {
				return err
			}
			n = int(binary.BigEndian.Uint16(long[:]))
		}
		if head[1]&0x80 != 0 {
			if _, err := r.Discard(4); err != nil {
				return err
			}
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(r, payload); err != nil {
			return err
		}
		switch head[0] & 0xf {
		case 8:
			return fmt.Errorf("closed: %q", payload)
		case 9:
			if _, err := w.Write(websocket.AppendMaskedFrame(nil, websocket.OpPong, payload, [4]byte{})); err != nil {
				return err
			}
		case 10:
		default:
			data(payload)
		}
	}
}

// followStream is follow for a stream of HTTP/2.
func (c *client) followStream(path string) error {
	if _, err := io.WriteString(c.conn, http2.ClientPreface); err != nil {
		return err
	}
	fr := http2.NewFramer(c.conn, bufio.NewReaderSize(c.conn, 1024))
	fr.SetReuseFrames()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "127.0.0.1"}, {":path", path}, {"accept", "text/event-stream"}, {"user-agent", "takeover"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into a buffer
	}
	if err := errors.Join(fr.WriteSettings(), fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})); err != nil {
		return err
	}
	owed := uint32(0)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = fr.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame:
			c.up.Store(1)
		case *http2.DataFrame:
			c.data(f.Data())
			if owed += f.Length; owed > 16<<10 {
				err = errors.Join(fr.WriteWindowUpdate(0, owed), fr.WriteWindowUpdate(1, owed))
				owed = 0
			}
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			return fmt.Errorf("got %v", f)
		}
		if err != nil {
			return err
		}
	}
}

// data looks for messages in what came.
func (c *client) data(b []byte) {
	for len(b) > 0 {
		var sent int64
		var number uint64
		var ok bool
		if b, sent, number, ok = c.scan.next(b); !ok {
			return
		}
		c.account(sent, number)
	}
}

// account notes one message.
func (c *client) account(sent int64, number uint64) {
	c.received++
	late := time.Duration(time.Now().UnixNano() - sent)
	c.longest = max(c.longest, late)
	if len(c.late) < maxSamples {
		c.late = append(c.late, late)
	}
	switch last := c.last.Load(); {
	case number == last+1:
	case number == last:
		c.repeated++
	case number < last:
		c.reversed++
		return
	default:
		c.lost += number - last - 1
	}
	c.last.Store(number)
}

// maxSamples bounds what a client keeps of delays, beside the longest.
const maxSamples = 4096

// A scanner finds messages, "^<time> <number>$", in bytes of whatever framing.
type scanner struct{ part []byte }

// next returns the next message, and what comes after it.
func (s *scanner) next(b []byte) (rest []byte, sent int64, number uint64, ok bool) {
	if len(s.part) == 0 {
		i := bytes.IndexByte(b, '^')
		if i < 0 {
			return nil, 0, 0, false
		}
		b = b[i:]
	}
	end := bytes.IndexByte(b, '$')
	if end < 0 {
		s.part = append(s.part, b...)
		return nil, 0, 0, false
	}
	text := append(s.part, b[:end]...)
	s.part = nil
	at, n, _ := bytes.Cut(text[1:], []byte(" "))
	sent, err := strconv.ParseInt(string(at), 10, 64)
	if err == nil {
		number, err = strconv.ParseUint(string(n), 10, 64)
	}
	return b[end+1:], sent, number, err == nil
}

func channelName(n int) string { return "bench." + strconv.Itoa(n) }
