package poller

import (
	"syscall"
	"testing"
	"time"
)

// After Quiesce, a connection that is read from again, and one that never was, continue as they were.
func TestQuiescedConnectionsContinue(t *testing.T) {
	for _, paused := range []bool{false, true} {
		each(t, func(t *testing.T, s *server) {
			var got syscall.Errno
			s.broken = func(_ *peer, err syscall.Errno) { got = err }
			s.received = echo
			s.start()
			c, at := s.pair()
			s.do(func() {
				at.reading(!paused)
				s.p.Quiesce([]Loan{{Key: at.k, FD: at.fd}}, s, time.Second)
				if !paused {
					at.reading(true)
				}
			})
			if !paused {
				if _, err := c.Write([]byte("after")); err != nil {
					t.Fatal(err)
				}
				readAll(t, c, []byte("after"))
			}
			_ = c.SetLinger(0)
			c.Close()
			s.until("the connection is closed", func() bool { return at.closed })
			if got != syscall.ECONNRESET {
				t.Errorf("paused %v: %v, want ECONNRESET", paused, got)
			}
		})
	}
}
