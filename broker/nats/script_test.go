package nats

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A fate is what becomes of one sending of a publish.
type fate int

const (
	passes  fate = iota
	dropped      // it never arrives
	refused      // the server has no leader for it; its answer comes with release
	unheard      // it arrives, and the answer is lost
)

// directReads are, for a plan, all direct reads together.
const directReads = "direct reads"

// A script is a way to a NATS server that decides what becomes of each publish, by its data, and of direct
// reads: the fates of its first sendings, one after another; all others pass.
type script struct {
	t    *testing.T
	addr string
	to   string
	wg   sync.WaitGroup

	mu      sync.Mutex
	fates   map[string][]fate
	sent    map[string]int  // how often each publish was sent
	mute    map[string]bool // replies that are lost once
	sids    map[string]string
	held    []func()
	holding bool
	down    net.Conn
}

func startScript(t *testing.T, to string) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, addr: l.Addr().String(), to: to, fates: map[string][]fate{}, sent: map[string]int{}, mute: map[string]bool{}, sids: map[string]string{}}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		if s.down != nil {
			s.down.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

// plan sets the fates of data, and whether refusals are held until release.
func (s *script) plan(data string, holding bool, fates ...fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fates[data], s.holding = fates, holding
}

// release sends the refusals that are held.
func (s *script) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.held {
		f()
	}
	s.held = nil
}

// sendings returns how often data was sent.
func (s *script) sendings(data string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[data]
}

func (s *script) serve(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("tcp", s.to)
	if err != nil {
		return
	}
	defer up.Close()
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		defer down.Close()
		s.copy(up, func(line string, m []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if f := strings.Fields(line); len(m) > len(line) && s.mute[f[1]] {
				delete(s.mute, f[1])
				return
			}
			down.Write(m)
		})
	})
	s.copy(down, func(line string, m []byte) {
		if s.passes(line, m, down) {
			up.Write(m)
		}
	})
	up.Close()
	<-done
}

// copy calls do for each message of the protocol that it reads from src, with its first line.
func (s *script) copy(src io.Reader, do func(line string, m []byte)) {
	r := bufio.NewReader(src)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		m := []byte(line)
		f := strings.Fields(line)
		if len(f) > 0 && slices.Contains([]string{"PUB", "HPUB", "MSG", "HMSG"}, f[0]) {
			n, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				s.t.Errorf("line %q: %v", line, err)
				return
			}
			body := make([]byte, n+2)
			if _, err := io.ReadFull(r, body); err != nil {
				return
			}
			m = append(m, body...)
		}
		do(line, m)
	}
}

// passes reports whether m goes to the server.
func (s *script) passes(line string, m []byte, down io.Writer) bool {
	f := strings.Fields(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	data := ""
	switch {
	case len(f) > 2 && f[0] == "SUB":
		s.sids[f[1]] = f[len(f)-1]
	case len(f) == 4 && f[0] == "PUB" && strings.Contains(f[1], ".DIRECT.GET."): // subject, reply, length
		data = directReads
	case len(f) == 5 && f[0] == "HPUB": // subject, reply, and two lengths
		for d := range s.fates {
			if bytes.HasSuffix(m, []byte("\r\n\r\n"+d+"\r\n")) {
				data = d
			}
		}
	}
	if len(s.fates[data]) == 0 && s.sent[data] == 0 {
		return true
	}
	s.sent[data]++
	what := passes
	if fates := s.fates[data]; len(fates) > 0 {
		what, s.fates[data] = fates[0], fates[1:]
	}
	reply := f[2]
	switch what {
	case refused:
		sid := s.sids[reply[:strings.LastIndexByte(reply, '.')+1]+"*"]
		refuse := func() { fmt.Fprintf(down, "HMSG %s %s 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", reply, sid) }
		if s.holding {
			s.held = append(s.held, refuse)
		} else {
			refuse()
		}
	case unheard:
		s.mute[reply] = true
		return true
	}
	return what == passes
}
