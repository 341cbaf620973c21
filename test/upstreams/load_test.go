package upstreams

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A load is a steady client: some connections that are kept, on each one request
// after the other at a pace. It repeats nothing.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	stage  string
	sent   int
	served map[string]int // by peer
	failed []string
	unsure []string // posts without a good answer
	posted []string // posts with one
}

// startLoad sends requests to addr, every pace on each of conns connections. All
// must be answered with 200 and the whole body, on the connection's first life.
func startLoad(t *testing.T, addr, path string, conns int, pace time.Duration) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, served: map[string]int{}}
	for range conns {
		l.wg.Go(func() { l.ask(ctx, addr, path, pace) })
	}
	t.Cleanup(l.stop)
	return l
}

// post adds connections that send posts, which may fail, but not be sent twice.
func (l *load) post(addr, path string, conns int, pace time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	before := l.cancel
	l.cancel = func() { before(); cancel() }
	for c := range conns {
		l.wg.Go(func() {
			for n := 0; ctx.Err() == nil; {
				n = l.postUntilCut(ctx, addr, path, pace, c, n)
			}
		})
	}
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

func (l *load) ask(ctx context.Context, addr, path string, pace time.Duration) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		l.fail(err.Error())
		return
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		peer, err := one(conn, r, "GET "+path+" HTTP/1.1\r\nHost: site.example\r\n\r\n")
		if err != nil {
			l.fail(fmt.Sprintf("after %s: %v", time.Since(began).Round(time.Millisecond), err))
			return
		}
		l.mu.Lock()
		l.sent++
		l.served[peer]++
		l.mu.Unlock()
	}
}

var errNot200 = errors.New("not served")

// one sends a request and says which peer answered it.
func one(conn net.Conn, r *bufio.Reader, request string) (peer string, err error) {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", err
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: %d %s", errNot200, res.StatusCode, body)
	case string(body) != whole:
		return "", fmt.Errorf("%d bytes of %d", len(body), len(whole))
	case res.Close:
		return "", errors.New("the connection is not kept")
	}
	return res.Header.Get("X-Peer"), nil
}

// postUntilCut posts on one connection and returns the number to continue with.
func (l *load) postUntilCut(ctx context.Context, addr, path string, pace time.Duration, c, n int) int {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		l.fail(err.Error())
		return n
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
		}
		n++
		id := fmt.Sprintf("%d-%d", c, n)
		_, err := one(conn, r, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: site.example\r\nX-Id: %s\r\nContent-Length: 5\r\n\r\nhello", path, id))
		l.mu.Lock()
		if err == nil {
			l.posted = append(l.posted, id)
		} else {
			l.unsure = append(l.unsure, id)
		}
		l.mu.Unlock()
		if err != nil && !errors.Is(err, errNot200) {
			return n
		}
	}
}

func (l *load) fail(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, l.stage+": "+what)
}

// enter names what happens now, for failures.
func (l *load) enter(stage string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stage = stage
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

func (l *load) by(peer string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served[peer]
}
