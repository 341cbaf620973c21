package downstream_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// Fields behind a request's body reach the backend, whatever versions of HTTP the two sides
// speak; but none that may not appear there, and none that the backend trusts us to write.
func TestRequestTrailersReachTheBackend(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.ProtoMajor, " ", n, " ", err, " ", len(r.Trailer["X-Sum"]), r.Trailer.Get("X-Sum"), r.Trailer.Get("Grpc-Bin"),
			r.Trailer.Get("X-Forwarded-For"), r.Trailer.Get("X-Weir-User"), r.Trailer.Get("X-Removed"), r.Trailer.Get("Authorization"), r.Trailer.Get("X-Api-Key"))
	}
	one := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(one.Close)
	backends := map[int]string{1: one.Listener.Addr().String(), 2: newBackend2(t, false, answer).addr()}
	for _, engine := range []string{"epoll", "io_uring"} {
		for backendSpeaks, addr := range backends {
			route := policy.RouteConfig{Cluster: "main", RequestHeaders: policy.HeaderRules{Remove: []string{"X-Removed"}}}
			g := start(t, settings{routes: []policy.RouteConfig{route}, loops: eventloop.Config{Loops: 1, Engine: engine},
				cluster: upstream.Config{Protocol: fmt.Sprintf("http%d", backendSpeaks)}}, addr)
			for clientSpeaks := 1; clientSpeaks <= 2; clientSpeaks++ {
				tr := &http.Transport{Protocols: new(http.Protocols)}
				tr.Protocols.SetHTTP1(clientSpeaks == 1)
				tr.Protocols.SetUnencryptedHTTP2(clientSpeaks == 2)
				for _, size := range []int{0, 5, 300_000} {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url("/"), io.MultiReader(strings.NewReader(strings.Repeat("x", size))))
					req.Trailer = http.Header{"X-Sum": {"9"}, "Grpc-Bin": {"yes"}, "X-Forwarded-For": {"BAD"}, "X-Weir-User": {"BAD"}, "X-Removed": {"BAD"},
						"Authorization": {"BAD"}, "X-Api-Key": {"BAD"}}
					res, err := tr.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					got, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if want := fmt.Sprint(backendSpeaks, " ", size, " <nil> 19yes"); string(got) != want {
						t.Errorf("%s, HTTP/%d to HTTP/%d: %q, want %q", engine, clientSpeaks, backendSpeaks, got, want)
					}
				}
				tr.CloseIdleConnections()
			}
		}
	}
}
