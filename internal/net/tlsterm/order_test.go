package tlsterm

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// What was written before a request to update the key was read is sealed with the old
// key, and has to leave before the update that answers the request. The long record
// makes the loop read twice within one tick.
func TestAKeyUpdateLeavesBehindWhatWasWrittenBefore(t *testing.T) {
	p := meet(t, byHand(t), tls.VersionTLS13)
	p.send(p.data("warm")) // from here on the loop takes all that has arrived
	p.expect("warm")
	long := string(bytes.Repeat([]byte("x"), 9000))
	for range 20 {
		wire := append(p.data("before"), p.data(long)...)
		wire = append(wire, p.update(updateRequested)...)
		p.send(append(wire, p.data("behind")...))
		p.expect("before" + long + "behind")
	}
}

// pours sends more than the socket takes and ends its side; it reads on.
type pours struct {
	echo
	b []byte
}

func (h pours) Data(c *eventloop.Conn, b []byte) int {
	if len(b) == 2 {
		for range 3 {
			c.Send(h.b)
		}
		c.CloseWrite()
	}
	return len(b)
}
func (pours) EndOfStream(*eventloop.Conn) bool { return true }

// A side that has ended, but has not sent everything, still says when it changes its key.
func TestAKeyUpdateIsAnsweredWhileTheLastBytesWait(t *testing.T) {
	shared := text(1 << 20)
	s := serve(t, Config{Tickets: setting.Off}, func(*eventloop.Conn) eventloop.Handler { return pours{b: shared} })
	stalls, reads := sum(s, func(l eventloop.Stats) uint64 { return l.Stalls }), sum(s, func(l eventloop.Stats) uint64 { return l.Reads })
	p := meet(t, s, tls.VersionTLS13)
	p.send(p.data("go"))
	eventually(t, "a stalled connection", func() bool { return stalls() > 0 })
	before := reads()
	p.send(p.update(updateRequested))
	eventually(t, "the update read", func() bool { return reads() > before })
	if got := p.read(3 << 20); len(got) != 3<<20 {
		t.Fatalf("%d bytes and then %v", len(got), p.err)
	}
	if p.read(1); p.err != io.EOF {
		t.Errorf("the end was %v", p.err)
	}
}

func sum(s *server, f func(eventloop.Stats) uint64) func() uint64 {
	return func() (n uint64) {
		for _, l := range s.group.Loops() {
			n += f(l.Stats())
		}
		return n
	}
}

// farewell sends its text when the peer's side has ended.
type farewell struct{ echo }

func (farewell) Data(_ *eventloop.Conn, b []byte) int { return len(b) }
func (farewell) EndOfStream(c *eventloop.Conn) bool {
	c.Write([]byte("words"))
	c.CloseAfterFlush()
	return true
}

// A request to update the key is answered before the next data (RFC 8446 §4.6.3), also
// when the one who asked has ended its side right behind it.
func TestAKeyUpdateBeforeTheEndIsAnswered(t *testing.T) {
	s := serve(t, Config{Tickets: setting.Off}, func(*eventloop.Conn) eventloop.Handler { return farewell{} })
	p := meet(t, s, tls.VersionTLS13)
	before := p.r.in.key
	p.send(append(p.update(updateRequested), p.r.Close(nil)...))
	p.expect("words")
	if p.r.in.key == before {
		t.Error("the server's key stayed the same")
	}
}

// ponders answers some time after the peer's side has ended.
type ponders struct{ echo }

func (ponders) Data(_ *eventloop.Conn, b []byte) int { return len(b) }
func (ponders) EndOfStream(c *eventloop.Conn) bool {
	c.SetTimer(int64(300 * time.Millisecond))
	return true
}
func (ponders) Timer(c *eventloop.Conn, _ int64) {
	c.Write([]byte("after some thought"))
	c.CloseAfterFlush()
}

// A client may end its side, the stream's and the socket's, and still wait for its
// answer: at once, as everything comes in one segment, or one end after the other.
func TestAHalfClosedClientStillGetsItsAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Tickets: setting.Off}, func(*eventloop.Conn) eventloop.Handler { return ponders{} })
	for _, v := range bothVersions {
		for _, pause := range []time.Duration{0, 50 * time.Millisecond} {
			p := meet(t, s, v)
			p.send(append(p.data("a question"), p.r.Close(nil)...))
			time.Sleep(pause)
			if err := p.raw.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			p.expect("after some thought")
			if p.read(1); p.err != io.EOF {
				t.Errorf("%x: the end was %v", v, p.err)
			}
		}
	}
}
