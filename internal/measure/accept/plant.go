package accept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// plantLine is what a process with a planted leak says first.
type plantLine struct {
	URL  string `json:"url"`  // of its profiles
	Line string `json:"line"` // that leaks
}

// Plant is a process that leaks on request, for the leak hunt: kind is goroutine, memory or
// descriptor. It serves profiles on loopback and ends with in, which is its standard input.
func Plant(ctx context.Context, kind string, in io.Reader, out io.Writer) error {
	runtime.MemProfileRate = 1 // each allocation, before there are any
	p := &leaky{}
	kinds := map[string]func(){"goroutine": p.goroutine, "memory": p.memory, "descriptor": p.descriptor}
	one, ok := kinds[kind]
	if !ok {
		return fmt.Errorf("planted leak %q: want goroutine, memory or descriptor", kind)
	}
	one() // finds its own line
	p.wait()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/leak", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n")) // 0: nothing leaks
		for range min(n, 1000) {
			one()
		}
		p.wait()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process, which is about to end with it
		defer cancel()
		_, _ = io.Copy(io.Discard, in)
	}()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	p.mu.Lock()
	line := plantLine{URL: "http://" + l.Addr().String(), Line: p.line}
	p.mu.Unlock()
	if err := json.NewEncoder(out).Encode(line); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// leaky holds what leaks.
type leaky struct {
	mu      sync.Mutex
	line    string // that leaks
	started sync.WaitGroup
	never   chan struct{} // nil: nothing is sent
	kept    [][]byte
	files   []*os.File
}

// below notes the line below its call as the one that leaks, and calls then.
func (p *leaky) below(then ...func()) {
	_, file, line, _ := runtime.Caller(1)
	p.mu.Lock()
	p.line = fmt.Sprintf("%s:%d", file, line+1)
	p.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// wait returns when what was started is where it stays.
func (p *leaky) wait() { p.started.Wait() }

// goroutine leaks a reader that ignores its context.
func (p *leaky) goroutine() {
	p.started.Add(1)
	go p.block()
}

func (p *leaky) block() {
	p.below(p.started.Done)
	<-p.never
}

// memory leaks a buffer that is never let go of.
func (p *leaky) memory() {
	p.below()
	buffer := make([]byte, 4096)
	p.mu.Lock()
	p.kept = append(p.kept, buffer)
	p.mu.Unlock()
}

// descriptor leaks a file that is not closed.
func (p *leaky) descriptor() {
	p.below()
	f, err := os.Open(os.DevNull)
	if err != nil {
		return // the limit is reached: enough has leaked
	}
	p.mu.Lock()
	p.files = append(p.files, f)
	p.mu.Unlock()
}
