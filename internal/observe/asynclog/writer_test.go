package asynclog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func notice(lines uint64) []byte { return fmt.Appendf(nil, "dropped %d\n", lines) }

// A sink is a writer that blocks while its gate is locked, and can fail.
type sink struct {
	gate sync.Mutex

	mu    sync.Mutex // guards the fields below
	err   error
	text  bytes.Buffer
	sizes []int
}

func (s *sink) Write(b []byte) (int, error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	s.sizes = append(s.sizes, len(b))
	return s.text.Write(b)
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Errorf("write %q: %d, %v", text, n, err)
	}
}

// A pipe that is full and not read does not block Write; once it is read, every line is there,
// or counted where it is missing.
func TestFullPipeDropsAndCounts(t *testing.T) {
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := New(pipe, 64<<10, notice)
	const lines = 20_000
	for i := range lines {
		write(t, w, fmt.Sprintf("line %06d %s\n", i, strings.Repeat("x", 50)))
	}
	dropped := w.Dropped()
	if dropped == 0 || dropped >= lines {
		t.Errorf("%d of %d lines dropped", dropped, lines)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		w.Close()
		<-w.ended // also where that takes longer than Close waits
		_ = pipe.Close()
	}()
	text, err := io.ReadAll(r)
	<-closed
	if err != nil {
		t.Fatal(err)
	}
	next, missing := 0, uint64(0)
	for line := range strings.Lines(string(text)) {
		var n int
		if _, err := fmt.Sscanf(line, "dropped %d\n", &n); err == nil {
			next += n
			missing += uint64(n)
			continue
		}
		if _, err := fmt.Sscanf(line, "line %d ", &n); err != nil || n != next {
			t.Fatalf("%q where line %d was due (%v)", line, next, err)
		}
		next++
	}
	if next != lines || missing != dropped {
		t.Errorf("%d lines, %d of them reported as dropped, want %d and %d", next, missing, lines, dropped)
	}
}

func TestCloseFlushes(t *testing.T) {
	var s sink
	w := New(&s, 0, notice)
	write(t, w, "one\n")
	write(t, w, "two\n")
	w.Close()
	w.Close()
	if s.text.String() != "one\ntwo\n" {
		t.Errorf("%q", s.text.String())
	}
	if _, err := io.WriteString(w, "late\n"); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
	if w.Dropped() != 1 {
		t.Errorf("%d dropped, want the late line", w.Dropped())
	}
}

func TestLinesAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, out := io.Pipe()
		w := New(out, 0, notice)
		write(t, w, "one\n")
		buf := make([]byte, 16)
		if n, err := r.Read(buf); string(buf[:n]) != "one\n" || err != nil {
			t.Errorf("%q, %v", buf[:n], err)
		}
		w.Close()
	})
}

func TestCloseGivesUpAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, out := io.Pipe() // not read
		w := New(out, 0, notice)
		write(t, w, "one\n")
		began := time.Now()
		w.Close()
		if d := time.Since(began); d != time.Second {
			t.Errorf("closed after %v", d)
		}
		_ = r.Close() // ends the write
		<-w.ended
	})
}

// A write that fails, as on a full disk, loses lines but not their count.
func TestFailedWritesAreReportedAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sink
		w := New(&s, 0, notice)
		s.fail(errors.New("no space left on device"))
		write(t, w, "one\n")
		synctest.Wait()
		write(t, w, "two\nthree\n")
		synctest.Wait()
		s.fail(nil)
		write(t, w, "four\n")
		write(t, w, "five\n")
		w.Close()
		if got, want := s.text.String(), "dropped 3\nfour\nfive\n"; got != want || w.Dropped() != 3 {
			t.Errorf("%q and %d dropped, want %q and 3", got, w.Dropped(), want)
		}
	})
}

// Lines are written whole and in pieces that a pipe takes at once, longer ones alone.
func TestWritesAreWholeLines(t *testing.T) {
	var s sink
	w := New(&s, 0, notice)
	s.gate.Lock()
	line, long := strings.Repeat("x", 99)+"\n", strings.Repeat("y", 9_999)+"\n"
	write(t, w, "first\n")
	text := strings.Repeat(line, 60) + long + strings.Repeat(line, 3) + "end"
	write(t, w, text)
	s.gate.Unlock()
	w.Close()
	<-w.ended
	if s.text.String() != "first\n"+text {
		t.Errorf("%d bytes, want %d", s.text.Len(), len(text)+6)
	}
	b := s.text.String()
	for _, n := range s.sizes {
		piece := b[:n]
		b = b[n:]
		if n > atomicBytes && strings.Count(piece, "\n") > 1 {
			t.Errorf("a piece of %d bytes with several lines", n)
		}
		if b != "" && !strings.HasSuffix(piece, "\n") {
			t.Errorf("a piece ends within a line: %.40q", piece)
		}
	}
}

func TestManyWriters(t *testing.T) {
	var s sink
	w := New(&s, 0, notice)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				_, _ = fmt.Fprintf(w, "%d %d\n", i, n)
			}
		})
	}
	all.Wait()
	w.Close()
	<-w.ended
	if n := strings.Count(s.text.String(), "\n"); n != 1600 || w.Dropped() != 0 {
		t.Errorf("%d lines, %d dropped", n, w.Dropped())
	}
	var next [8]int
	for line := range strings.Lines(s.text.String()) {
		var i, n int
		if _, err := fmt.Sscanf(line, "%d %d\n", &i, &n); err != nil || n != next[i] {
			t.Fatalf("%q: writer %d was at %d", line, i, next[i])
		}
		next[i]++
	}
}
