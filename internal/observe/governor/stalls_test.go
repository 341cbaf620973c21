package governor

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

func tcpInfo(t *testing.T, c net.Conn) sys.TCPInfo {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info sys.TCPInfo
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) { info, errno = sys.ReadTCPInfo(int(fd)) }); err != nil || errno != 0 {
		t.Fatal(err, errno)
	}
	return info
}

// Real sockets: one reader reads, another has stopped; the kernel reports which.
func TestAStoppedReaderIsSeenByTheKernel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pair := func() (w, r net.Conn) {
		w, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if r, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return w, r
	}
	reading, reader := pair()
	stopped, silent := pair()
	for _, c := range []net.Conn{reading, reader, stopped, silent} {
		defer c.Close()
	}
	drained := make(chan struct{})
	go func() {
		b := make([]byte, 64<<10)
		for {
			if _, err := reader.Read(b); err != nil {
				close(drained)
				return
			}
		}
	}()
	block := make([]byte, 64<<10)
	for range 20 {
		if _, err := reading.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	for { // until its buffers are full
		if err := stopped.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := stopped.Write(block); err != nil {
			break
		}
	}
	s := stallSampler{ask: func(dst []SocketSample, phase, of int) []SocketSample {
		return append(dst, SocketSample{ID: 1, TCP: tcpInfo(t, reading), Queued: 10}, SocketSample{ID: 2, TCP: tcpInfo(t, stopped), Queued: 70})
	}}
	var v Stalls
	for end := time.Now().Add(time.Minute); ; {
		s.sample(time.Now(), 2)
		if v = s.latest(time.Now()); v.Stopped == 1 && v.Reader > 0.5 || time.Now().After(end) {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if v.Stopped != 1 || v.Reader <= 0.5 || v.Sampled != 2 || v.Of != 1 {
		t.Errorf("one of two readers stopped: %+v", v)
	}
	if v.Unsent.Max == 0 || v.Queued.Max != 70 || v.Queued.P50 != 10 || v.RTT.Max <= 0 {
		t.Errorf("spreads: %+v", v)
	}
	if v.Stale {
		t.Error("a fresh answer is called stale")
	}
	if late := s.latest(time.Now().Add(time.Minute)); !late.Stale {
		t.Error("an answer a minute old is not called stale")
	}
	reading.Close()
	<-drained
}

func TestWhichSocketsAreSampled(t *testing.T) {
	var phases []int
	of := 0
	s := stallSampler{ask: func(dst []SocketSample, phase, n int) []SocketSample {
		phases, of = append(phases, phase), n
		return dst
	}}
	f := func(conns, want int) {
		t.Helper()
		if s.sample(time.Now(), conns); of != want {
			t.Errorf("of %d connections 1 in %d is sampled, want 1 in %d", conns, of, want)
		}
	}
	f(0, 1)
	f(31, 1)
	f(320, 10)
	f(15000, 64)
	phases, s.turn = nil, 0
	for range 65 * socketsHold {
		s.sample(time.Now(), 15000)
	}
	seen := map[int]int{}
	for _, p := range phases {
		seen[p]++
	}
	if len(seen) != socketsOf || seen[0] != 2*socketsHold || seen[63] != socketsHold {
		t.Errorf("the phases were %v", seen)
	}
}

func TestStallsCountWhatHappenedBetweenTwoLooks(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := stallSampler{}
	look := func(info sys.TCPInfo) Stalls {
		now = now.Add(time.Second)
		s.samples = []SocketSample{{ID: 9, TCP: info}}
		return s.sum(now, 1)
	}
	look(sys.TCPInfo{Busy: 10 * time.Second, ReaderLimited: 9 * time.Second, Unsent: 5, Segments: 100, Retransmits: 50})
	v := look(sys.TCPInfo{Busy: 11 * time.Second, ReaderLimited: 9 * time.Second, BufferLimited: 250 * time.Millisecond, Unsent: 5, Segments: 120, Retransmits: 51})
	if v.Reader != 0 || v.Buffer != 0.25 || v.Stopped != 0 || v.Retransmits != 0.05 {
		t.Errorf("the second look says %+v", v)
	}
	v = look(sys.TCPInfo{Busy: time.Second, ReaderLimited: 900 * time.Millisecond, Unsent: 5, Segments: 3}) // the id's second life
	if v.Reader != 0.9 || v.Stopped != 1 || v.Retransmits != 0 {
		t.Errorf("another connection of that number says %+v", v)
	}
	for i := range 2 * socketsKept {
		s.samples = []SocketSample{{ID: uint64(i)}}
		s.turn = i
		s.sum(now, 1)
	}
	if len(s.seen) > socketsKept {
		t.Errorf("%d sockets are remembered", len(s.seen))
	}
}
