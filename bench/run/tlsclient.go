package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tlsClients are SSE subscribers over TLS. Each keeps its own sessions, as
// clients on as many machines would.
type tlsClients struct {
	addr  string
	conns []tlsClient
}

type tlsClient struct {
	cfg     *tls.Config
	raw     *net.TCPConn
	conn    *tls.Conn
	resumed bool
}

// openAtOnce bounds the handshakes under way.
const openAtOnce = 128

func newTLSClients(n int, addr string, pool *x509.CertPool) *tlsClients {
	c := &tlsClients{addr: addr, conns: make([]tlsClient, n)}
	for i := range c.conns {
		c.conns[i].cfg = &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	}
	return c
}

// connect opens the clients from..to and returns when all have the beginning of
// their stream.
func (c *tlsClients) connect(ctx context.Context, from, to int) error {
	slots := make(chan struct{}, openAtOnce)
	var all sync.WaitGroup
	var once sync.Once
	var failed error
	for i := from; i < to && ctx.Err() == nil; i++ {
		slots <- struct{}{}
		all.Go(func() {
			if err := c.conns[i].open(ctx, c.addr); err != nil {
				once.Do(func() { failed = fmt.Errorf("client %d: %w", i, err) })
			}
			<-slots
		})
	}
	all.Wait()
	if failed == nil {
		failed = ctx.Err()
	}
	return failed
}

func (c *tlsClient) open(ctx context.Context, addr string) error {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c.raw, c.conn = raw.(*net.TCPConn), tls.Client(raw, c.cfg)
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c.conn, "GET /sse?channel=c0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		return err
	}
	// The session's ticket comes before the answer.
	res, err := http.ReadResponse(bufio.NewReader(c.conn), nil) //nolint:bodyclose // it has no end; reset closes the connection
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /sse: %s", res.Status)
	}
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		return err
	}
	c.resumed = c.conn.ConnectionState().DidResume
	return nil
}

// reset cuts all connections at once.
func (c *tlsClients) reset() {
	for i := range c.conns {
		if raw := c.conns[i].raw; raw != nil {
			_ = raw.SetLinger(0)
			_ = raw.Close()
		}
	}
}

func (c *tlsClients) resumed() (n int) {
	for i := range c.conns {
		if c.conns[i].resumed {
			n++
		}
	}
	return n
}

// usage is what a process has used so far, and holds now.
type usage struct {
	cpu time.Duration
	rss float64 // kB
}

// clockTick is the unit of /proc/PID/stat (USER_HZ, the same everywhere).
const clockTick = 10 * time.Millisecond

func (s *server) usage() (u usage, err error) {
	proc := "/proc/" + strconv.Itoa(s.cmd.Process.Pid)
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return u, err
	}
	// Behind the name, which may have spaces: state is field 3, utime and stime 14 and 15.
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return u, fmt.Errorf("%s/stat: %d fields", proc, len(f))
	}
	for _, v := range f[11:13] {
		n, err := strconv.Atoi(v)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n) * clockTick
	}
	rollup, err := os.ReadFile(proc + "/smaps_rollup")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(rollup)) {
		if v, ok := strings.CutPrefix(line, "Rss:"); ok {
			u.rss, err = strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
		}
	}
	return u, err
}
