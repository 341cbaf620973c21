package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// Readers are subscribers over SSE that read and do not look at what comes, so that the generator
// takes as little of the machine as can be: they are the load that a publication makes. A [Spec] of
// kind SSE or PubSub measures deliveries, and takes more.
type Readers struct {
	conns            []net.Conn
	delivered, ended atomic.Uint64
	over             atomic.Bool
	all              sync.WaitGroup
}

// Connect adds n subscribers of a path at the address of a server; it returns when the server has
// answered all of them with status 200. With gzip they accept compressed events; only events that are
// not compressed are counted by Delivered. It must not be called together with Close.
func (r *Readers) Connect(ctx context.Context, addr, path string, n int, gzip bool) error {
	accept := ""
	if gzip {
		accept = "Accept-Encoding: gzip\r\n"
	}
	for range n {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		r.conns = append(r.conns, c)
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, addr, accept); err != nil {
			return err
		}
		in := bufio.NewReaderSize(c, 4096)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if res.StatusCode != http.StatusOK { // the connection is closed with the others
			return errors.Join(fmt.Errorf("%s: %s", path, res.Status), res.Body.Close())
		}
		r.all.Go(func() { r.read(c, in, !gzip) })
	}
	return nil
}

func (r *Readers) read(c net.Conn, head *bufio.Reader, count bool) {
	rest, _ := head.Peek(head.Buffered()) // what is buffered is there
	buf := make([]byte, 256<<10)
	for n := copy(buf, rest); ; {
		if count {
			r.delivered.Add(uint64(bytes.Count(buf[:n], []byte("data: "))))
		}
		var err error
		if n, err = c.Read(buf); err != nil {
			if !r.over.Load() {
				r.ended.Add(1)
			}
			return
		}
	}
}

// Delivered is how many events came that were not compressed; an event at the border of two reads
// may be missing.
func (r *Readers) Delivered() uint64 { return r.delivered.Load() }

// Ended is how many connections ended before Close.
func (r *Readers) Ended() uint64 { return r.ended.Load() }

// Close ends all connections and waits for their goroutines.
func (r *Readers) Close() {
	r.over.Store(true)
	for _, c := range r.conns {
		_ = c.Close() // nothing more is sent on it
	}
	r.all.Wait()
}

// PriceText is a snapshot of a market of size bytes, as a text without quotes and line ends: different
// numbers, always the same ones, which compress as numbers do.
func PriceText(size int) string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "EURUSD %.5f %.5f %d;", 1+r.Float64(), 1+r.Float64(), r.IntN(1e6))
	}
	return b.String()[:size]
}
