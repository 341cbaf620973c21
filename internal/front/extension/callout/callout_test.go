package callout

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
	"github.com/weir-gateway/weir/internal/front/extension"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decider is a server that is a function.
type decider struct {
	extensionv1.UnimplementedExtensionServer
	decide func(context.Context, *extensionv1.Event) (*extensionv1.Verdict, error)
}

func (d *decider) Decide(ctx context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
	return d.decide(ctx, e)
}

// dial serves decide on a socket of its own and returns a Hook that calls it.
func dial(t *testing.T, decide func(context.Context, *extensionv1.Event) (*extensionv1.Verdict, error)) extension.Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	extensionv1.RegisterExtensionServer(s, &decider{decide: decide})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	cfg := extension.Config{Name: "x", Target: "unix:" + path, Events: []string{"request"}, MaxMessage: 4 << 10}.WithDefaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	hook, end, err := Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end()
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return hook
}

func TestEventsAndVerdictsAreWhole(t *testing.T) {
	hook := dial(t, func(_ context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
		want := `kind:KIND_PUBLISH route:"r" protocol:"native" connection:7 client:"192.0.2.1" user:"u` + "\uFFFD" + `" method:"POST" scheme:"https" host:"h" path:"/p?q" headers:{name:"A" value:"b"} status:200 channels:"c" data:"d"`
		if got := strings.ReplaceAll(e.String(), "  ", " "); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		return &extensionv1.Verdict{
			SetHeaders: []*extensionv1.Header{{Name: "X", Value: "1"}}, RemoveHeaders: []string{"Y"}, Data: []byte{}, TtlMs: 1500,
			Identity: &extensionv1.Identity{User: "ann", Subscribe: []string{"a"}, Publish: []string{"b"}, Expires: 1800000000},
		}, nil
	})
	v, err := hook.Decide(t.Context(), &extension.Event{
		Kind: extension.Publish, Route: "r", Protocol: "native", Connection: 7, Client: netip.MustParseAddr("192.0.2.1"), User: "u\xff",
		Method: "POST", Scheme: "https", Host: "h", Path: "/p?q", Headers: []extension.Field{{Name: "A", Value: "b"}}, Status: 200, Channels: []string{"c"}, Data: []byte("d"),
	})
	if err != nil {
		t.Fatal(err)
	}
	id := v.Identity
	if v.Refuse != nil || v.Set[0] != (extension.Field{Name: "X", Value: "1"}) || v.Remove[0] != "Y" || v.Data == nil || v.TTL != 1500*time.Millisecond ||
		id.User != "ann" || id.Subscribe[0] != "a" || id.Publish[0] != "b" || id.Expires.Unix() != 1800000000 {
		t.Errorf("%+v %+v", v, id)
	}
}

func TestEmptyVerdictAllowsAndRefusalsAreRead(t *testing.T) {
	var answer *extensionv1.Verdict
	hook := dial(t, func(context.Context, *extensionv1.Event) (*extensionv1.Verdict, error) { return answer, nil })
	answer = &extensionv1.Verdict{}
	if v, err := hook.Decide(t.Context(), &extension.Event{Kind: extension.Request}); err != nil || v.Refuse != nil || v.Data != nil || v.Identity != nil || v.TTL != 0 {
		t.Errorf("%+v %v", v, err)
	}
	answer = &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 402, Reason: "no", Body: []byte("b"), Headers: []*extensionv1.Header{{Name: "A", Value: "b"}}}}
	if v, err := hook.Decide(t.Context(), &extension.Event{Kind: extension.Request}); err != nil || v.Refuse.Status != 402 || v.Refuse.Reason != "no" || string(v.Refuse.Body) != "b" || v.Refuse.Headers[0].Value != "b" {
		t.Errorf("%+v %v", v, err)
	}
	answer = &extensionv1.Verdict{Refuse: &extensionv1.Refusal{Status: 1 << 31}}
	if _, err := hook.Decide(t.Context(), &extension.Event{Kind: extension.Request}); err == nil {
		t.Error("a status of ten digits was read")
	}
}

func TestMessagesAreBounded(t *testing.T) {
	hook := dial(t, func(_ context.Context, e *extensionv1.Event) (*extensionv1.Verdict, error) {
		return &extensionv1.Verdict{Data: make([]byte, e.GetConnection())}, nil
	})
	f := func(e *extension.Event, ok bool) {
		t.Helper()
		_, err := hook.Decide(t.Context(), e)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "max_message") {
			t.Errorf("%v", err)
		}
	}
	f(&extension.Event{Kind: extension.Publish, Data: make([]byte, 1000), Connection: 1000}, true)
	f(&extension.Event{Kind: extension.Publish, Data: make([]byte, 5000)}, false)
	f(&extension.Event{Kind: extension.Publish, Connection: 5000}, false)
}

func TestCancellationReachesTheServer(t *testing.T) {
	called, cancelled := make(chan struct{}), make(chan struct{})
	hook := dial(t, func(ctx context.Context, _ *extensionv1.Event) (*extensionv1.Verdict, error) {
		close(called)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-called; cancel() }()
	if _, err := hook.Decide(ctx, &extension.Event{Kind: extension.Request}); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	<-cancelled
}

func TestFilesThatCannotBeReadAreNamed(t *testing.T) {
	f := func(want string, tls extension.TLSConfig) {
		t.Helper()
		tls.Enabled = true
		if _, _, err := Dial(extension.Config{Target: "127.0.0.1:1", TLS: tls}.WithDefaults()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	f("tls.ca_file", extension.TLSConfig{CAFile: "/nowhere"})
	f("tls.ca_file", extension.TLSConfig{CAFile: "callout_test.go"})
	f("tls.cert_file", extension.TLSConfig{CertFile: "/nowhere", KeyFile: "/nowhere"})
}
