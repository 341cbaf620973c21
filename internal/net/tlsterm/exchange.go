package tlsterm

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// An exchange is the net.Conn of one handshake: between the goroutine in which
// crypto/tls reads and writes, and the loop that owns the connection.
//
// Read never gives out more than the rest of one record, so that when the
// handshake is over nothing of what follows it is inside crypto/tls.
type exchange struct {
	// Fixed at start.
	peer         net.Addr
	clientRandom []byte
	// notify makes the loop look at out. Any goroutine.
	notify func()
	gate   chan struct{} // held while computing, given back while waiting
	// line is notified when place waits for the peer; both are nil when that is not needed.
	line  *admission
	place *place

	// The handshake's goroutine only.
	left     int // bytes of the current record that Read has not given out
	started  bool
	head     []byte // the beginning of what was sent: in TLS 1.2 the server's random is in it
	last     []byte // the last record sent
	secrets  secrets
	dialed   bool   // the client's side
	received []byte // then the beginning of what came: in TLS 1.2 the server's random is in it

	mu     sync.Mutex
	in     []byte // from the socket, not yet read
	out    []byte // for the socket
	ended  bool   // the peer sends no more
	err    error  // the connection is gone
	arrive chan struct{}
	loose  bool // Read does not wait any more
}

var (
	errGone = errors.New("the connection is gone")
	errHung = errors.New("the peer says nothing, and others wait")
)

func newExchange(peer net.Addr, random []byte, gate chan struct{}, notify func()) *exchange {
	return &exchange{peer: peer, clientRandom: random, gate: gate, notify: notify, arrive: make(chan struct{}, 1)}
}

// feed gives bytes from the socket and returns how many wait to be read. Loop only.
func (x *exchange) feed(b []byte) int {
	x.mu.Lock()
	x.in = append(x.in, b...)
	n := len(x.in)
	x.mu.Unlock()
	x.signal()
	return n
}

// end reports that the peer sends no more. Loop only.
func (x *exchange) end() {
	x.mu.Lock()
	x.ended = true
	x.mu.Unlock()
	x.signal()
}

// cancel makes Read and Write fail. Any goroutine.
func (x *exchange) cancel(err error) {
	x.mu.Lock()
	if x.err == nil {
		x.err = err
	}
	x.mu.Unlock()
	x.signal()
}

// neverWait makes Read say errNothingYet from now on where it would wait.
func (x *exchange) neverWait() {
	x.mu.Lock()
	x.loose = true
	x.mu.Unlock()
}

func (x *exchange) signal() {
	select {
	case x.arrive <- struct{}{}:
	default:
	}
}

// drainOutput returns what is to be sent. Loop only.
func (x *exchange) drainOutput() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.out
	x.out = nil
	return b
}

// rest returns what came behind the handshake. Loop only, after its end.
func (x *exchange) rest() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.in
	x.in = nil
	return b
}

// Read implements net.Conn for the handshake.
func (x *exchange) Read(b []byte) (int, error) {
	for {
		n, err := x.tryRead(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		<-x.gate
		x.wait()
		x.gate <- struct{}{}
	}
}

// wait returns when the peer has said something, or is gone.
func (x *exchange) wait() {
	if x.place != nil {
		x.line.hangs(x.place)
		defer x.line.resumed(x.place)
	}
	<-x.arrive
}

func (x *exchange) tryRead(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return 0, x.err
	}
	if x.left == 0 && len(x.in) >= headerLen {
		x.left = headerLen + (int(x.in[3])<<8 | int(x.in[4]))
	}
	n := copy(b, x.in[:min(x.left, len(x.in))])
	x.left -= n
	if room := serverRandomAt + randomLen - len(x.received); x.dialed && room > 0 {
		x.received = append(x.received, b[:min(n, room)]...)
	}
	if x.in = x.in[n:]; len(x.in) == 0 {
		x.in = nil
	}
	switch {
	case n == 0 && x.ended:
		return 0, io.EOF
	case n == 0 && x.loose:
		return 0, errNothingYet
	}
	return n, nil
}

// Write implements net.Conn for the handshake. crypto/tls writes whole records.
func (x *exchange) Write(b []byte) (int, error) {
	if x.place != nil {
		x.line.answers(x.place)
	}
	x.remember(b)
	x.mu.Lock()
	err := x.err
	x.out = append(x.out, b...)
	x.mu.Unlock()
	if err != nil {
		return 0, err
	}
	x.notify()
	return len(b), nil
}

// remember keeps what finish needs of what is sent.
func (x *exchange) remember(b []byte) {
	if !x.started {
		x.started = true
		x.head = bytes.Clone(b[:min(len(b), serverRandomAt+randomLen)])
	}
	for len(b) >= headerLen {
		n := min(headerLen+(int(b[3])<<8|int(b[4])), len(b))
		if n == len(b) {
			x.last = bytes.Clone(b)
		}
		b = b[n:]
	}
}

const (
	randomLen = 32
	// serverRandomAt is behind the record's head, the message's and the version.
	serverRandomAt = headerLen + 4 + 2
)

// finish turns a finished handshake into the record layer that continues from it.
func (x *exchange) finish(state *tls.ConnectionState, l *loopState) (*records, error) {
	s := suiteOf(state.Version, state.CipherSuite)
	if s == nil {
		return nil, errors.New("no record layer for " + tls.CipherSuiteName(state.CipherSuite))
	}
	r := &records{loopState: l, suite: s}
	k := &x.secrets
	if s.v13 {
		if len(k.client) != s.hashLen || len(k.server) != s.hashLen {
			return nil, errors.New("the handshake left no traffic secrets")
		}
		s.setSecret(&r.in, k.client)
		s.setSecret(&r.out, k.server)
		r.out.seq = s.sentSince(&r.out, x.last)
		return r, nil
	}
	if len(k.master) == 0 || len(x.clientRandom) != randomLen || len(x.head) < serverRandomAt+randomLen {
		return nil, errors.New("the handshake left no master secret")
	}
	s.setMaster(&r.in, &r.out, k.master, x.clientRandom, x.head[serverRandomAt:])
	return r, nil
}

// sentSince returns how many records the handshake itself sent under h's key:
// session tickets go out that way. The last record sent shows it: it opens under
// the number it was sealed with, and under none if it is of an earlier key.
func (s *suite) sentSince(h *half, last []byte) uint64 {
	const most = 32
	if len(last) < headerLen+tagLen || last[0] != typeData {
		return 0
	}
	a := s.aead(h)
	l := loopState{}
	probe := half{iv: h.iv}
	for ; probe.seq < most; probe.seq++ {
		if _, err := a.Open(nil, l.nonceOf(&probe), last[headerLen:], last[:headerLen]); err == nil {
			return probe.seq + 1
		}
	}
	return 0
}

// secrets takes the secrets of one handshake. crypto/tls gives them out only as
// lines of the key log; nothing but this ever sees them.
type secrets struct {
	client, server []byte // TLS 1.3: the first application traffic secrets
	master         []byte // TLS 1.2
}

// Write implements io.Writer for tls.Config.KeyLogWriter.
func (k *secrets) Write(line []byte) (int, error) {
	f := bytes.Fields(line)
	if len(f) != 3 {
		return 0, errors.New("key log: not three fields")
	}
	secret, err := hex.AppendDecode(nil, f[2])
	if err != nil {
		return 0, err
	}
	switch string(f[0]) {
	case "CLIENT_TRAFFIC_SECRET_0":
		k.client = secret
	case "SERVER_TRAFFIC_SECRET_0":
		k.server = secret
	case "CLIENT_RANDOM":
		k.master = secret
	}
	return len(line), nil
}

// Close implements net.Conn. The loop closes the connection.
func (x *exchange) Close() error { x.cancel(net.ErrClosed); return nil }

// LocalAddr implements net.Conn.
func (x *exchange) LocalAddr() net.Addr { return x.peer }

// RemoteAddr implements net.Conn.
func (x *exchange) RemoteAddr() net.Addr { return x.peer }

// SetDeadline implements net.Conn. The loop's timer bounds the handshake.
func (x *exchange) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (x *exchange) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (x *exchange) SetWriteDeadline(time.Time) error { return nil }
