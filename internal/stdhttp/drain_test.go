package stdhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/trial"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
)

func TestDrainEndsEventStreamsBehindAnEvent(t *testing.T) {
	half := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		if r.URL.Path == "/half" {
			_, _ = io.WriteString(w, "data: ha")
			_ = rc.Flush()
			<-half
			_, _ = io.WriteString(w, "lf\n\n")
		}
		_ = rc.Flush()
		<-r.Context().Done()
	}))
	defer backend.Close()
	s := newSite(t, []policy.RouteConfig{{Cluster: "main"}}, []upstream.Config{{Name: "main",
		Peers: []upstream.PeerConfig{{Address: backend.Listener.Addr().String()}}}}, nil, overHTTP2)
	var all sync.WaitGroup
	f := func(path, want string) {
		t.Helper()
		res, err := s.c.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if events, last, _ := strings.Cut(string(b), "retry: "); err != nil || events != want || !strings.HasSuffix(last, "\n\n") {
				t.Errorf("%s: %q, %v, want %q", path, b, err, want)
			}
		})
	}
	for range 4 {
		f("/", "data: 1\n\n")
		f("/half", "data: 1\n\ndata: half\n\n")
	}
	if n := s.front.Streams(); n != 8 {
		t.Errorf("%d streams", n)
	}
	s.front.Drain(wire.DrainPlan{Over: 3 * time.Second})
	trial.Eventually(t, "some leave", func() bool { return s.front.Streams() <= 6 })
	close(half)
	all.Wait()
	f("/", "data: 1\n\n") // who comes now has to leave at once
	all.Wait()
	if n := s.front.Streams(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}
