package h3

import (
	"context"
	"crypto/tls"
	"runtime"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestUnderLoadClientsProveTheirAddress(t *testing.T) {
	w := newWorld(t, Config{MaxHandshakes: 7}) // an eighth of it is none
	c := w.dial(nil)
	if got, err := c.answer(c.request(get("/"))); err != nil || got == "" {
		t.Errorf("%q %v", got, err)
	}
	if s := w.srv.Stats(); s.Retries == 0 || s.Connections != 1 {
		t.Errorf("%+v", s)
	}
}

// quic-go refuses a connection when 32 wait to be accepted, which they do where goroutines
// have one processor.
func TestClientsThatConnectAtOnceAreAllAccepted(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const clients = 100
	w := newWorld(t, Config{MaxHandshakes: 10 * clients, HandshakeTimeout: trial.Patience})
	patient := &quic.Config{HandshakeIdleTimeout: trial.Patience, MaxIdleTimeout: 2 * trial.Patience}
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			q, err := quic.DialAddr(ctx, w.addr.String(), &tls.Config{RootCAs: w.pool, NextProtos: []string{Protocol}}, patient)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = q.CloseWithError(0, "") }()
			c := &client{q, t}
			s, err := c.OpenStreamSync(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = s.Write(get("/"))
			_ = s.Close() // reading reports what came of it
			if got, err := c.answer(s); err != nil || got == "" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	all.Wait()
}
