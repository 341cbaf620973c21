package downstream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// raw passes messages as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }
func (raw) Name() string                    { return "raw" }

func init() { encoding.RegisterCodec(raw{}) }

// grpcServer is a grpc-go server whose other methods are served by serve.
func grpcServer(t *testing.T, serve func(method string, s grpc.ServerStream) error, opts ...grpc.ServerOption) (addr string, hs *health.Server, stop func()) {
	t.Helper()
	opts = append(opts, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		return serve(method, s)
	}))
	srv := grpc.NewServer(opts...)
	hs = health.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, hs)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return l.Addr().String(), hs, srv.GracefulStop
}

func (g *gateway) grpc(t *testing.T) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(g.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

var callRaw = grpc.CallContentSubtype("raw")

// echoAll sends back what comes, a message for each, and trailers.
func echoAll(method string, s grpc.ServerStream) error {
	s.SetTrailer(metadata.Pairs("x-method", method, "x-bin-bin", "\x00\x01"))
	for {
		var b []byte
		switch err := s.RecvMsg(&b); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if string(b) == "fail" {
			return status.Error(codes.FailedPrecondition, "as asked: 100 %\n")
		}
		if err := s.SendMsg(&b); err != nil {
			return err
		}
	}
}

var bidi = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func grpcGateway(t *testing.T, s settings, peers ...string) *gateway {
	t.Helper()
	s.cluster.Protocol = "http2"
	return start(t, s, peers...)
}

func TestGRPCPassesWhole(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		addr, _, _ := grpcServer(t, echoAll)
		g := grpcGateway(t, settings{loops: eventloop.Config{Engine: engine}}, addr)
		cc := g.grpc(t)
		var out []byte
		in := []byte("hello")
		var trailer metadata.MD
		if err := cc.Invoke(t.Context(), "/a.B/Unary", &in, &out, callRaw, grpc.Trailer(&trailer)); err != nil || string(out) != "hello" {
			t.Fatalf("%s: %q, %v", engine, out, err)
		}
		if got := trailer.Get("x-bin-bin"); len(got) != 1 || got[0] != "\x00\x01" || trailer.Get("x-method")[0] != "/a.B/Unary" {
			t.Errorf("%s: trailers %v", engine, trailer)
		}
		stream, err := cc.NewStream(t.Context(), bidi, "/a.B/Bidi", callRaw)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			in := []byte(strings.Repeat(fmt.Sprint(i), 1+i*1000))
			if err := stream.SendMsg(&in); err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&out); err != nil || string(out) != string(in) {
				t.Fatalf("%s, message %d: %d bytes, %v", engine, i, len(out), err)
			}
		}
		in = []byte("fail")
		_ = stream.SendMsg(&in)
		err = stream.RecvMsg(&out)
		if st := status.Convert(err); st.Code() != codes.FailedPrecondition || st.Message() != "as asked: 100 %\n" {
			t.Errorf("%s: %v", engine, err)
		}
		if _, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("%s: a reply that is a head alone: %v", engine, err)
		}
	}
}

func TestGRPCErrorsOfOurOwn(t *testing.T) {
	addr, _, _ := grpcServer(t, echoAll)
	g := grpcGateway(t, settings{
		more: []upstream.Config{{Name: "down", Protocol: "http2", Peers: []upstream.PeerConfig{{Address: "127.0.0.1:1"}}}},
		routes: []policy.RouteConfig{{Path: "/a.B/*", Cluster: "main"}, {Path: "/down.S/*", Cluster: "down"},
			{Path: "/secret.S/*", Cluster: "main", Auth: policy.Auth{Required: true}},
			{Path: "/small.S/*", Cluster: "main", Limits: policy.Limits{MaxBody: 100}}},
	}, addr)
	cc := g.grpc(t)
	f := func(method string, want codes.Code, message string) {
		t.Helper()
		in, out := make([]byte, 1000), []byte(nil)
		err := cc.Invoke(t.Context(), method, &in, &out, callRaw)
		if st := status.Convert(err); st.Code() != want || !strings.Contains(st.Message(), message) {
			t.Errorf("%s: %v, want %v", method, err, want)
		}
	}
	f("/a.B/C", codes.OK, "")
	f("/other.S/C", codes.Unimplemented, "no")
	f("/down.S/C", codes.Unavailable, "the backend cannot be reached")
	f("/secret.S/C", codes.Unauthenticated, "")
	f("/small.S/C", codes.ResourceExhausted, "too large")
}

func TestGRPCDeadlines(t *testing.T) {
	canceled := make(chan struct{}, 2)
	addr, _, _ := grpcServer(t, func(method string, s grpc.ServerStream) error {
		if method == "/a.B/Started" {
			b := []byte("x")
			_ = s.SendMsg(&b)
		}
		d, ok := s.Context().Deadline()
		if !ok || time.Until(d) > 300*time.Millisecond {
			t.Errorf("%s: the deadline is not passed on", method)
		}
		<-s.Context().Done()
		canceled <- struct{}{}
		// The server cancels the context at the deadline too, and may be first: Err is either one then.
		return status.FromContextError(context.DeadlineExceeded).Err()
	})
	g := grpcGateway(t, settings{}, addr)
	// A client that leaves the deadline to the gateway.
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	for _, method := range []string{"/a.B/Silent", "/a.B/Started"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url(method), nil)
		req.Header = http.Header{"Content-Type": {"application/grpc+raw"}, "Te": {"trailers"}, "Grpc-Timeout": {"200m"}}
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		res.Body.Close()
		if got := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status"); got != "4" || res.StatusCode != 200 {
			t.Errorf("%s: %d, grpc-status %q", method, res.StatusCode, got)
		}
		<-canceled
	}
}

// A server that goes away gracefully loses no call.
func TestGRPCServersComeAndGo(t *testing.T) {
	first, _, stop := grpcServer(t, echoAll)
	second, _, _ := grpcServer(t, echoAll)
	g := grpcGateway(t, settings{cluster: upstream.Config{Retry: upstream.RetryConfig{MinPerSecond: 1000}}}, first, second)
	cc := g.grpc(t)
	var calls atomic.Int64
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			in, out := []byte("hello"), []byte(nil)
			if err := cc.Invoke(t.Context(), "/a.B/C", &in, &out, callRaw); err != nil {
				t.Error(err)
				return
			}
			calls.Add(1)
		}
	}()
	trial.Eventually(t, "calls", func() bool { return calls.Load() > 50 })
	stop()
	at := calls.Load()
	trial.Eventually(t, "calls continue", func() bool { return calls.Load() > at+50 || t.Failed() })
	cancel()
	<-ended
}

func TestGRPCHealthChecks(t *testing.T) {
	addr, hs, _ := grpcServer(t, echoAll)
	cfg := upstream.Config{Health: upstream.HealthConfig{Check: "grpc", Service: "a.B", Interval: hub.Duration(20 * time.Millisecond)}}
	hs.SetServingStatus("a.B", grpc_health_v1.HealthCheckResponse_SERVING)
	g := grpcGateway(t, settings{cluster: cfg}, addr)
	is := func(want string) {
		t.Helper()
		trial.Eventually(t, want, func() bool { return g.clusters.Stats()[0].Peers[0].Health == want })
	}
	is("up")
	hs.SetServingStatus("a.B", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	is("down")
	hs.SetServingStatus("a.B", grpc_health_v1.HealthCheckResponse_SERVING)
	is("up")
}

// A call may be silent for longer than a body may take.
func TestGRPCCallsMayBeSilent(t *testing.T) {
	t.Parallel()
	addr, _, _ := grpcServer(t, func(_ string, s grpc.ServerStream) error {
		var last []byte
		for {
			var b []byte
			if err := s.RecvMsg(&b); err == io.EOF {
				return s.SendMsg(&last)
			} else if err != nil {
				return err
			}
			last = b
		}
	})
	g := grpcGateway(t, settings{front: downstream.Config{BodyTimeout: hub.Duration(100 * time.Millisecond)}}, addr)
	stream, err := g.grpc(t).NewStream(t.Context(), bidi, "/a.B/Upload", callRaw)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		in := []byte(fmt.Sprint(i))
		if err := stream.SendMsg(&in); err != nil {
			t.Fatal(err)
		}
		time.Sleep(400 * time.Millisecond) // that nothing ends has no sign
	}
	_ = stream.CloseSend()
	var out []byte
	if err := stream.RecvMsg(&out); err != nil || string(out) != "2" {
		t.Errorf("%q, %v", out, err)
	}
}

// A backend's wish for a pause before the next attempt is followed, in bounds.
func TestGRPCPushbackIsWaitedOut(t *testing.T) {
	t.Parallel()
	at := make(chan time.Time, 10)
	var calls atomic.Int64
	addr, _, _ := grpcServer(t, func(method string, s grpc.ServerStream) error {
		at <- time.Now()
		if n := calls.Add(1); method == "/a.B/Twice" && n == 2 {
			return echoAll(method, s)
		}
		return status.Error(codes.Unavailable, "not now")
	}, grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		wait := map[string]string{"/a.B/Twice": "300", "/a.B/Never": "-1", "/a.B/Odd": "soon", "/a.B/Beyond": "500", "/a.B/Left": "1000"}[info.FullMethod]
		s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", wait))
		return next(srv, s)
	}))
	for _, engine := range []string{"epoll", "io_uring"} {
		g := grpcGateway(t, settings{loops: eventloop.Config{Engine: engine},
			cluster: upstream.Config{Retry: upstream.RetryConfig{NonIdempotent: true, Attempts: 2, MinPerSecond: 100}}}, addr)
		cc := g.grpc(t)
		call := func(method string, within time.Duration) (codes.Code, int64) {
			t.Helper()
			calls.Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			in, out := []byte(strings.Repeat("x", 50_000)), []byte(nil) // less than is kept for another attempt
			err := cc.Invoke(ctx, method, &in, &out, callRaw)
			return status.Code(err), calls.Load()
		}
		if code, n := call("/a.B/Twice", time.Minute); code != codes.OK || n != 2 {
			t.Errorf("%s: %v after %d calls, want OK after 2", engine, code, n)
		} else if first, second := <-at, <-at; second.Sub(first) < 300*time.Millisecond {
			t.Errorf("%s: the second call came after %v", engine, second.Sub(first))
		}
		for method, within := range map[string]time.Duration{"/a.B/Never": time.Minute, "/a.B/Odd": time.Minute, "/a.B/Beyond": 400 * time.Millisecond} {
			if code, n := call(method, within); code != codes.Unavailable || n != 1 {
				t.Errorf("%s, %s: %v after %d calls, want UNAVAILABLE after 1", engine, method, code, n)
			}
			<-at
		}
		// A client that leaves meanwhile leaves nothing behind.
		calls.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-at; cancel() }()
		in, out := []byte("x"), []byte(nil)
		if err := cc.Invoke(ctx, "/a.B/Left", &in, &out, callRaw); status.Code(err) != codes.Canceled {
			t.Errorf("%s: %v", engine, err)
		}
		trial.Eventually(t, "the exchange ends", func() bool { return g.proxy.Stats().Clusters["main"].Canceled == 1 })
	}
}

// What came of calls counts for a peer, though HTTP says 200; a pause that it requests is kept.
func TestGRPCStatusCounts(t *testing.T) {
	var calls atomic.Int64
	addr, _, _ := grpcServer(t, func(method string, s grpc.ServerStream) error {
		calls.Add(1)
		if method == "/a.B/Later" {
			_ = s.SetHeader(metadata.Pairs("grpc-retry-pushback-ms", "5000"))
			s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", "5000"))
		}
		return status.Error(codes.Unavailable, "not now")
	})
	g := grpcGateway(t, settings{cluster: upstream.Config{Retry: upstream.RetryConfig{NonIdempotent: true, Attempts: 2}}}, addr)
	cc := g.grpc(t)
	f := func(method string, want int64) {
		t.Helper()
		before := calls.Load()
		in, out := []byte("x"), []byte(nil)
		if err := cc.Invoke(t.Context(), method, &in, &out, callRaw); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", method, err)
		}
		if n := calls.Load() - before; n != want {
			t.Errorf("%s: asked %d times, want %d", method, n, want)
		}
	}
	f("/a.B/Now", 2)
	f("/a.B/Later", 1)
	if c := g.clusters.Stats()[0].Peers[0].Classes; c[5] != 3 || c[2] != 0 {
		t.Errorf("by class: %v", c)
	}
}
