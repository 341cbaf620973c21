package poller

import (
	"testing"
	"time"
)

// A client that sends all it can must not make the ring take more than a little of
// what the loop does not want yet.
func TestWhatIsNotWantedStaysInTheSocket(t *testing.T) {
	const conns, wanted, allowed = 20, 256 << 10, 256 << 10
	p, s := uringServer(t, 0, ringEntries, ringResults)
	got := map[*peer]int{}
	s.received = func(c *peer, b []byte) {
		if got[c] += len(b); got[c] >= wanted {
			c.reading(false)
		}
	}
	s.start()
	full := make(chan int, conns)
	for range conns {
		c := s.dial()
		go func() {
			n := 0
			for piece := make([]byte, 64<<10); n < 64<<20; {
				_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				k, err := c.Write(piece)
				if n += k; err != nil {
					break
				}
			}
			full <- n
		}()
	}
	sent := 0
	for range conns {
		sent += <-full
	}
	s.do(func() {
		held, most := 0, 0
		for _, in := range p.held {
			held += cap(in.b)
			most = max(most, cap(in.b))
		}
		if len(got) != conns || sent < conns*wanted {
			t.Errorf("%d connections have sent %d bytes", len(got), sent)
		}
		if held > conns*allowed {
			t.Errorf("%d bytes are held for %d connections, at most %d for one", held, conns, most)
		}
		for c, n := range got {
			got[c] = n - 64<<20 // the rest is wanted
			c.reading(true)
		}
	})
	s.until("all was received", func() bool {
		total := 0
		for _, n := range got {
			total += n + 64<<20
		}
		return total == sent
	})
	s.until("no connection moves much any more", func() bool { return len(p.held) == 0 })
}

func TestAConnectionThatSendsLittleAgainIsNoLongerBulk(t *testing.T) {
	p, s := uringServer(t, 0, ringEntries, ringResults)
	s.received = echo
	s.start()
	c := s.dial()
	want := pattern(4 << 20)
	go func() { _, _ = c.Write(want) }()
	readAll(t, c, want)
	for range 3 {
		_, _ = c.Write(want[:100])
		readAll(t, c, want[:100])
	}
	s.do(func() {
		if len(p.bulk.conns) != 0 {
			t.Errorf("%d connections move much", len(p.bulk.conns))
		}
		if p.bulk.buffers == nil {
			t.Error("none ever did")
		}
	})
}
