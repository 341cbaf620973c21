package judge

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An Event is what a subscriber was given.
type Event struct {
	// Session counts the subscriber's connections from 1.
	Session int
	// Kind is "message", "gap", or "end" with the code and reason in Data.
	Kind string
	// Channel is empty for a raw SSE stream of one channel.
	Channel string
	ID      string
	Data    []byte
}

// A Subscriber follows channels by raw reads from a socket and resumes where it
// was after every end of a connection.
type Subscriber struct {
	// Addr is dialled; it may be a relay's.
	Addr string
	// Socket takes /ws instead of /sse.
	Socket bool
	// Envelope requests envelopes of /sse with one channel too.
	Envelope bool
	Channels []string
	Token    string
	// Last is the position to start from: "0" is all history, empty live only.
	// While Run runs it belongs to it.
	Last string
	// On is called by Run for every event, in order.
	On func(Event)
	// Up, if set, is called when a session is accepted.
	Up func(session int)
	// Served, if set, is called when a session has shown that it is served: the stream
	// has a position, or the socket is subscribed.
	Served func(session int)
	// Patient has it wait before it reconnects as an EventSource does: for as long as the
	// server's last retry field says.
	Patient bool
	// Dial makes its connections; nil means plain ones.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	session int
	served  int           // the last session for which Served was called
	retry   time.Duration // what the server requested
}

func (s *Subscriber) serves() {
	if s.served != s.session {
		s.served = s.session
		if s.Served != nil {
			s.Served(s.session)
		}
	}
}

// errEnd is how a session ends that the server ended in words.
var errEnd = errors.New("ended by the server")

// Run connects and reads until ctx is done. It returns an error only for an
// answer that no reconnect can fix: a status other than 200, 101, 429 or 503, a
// frame or event that is not of the protocol.
func (s *Subscriber) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.once(ctx)
		var final *protocolError
		if errors.As(err, &final) {
			return err
		}
		pause := 30*time.Millisecond + mathrand.N(60*time.Millisecond)
		if s.Patient && s.retry > 0 {
			pause = s.retry
		}
		select { // not a wait for anything: the pace of reconnecting
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// A protocolError is an answer that breaks the contract.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return e.what }

func broke(format string, a ...any) error { return &protocolError{fmt.Sprintf(format, a...)} }

// Once is Run for a single connection; the error says how it ended.
func (s *Subscriber) Once(ctx context.Context) error { return s.once(ctx) }

func (s *Subscriber) once(ctx context.Context) error {
	dial := s.Dial
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	conn, err := dial(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	s.session++
	if _, err := io.WriteString(conn, s.request()); err != nil {
		return err
	}
	r := bufio.NewReaderSize(conn, 4<<10)
	status, chunked, err := readHead(r)
	if err != nil {
		return err
	}
	switch {
	case status == 429 || status == 503:
		return fmt.Errorf("status %d", status)
	case s.Socket && status != 101, !s.Socket && status != 200:
		return broke("subscribe: status %d", status)
	}
	if s.Up != nil {
		s.Up(s.session)
	}
	if s.Socket {
		return s.readFrames(conn, r)
	}
	if chunked {
		r = bufio.NewReaderSize(httputil.NewChunkedReader(r), 4<<10)
	}
	return s.readEvents(r)
}

func (s *Subscriber) request() string {
	q := url.Values{"channel": s.Channels}
	if s.Token != "" {
		q.Set("token", s.Token)
	}
	if !s.Socket {
		if s.Envelope {
			q.Set("envelope", "1")
		}
		last := ""
		if s.Last != "" {
			last = "Last-Event-ID: " + s.Last + "\r\n"
		}
		return "GET /sse?" + q.Encode() + " HTTP/1.1\r\nHost: " + s.Addr + "\r\nAccept: text/event-stream\r\n" + last + "\r\n"
	}
	q.Set("hello", "1")
	if s.Last != "" {
		q.Set("since", s.Last)
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:])
	return "GET /ws?" + q.Encode() + " HTTP/1.1\r\nHost: " + s.Addr + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.StdEncoding.EncodeToString(nonce[:]) + "\r\n\r\n"
}

// readHead reads a response's head and returns its status, and whether its body is chunked.
func readHead(r *bufio.Reader) (status int, chunked bool, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, false, err
	}
	if _, err := fmt.Sscanf(line, "HTTP/1.1 %d", &status); err != nil {
		return 0, false, broke("status line %q", line)
	}
	for {
		line, err := r.ReadString('\n')
		switch {
		case err != nil:
			return 0, false, err
		case line == "\r\n":
			return status, chunked, nil
		case strings.EqualFold(line, "Transfer-Encoding: chunked\r\n"):
			chunked = true
		}
	}
}

// readEvents reads an event stream (WHATWG HTML §9.2.6). An event that its blank
// line did not end is dropped, its id with it.
func (s *Subscriber) readEvents(r *bufio.Reader) error {
	kind, id := "", s.Last
	var data []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if id != "" && kind == "" {
				s.serves()
			}
			s.Last = id
			if data != nil {
				if err := s.event(kind, id, []byte(strings.Join(data, "\n"))); err != nil {
					return err
				}
			}
			kind, data = "", nil
		case field == "": // a comment
		case field == "id":
			id = value
		case field == "event":
			kind = value
		case field == "data":
			data = append(data, value)
		case field == "retry":
			if n, err := strconv.Atoi(value); err == nil {
				s.retry = time.Duration(n) * time.Millisecond
			}
		default:
			return broke("event stream: line %q", line)
		}
	}
}

func (s *Subscriber) event(kind, id string, data []byte) error {
	e := Event{Session: s.session, Kind: "message", ID: id, Data: data}
	switch {
	case kind == "gap":
		e.Kind = kind
	case kind == "end":
		e.Kind = kind
		s.On(e)
		return errEnd
	case kind != "":
		return broke("event stream: event %q", kind)
	case s.Envelope || len(s.Channels) > 1:
		env, err := openEnvelope(data)
		if err != nil {
			return err
		}
		if env.ID != id {
			return broke("event stream: id %q on an envelope with id %q", id, env.ID)
		}
		e.Channel, e.Data = env.Channel, env.Data
	}
	s.On(e)
	return nil
}

// An envelope is a frame's JSON.
type envelope struct {
	Type    string          `json:"type"`
	Channel string          `json:"channel"`
	ID      string          `json:"id"`
	Offset  uint64          `json:"offset"`
	Data    json.RawMessage `json:"data"`
}

func openEnvelope(text []byte) (envelope, error) {
	var env envelope
	if err := json.Unmarshal(text, &env); err != nil {
		return env, broke("envelope %.80q: %v", text, err)
	}
	if place, _, _ := strings.Cut(env.ID, "."); env.Type == "" && !strings.HasSuffix(place, fmt.Sprintf("-%d", env.Offset)) {
		return env, broke("envelope with offset %d and id %q", env.Offset, env.ID)
	}
	return env, nil
}

// The opcodes of RFC 6455 §5.2 that a server of ours sends.
const (
	opText  = 1
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// readFrames reads WebSocket frames, one envelope in each (RFC 6455 §5).
func (s *Subscriber) readFrames(conn net.Conn, r *bufio.Reader) error {
	for {
		op, payload, err := readFrame(r)
		if err != nil {
			return err
		}
		switch op {
		case opText:
			env, err := openEnvelope(payload)
			if err != nil {
				return err
			}
			if env.ID != "" {
				s.Last = env.ID
			}
			e := Event{Session: s.session, Kind: "message", Channel: env.Channel, ID: env.ID, Data: env.Data}
			switch env.Type {
			case "":
				s.On(e)
			case "gap":
				e.Kind, e.Data = "gap", payload
				s.On(e)
			case "subscribed":
				s.serves()
			default:
				return broke("frame of type %q", env.Type)
			}
		case opPing:
			if _, err := conn.Write(AppendFrame(nil, opPong, payload)); err != nil {
				return err
			}
		case opPong:
		case opClose:
			s.On(Event{Session: s.session, Kind: "end", Data: closeText(payload)})
			_, _ = conn.Write(AppendFrame(nil, opClose, payload))
			return errEnd
		default:
			return broke("frame with opcode %d", op)
		}
	}
}

func closeText(payload []byte) []byte {
	if len(payload) < 2 {
		return nil
	}
	text, _ := json.Marshal(map[string]any{"code": binary.BigEndian.Uint16(payload), "reason": string(payload[2:])})
	return text
}

// readFrame reads one whole, unfragmented, unmasked frame.
func readFrame(r *bufio.Reader) (op byte, payload []byte, err error) {
	var h [8]byte
	if _, err := io.ReadFull(r, h[:2]); err != nil {
		return 0, nil, err
	}
	if h[0]&0xF0 != 0x80 || h[1]&0x80 != 0 {
		return 0, nil, broke("frame head % x: want a whole, unmasked frame without extension", h[:2])
	}
	op = h[0] & 0x0F
	n := uint64(h[1])
	switch n {
	case 126:
		if _, err := io.ReadFull(r, h[:2]); err != nil {
			return 0, nil, err
		}
		n = uint64(binary.BigEndian.Uint16(h[:]))
	case 127:
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return 0, nil, err
		}
		n = binary.BigEndian.Uint64(h[:])
	}
	if n > 4<<20 {
		return 0, nil, broke("frame of %d bytes", n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return op, payload, err
}

// AppendFrame appends a whole masked frame, as a client sends it.
func AppendFrame(dst []byte, op byte, payload []byte) []byte {
	dst = append(dst, 0x80|op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, 0x80|byte(n))
	case n < 1<<16:
		dst = append(dst, 0x80|126)
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	default:
		dst = append(dst, 0x80|127)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	}
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d} // the one of RFC 6455 §5.7
	dst = append(dst, mask[:]...)
	for i, b := range payload {
		dst = append(dst, b^mask[i%4])
	}
	return dst
}
