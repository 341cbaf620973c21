package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// TestPublishersWorkWhenDescriptorsRunOut: with 300 descriptors 1,000 clients try to
// subscribe and come back at once when they are refused. Publishers and the admin listener
// get in all the time, on new connections, and one log line in 10 s says what happens.
func TestPublishersWorkWhenDescriptorsRunOut(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) { publishersWork(t, engine) })
	}
}

func publishersWork(t *testing.T, engine string) {
	const files, clients, publishes = 300, 1000, 8
	s := judge.New(t, judge.Options{Files: files, Config: map[string]any{"eventloop": map[string]any{"engine": engine}}})
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var mu sync.Mutex
	served, refused := 0, 0
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				ok := streamUntilEnd(ctx, s.Public, func() {
					mu.Lock()
					served++
					mu.Unlock()
				})
				if !ok {
					mu.Lock()
					refused++
					mu.Unlock()
				}
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond): // the pace of an impatient client
				}
			}
		})
	}
	judge.Eventually(t, 60*time.Second, "refusals", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return refused >= clients
	})
	publisher := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range publishes {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Public+"/api/publish", strings.NewReader(fmt.Sprintf(`{"channel":"a","data":%d}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", judge.APIKey)
		req.Header.Set("Content-Type", "application/json")
		res, err := publisher.Do(req)
		if err != nil {
			t.Fatalf("publish %d: %v", i, err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("publish %d: %s", i, res.Status)
		}
		if n := s.Metric("weir_subscribers_closed_total"); n == 0 { // on the admin listener
			t.Error("the refusals are not counted")
		}
	}
	mu.Lock()
	if served == 0 || served > files {
		t.Errorf("%d clients were served with %d descriptors", served, files)
	}
	mu.Unlock()
	lines := strings.Count(s.Log(), "new subscribers are refused")
	if most := int(time.Since(began)/(10*time.Second)) + 1; lines == 0 || lines > most {
		t.Errorf("%d log lines in %v, want 1 to %d", lines, time.Since(began).Round(time.Second), most)
	}
}

// streamUntilEnd follows a stream until it ends or ctx is done. It returns false when the
// stream was refused, which it is with an end; served is called when it is not.
func streamUntilEnd(ctx context.Context, addr string, served func()) bool {
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	fmt.Fprintf(c, "GET /sse?channel=a HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", addr)
	counted := false
	for in := bufio.NewScanner(c); in.Scan(); {
		switch {
		case strings.Contains(in.Text(), `"code":1013`):
			return false
		case !counted && (strings.HasPrefix(in.Text(), "id:") || strings.HasPrefix(in.Text(), ":") || strings.HasPrefix(in.Text(), "data:")):
			counted = true
			served()
		}
	}
	return counted
}
