package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// serveGateway is a gateway with one route, which answers itself.
func serveGateway(ctx context.Context, variant, listen, target string) error {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Broker = listen, "", config.Broker{Kind: config.BrokerNone}
	cfg.Namespaces, cfg.Governor.Enabled, cfg.EventLoop.Loops = nil, setting.Off, 1
	cfg.Routes = []policy.RouteConfig{{Path: "/x", Reply: policy.Reply{Status: 200, Body: "Hello, World!"}}}
	cfg.Extensions = []extension.Config{{Name: "rules", Target: target, Events: []string{"request"}, Timeout: hub.Duration(10 * time.Second)}}
	opt := app.Options{}
	switch variant {
	case "none":
		cfg.Extensions = nil
	case "hook":
		opt.Dial = func(extension.Config) (extension.Hook, func(), error) {
			return extension.HookFunc(func(context.Context, *extension.Event) (*extension.Verdict, error) { return nil, nil }), func() {}, nil
		}
	case "stream":
		opt.Dial = dialStream
	}
	a, err := app.New(cfg, opt)
	if err != nil {
		return err
	}
	return a.Run(ctx, context.Background(), nil)
}

// rules allows everything, by either way.
type rules struct {
	extensionv1.UnimplementedExtensionServer
}

func (rules) Decide(context.Context, *extensionv1.Event) (*extensionv1.Verdict, error) {
	return &extensionv1.Verdict{}, nil
}

// streaming is a service with one long-lived stream of events and verdicts. An event's number
// is in its connection, a verdict's in its ttl_ms: it is for this comparison alone.
var streaming = grpc.ServiceDesc{
	ServiceName: "weir.bench.Stream", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Decide", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		for {
			var e extensionv1.Event
			if err := s.RecvMsg(&e); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			if err := s.SendMsg(&extensionv1.Verdict{TtlMs: uint32(e.GetConnection())}); err != nil {
				return err
			}
		}
	}}},
}

func serveRules(ctx context.Context, listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	extensionv1.RegisterExtensionServer(s, rules{})
	s.RegisterService(&streaming, nil)
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}

// A stream sends events on one stream of gRPC; what is under way waits in calls.
type stream struct {
	stream grpc.ClientStream
	number atomic.Uint32
	mu     sync.Mutex // guards sending and calls
	calls  map[uint32]chan *extensionv1.Verdict
}

func dialStream(cfg extension.Config) (extension.Hook, func(), error) {
	conn, err := grpc.NewClient(cfg.Target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cs, err := conn.NewStream(ctx, &streaming.Streams[0], "/weir.bench.Stream/Decide")
	if err != nil {
		cancel()
		return nil, nil, err
	}
	s := &stream{stream: cs, calls: map[uint32]chan *extensionv1.Verdict{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.receive()
	}()
	return s, func() { cancel(); <-done; _ = conn.Close() }, nil
}

func (s *stream) receive() {
	for {
		v := &extensionv1.Verdict{}
		if s.stream.RecvMsg(v) != nil {
			return
		}
		s.mu.Lock()
		call := s.calls[v.GetTtlMs()]
		delete(s.calls, v.GetTtlMs())
		s.mu.Unlock()
		call <- v
	}
}

// Decide implements extension.Hook.
func (s *stream) Decide(ctx context.Context, e *extension.Event) (*extension.Verdict, error) {
	n, call := s.number.Add(1), make(chan *extensionv1.Verdict, 1)
	m := &extensionv1.Event{Kind: extensionv1.Kind(e.Kind), Route: e.Route, Connection: uint64(n), Client: e.Client.String(), Method: e.Method, Scheme: e.Scheme, Host: e.Host, Path: e.Path}
	for _, f := range e.Headers {
		m.Headers = append(m.Headers, &extensionv1.Header{Name: f.Name, Value: f.Value})
	}
	s.mu.Lock()
	s.calls[n] = call
	err := s.stream.SendMsg(m)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-call:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
