package loadgen_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// A server that does not answer yet has no more connections than it can keep in its queue; all others follow when
// it answers.
func TestFewConnectionsAreOpenedAtATime(t *testing.T) {
	t.Parallel()
	const conns, most = 700, 256
	var waiting atomic.Int64
	answer := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := waiting.Add(1); n > most {
			select {
			case <-answer:
			default:
				t.Errorf("%d connections are opened at a time", n)
			}
		}
		<-answer
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer s.Close()
	g, err := loadgen.New(loadgen.Spec{Kind: loadgen.SSE, Target: s.URL + "/", Conns: conns, ConnectRate: 1e6, Timeout: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	connected := make(chan error, 1)
	go func() { connected <- g.Connect(t.Context()) }()
	for waiting.Load() < most {
		select {
		case err := <-connected:
			t.Fatalf("connected with %d of %d: %v", waiting.Load(), conns, err)
		case <-time.After(time.Millisecond):
		}
	}
	time.Sleep(50 * time.Millisecond) // one more would come
	close(answer)
	if err := <-connected; err != nil || waiting.Load() != conns {
		t.Errorf("%d of %d connected: %v", waiting.Load(), conns, err)
	}
}
