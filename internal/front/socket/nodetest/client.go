package nodetest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// A Feed is what comes to a client, read as it comes and kept until the test looks.
type Feed[T any] struct {
	// C has what came, Ended then gets why no more does, once.
	C     <-chan T
	Ended chan error
	// Stop ends the client, which the end of the test does otherwise.
	Stop func()

	t *testing.T
}

// room is how much a Feed keeps; a client that has more to look at does not read on.
const room = 1 << 14

// Follow runs read, which puts what comes, until it returns. stop must make it return.
func Follow[T any](t *testing.T, read func(put func(T)) error, stop func()) *Feed[T] {
	c, over := make(chan T, room), make(chan struct{})
	f := &Feed[T]{C: c, Ended: make(chan error, 1), t: t}
	var reader sync.WaitGroup
	reader.Go(func() {
		f.Ended <- read(func(v T) {
			select {
			case c <- v:
			case <-over:
			}
		})
	})
	f.Stop = sync.OnceFunc(func() { close(over); stop(); reader.Wait() })
	t.Cleanup(f.Stop)
	return f
}

// Next is the next that comes.
func (f *Feed[T]) Next() T {
	f.t.Helper()
	timeout := time.NewTimer(trial.Patience)
	defer timeout.Stop()
	for {
		select {
		case v := <-f.C:
			return v
		case err := <-f.Ended:
			f.Ended <- err
			if len(f.C) == 0 { // what came before the end first
				f.t.Fatalf("ended: %v", err)
			}
		case <-timeout.C:
			f.t.Fatal("nothing came")
		}
	}
}

// Rest is all that comes up to the end, and why it ended.
func (f *Feed[T]) Rest() (all []T, err error) {
	f.t.Helper()
	timeout := time.NewTimer(trial.Patience)
	defer timeout.Stop()
	for {
		select {
		case v := <-f.C:
			all = append(all, v)
		case err := <-f.Ended:
			f.Ended <- err
			if len(f.C) == 0 {
				return all, err
			}
		case <-timeout.C:
			f.t.Fatalf("no end after %d more", len(all))
		}
	}
}

// Closes wants a close frame next.
func (f *Feed[T]) Closes(code uint16, reason string) {
	f.t.Helper()
	all, err := f.Rest()
	if e, ok := errors.AsType[*websocket.CloseError](err); len(all) > 0 || !ok || e.Code != code || e.Reason != reason {
		f.t.Errorf("got %v and ended with %v, want %d %q", all, err, code, reason)
	}
}

// Messages reads the messages of a WebSocket until it ends. b is valid until f returns.
func Messages(c *websocket.Conn, f func(b []byte)) error {
	for {
		_, b, err := c.Read(context.Background())
		if err != nil {
			return err
		}
		f(b)
	}
}

// Dial opens a WebSocket, which is not read yet. It is closed with the test.
func (n *Node) Dial(path string, o websocket.DialOptions) *websocket.Conn {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+n.Addr+path, o) //nolint:bodyclose // a handshake has no body
	n.Must(err)
	n.T.Cleanup(c.CloseNow)
	return c
}

// request makes one; fields are alternating names and values.
func (n *Node) request(ctx context.Context, method, target, body string, fields []string) *http.Response {
	n.T.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.Addr+target, strings.NewReader(body))
	n.Must(err)
	for i := 0; i+1 < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	res, err := n.Client.Do(r)
	n.Must(err)
	return res
}

// Request makes a request, fields are alternating names and values, and reads the answer.
func (n *Node) Request(method, target, body string, fields ...string) (status int, head http.Header, text string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	defer cancel()
	res := n.request(ctx, method, target, body, fields)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	n.Must(err)
	return res.StatusCode, res.Header, string(b)
}

// Stream makes a request that is answered 200 with a body that stays open, which read
// makes something of.
func Stream[T any](n *Node, read func(body io.Reader, put func(T)) error, method, target, body string, fields ...string) (*Feed[T], http.Header) {
	n.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	res := n.request(ctx, method, target, body, fields)
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body)
		cancel()
		n.T.Fatalf("%s %s: %d %s", method, target, res.StatusCode, b)
	}
	return Follow(n.T, func(put func(T)) error { return read(res.Body, put) }, func() { cancel(); _ = res.Body.Close() }), res.Header
}

// Publish publishes past every protocol.
func (n *Node) Publish(p hub.Publication) hub.Position {
	n.T.Helper()
	type answer struct {
		at  hub.Position
		err error
	}
	got := make(chan answer, 1)
	n.Hub.Publish(p, func(at hub.Position, err error) { got <- answer{at, err} })
	a := <-got
	n.Must(a.err)
	return a.at
}
