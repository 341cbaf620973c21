package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/weir-gateway/weir/internal/observe/admin"
)

// A screen is a terminal that is rewritten whole, and whose keys come at once.
type screen struct {
	out   *os.File
	tty   *os.File // for keys; its reads can be interrupted
	fd    int
	color bool

	was     *term.State
	restore sync.Once
}

// openScreen is a screen on out, nil if that is not a terminal that can be rewritten.
func openScreen(out io.Writer) *screen {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return nil
	}
	s := &screen{out: f, tty: tty, fd: int(f.Fd()), color: os.Getenv("NO_COLOR") == ""}
	conn, err := tty.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { s.was, _ = term.MakeRaw(int(fd)) })
	}
	if err != nil || s.was == nil {
		tty.Close()
		return nil
	}
	// The other screen, no cursor.
	fmt.Fprint(f, "\x1b[?1049h\x1b[?25l\x1b[2J")
	return s
}

// close gives the terminal back as it was. It is idempotent.
func (s *screen) close() {
	s.restore.Do(func() {
		fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
		if conn, err := s.tty.SyscallConn(); err == nil {
			_ = conn.Control(func(fd uintptr) { _ = term.Restore(int(fd), s.was) })
		}
		s.tty.Close()
	})
}

// size is the terminal's, 80×24 where it does not say.
func (s *screen) size() (width, height int) {
	w, h, err := term.GetSize(s.fd)
	if err != nil || w < 1 || h < 1 {
		return 80, 24
	}
	return w, h
}

// draw replaces what is shown.
func (s *screen) draw(lines []topLine, width, height int) {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i := range height {
		if i < len(lines) {
			b.WriteString(lines[i].render(width, s.color))
		}
		b.WriteString("\x1b[K")
		if i < height-1 {
			b.WriteString("\r\n")
		}
	}
	fmt.Fprint(s.out, b.String())
}

// keys gives on every byte that is typed until the terminal is closed.
func (s *screen) keys(ctx context.Context, on chan<- byte) {
	var buf [64]byte
	for {
		n, err := s.tty.Read(buf[:])
		if err != nil {
			return
		}
		if n > 1 && buf[0] == 0x1b {
			continue // an arrow or the like, which none of the keys is
		}
		for _, b := range buf[:n] {
			select {
			case on <- b:
			case <-ctx.Done():
				return
			}
		}
	}
}

// interactive draws until q, ^C, a signal or the end of the terminal, and leaves that as it was.
func (f *topFlags) interactive(ctx context.Context, src *topSource, s *screen) error {
	defer s.close()
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer cancel()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	keys := make(chan byte, 16)
	var wg sync.WaitGroup
	wg.Go(func() {
		s.keys(ctx, keys)
		cancel() // the terminal is gone, and not every system signals that
	})
	defer wg.Wait() // after close, which ends the read
	defer s.close()
	defer cancel()

	v := topView{view: slices.Index(topViews, f.view), sort: slices.Index(topSorts, f.sort), full: true}
	table := consumerTable{src: src}
	defer table.wg.Wait()
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	show := func() {
		v.width, v.height = s.size()
		v.rows, v.rowsErr = table.get()
		s.draw(v.lines(), v.width, v.height)
	}
	next := func() error {
		sn, err := src.newest()
		if err != nil && sn == nil && isRefused(err) {
			return adminError("top", err)
		}
		if v.problem = err; !v.held && sn != nil {
			v.snapshot = sn
			if v.consumers() {
				table.fetch(ctx, topSorts[v.sort])
			}
		}
		return nil
	}
	first := src.came
	show()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case <-first:
			// The first frame comes as soon as there is one.
			if sn, _ := src.newest(); sn != nil {
				first = nil
			}
			if err := next(); err != nil {
				return err
			}
		case <-tick.C:
			if err := next(); err != nil {
				return err
			}
		case k := <-keys:
			if v.key(k) {
				return nil
			}
			if v.consumers() {
				table.fetch(ctx, topSorts[v.sort])
			}
		}
		show()
	}
}

// A consumerTable requests the consumers in another order than snapshots have, one
// request at a time.
type consumerTable struct {
	src *topSource
	wg  sync.WaitGroup

	mu     sync.Mutex
	asking bool
	rows   []admin.Connection
	err    error
}

func (t *consumerTable) fetch(ctx context.Context, sort string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking {
		return
	}
	t.asking = true
	t.wg.Go(func() {
		rows, err := t.src.connections(ctx, sort, 100)
		t.mu.Lock()
		t.rows, t.err, t.asking = rows, err, false
		t.mu.Unlock()
	})
}

func (t *consumerTable) get() ([]admin.Connection, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows, t.err
}
