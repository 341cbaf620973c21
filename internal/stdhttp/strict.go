package stdhttp

import (
	"errors"
	"io"
	"net"
	"sync"

	"github.com/weir-gateway/weir/internal/http1"
)

// strict is a connection to an upstream under a transport of net/http. The transport
// only ever reads what our own parser takes for the one reply to the one request on
// its way: the library is more lenient, and it gives a connection back for the next
// request without looking whether something came behind a reply, which it then takes
// for that request's. Here such a connection is at its end.
type strict struct {
	net.Conn
	limits http1.Limits
	// refused turns an error of the first read into that of a handshake, if it is one;
	// nil: there was none.
	refused func(error) error

	mu sync.Mutex // guards what is below; not held while the socket is waited for
	// The request whose reply is read.
	method, upgrade string
	phase           replyPhase
	interims        int   // 1xx heads of that reply
	left            int64 // of a body with a length
	chunked         http1.Chunked
	in              []byte // read from the socket
	passed          int    // in[:passed] may be had by the transport
	failed          error  // why nothing more may be had
}

type replyPhase uint8

const (
	nobodyAsked replyPhase = iota
	replyHead
	replyLength
	replyChunks
	replyRest // until the connection ends, or another protocol
)

var errUnasked = errors.New("the upstream says more than it was asked")

// ask says that a request goes out on c. upgrade is the protocol that the reply may
// switch to, or empty. It comes before the request's first byte.
func (c *strict) ask(method, upgrade string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase == nobodyAsked && len(c.in) == 0, c.phase == replyHead && len(c.in) == 0: // the latter was never sent
		c.method, c.upgrade, c.phase, c.interims = method, upgrade, replyHead, 0
	default:
		c.fail(errUnasked)
	}
}

// fail ends c after what was passed.
func (c *strict) fail(err error) {
	if c.failed == nil {
		c.failed = err
	}
}

// Write implements net.Conn. Nothing goes out on a connection that is at its end, so
// that the request may be sent on another one.
func (c *strict) Write(b []byte) (int, error) {
	c.mu.Lock()
	err := c.failed
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *strict) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if c.passed > 0 {
			n := copy(b, c.in[:c.passed])
			c.passed -= n
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			c.mu.Unlock()
			return n, nil
		}
		err, rest := c.failed, c.phase == replyRest
		c.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if rest { // nothing is judged any more, and nothing is held
			return c.Conn.Read(b)
		}
		if err := c.more(len(b)); err != nil {
			return 0, err
		}
	}
}

// more reads from the socket and judges what came.
func (c *strict) more(want int) error {
	buf := make([]byte, max(want, 1<<10))
	n, err := c.Conn.Read(buf)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.refused = nil
		c.in = append(c.in, buf[:n]...)
		c.judge()
		return nil
	}
	if err != nil && c.refused != nil {
		err = c.refused(err)
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// judge passes as much of in as is the reply.
func (c *strict) judge() {
	for c.failed == nil && c.passed < len(c.in) {
		b := c.in[c.passed:]
		switch c.phase {
		case nobodyAsked:
			c.fail(errUnasked)
		case replyHead:
			if !c.head(b) {
				return
			}
		case replyLength:
			n := min(c.left, int64(len(b)))
			c.passed += int(n)
			if c.left -= n; c.left == 0 {
				c.phase = nobodyAsked
			}
		case replyChunks:
			_, n, done, err := c.chunked.Decode(b)
			c.passed += n
			switch {
			case err != nil:
				c.fail(err)
			case done:
				c.phase = nobodyAsked
			}
		case replyRest:
			c.passed = len(c.in)
		}
	}
}

// head judges a head. It returns false if that is not whole yet.
func (c *strict) head(b []byte) bool {
	var res http1.Response
	n, err := http1.ParseResponse(&res, b, c.limits, c.method)
	switch {
	case err != nil:
		c.fail(err)
		return true
	case n == 0:
		return false
	case res.Status == 101 && (c.upgrade == "" || !http1.EqualFold(res.Upgrade, c.upgrade)):
		c.fail(errors.New("the upstream switches to a protocol that nobody asked for"))
		return true
	case res.Status < 200 && c.interims == http1.MaxInterim:
		c.fail(errors.New("the upstream sent too many interim replies"))
		return true
	}
	c.passed += n
	switch {
	case res.Status == 101:
		c.phase = replyRest
	case res.Status < 200: // another head follows
		c.interims++
	case res.Body == http1.BodyNone, res.Body == http1.BodyLength && res.ContentLength == 0:
		c.phase = nobodyAsked
	case res.Body == http1.BodyLength:
		c.phase, c.left = replyLength, res.ContentLength
	case res.Body == http1.BodyChunked:
		c.phase, c.chunked = replyChunks, http1.Chunked{}
	default:
		c.phase = replyRest
	}
	return true
}
