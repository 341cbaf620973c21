package nats

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// serverIn starts a NATS server in this process whose one user may not publish to deny.
func serverIn(t *testing.T, deny ...string) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{Username: "weir", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: deny},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("NATS is not ready")
	}
	return s
}

// startLogged starts a broker that is the only user of s, within a few seconds.
func startLogged(t *testing.T, s *server.Server, ns hub.Namespace) (*hubtest.Node, *logText) {
	t.Helper()
	var out logText
	b, err := New(Config{URL: s.ClientURL(), User: "weir", Password: "p"}, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return hubtest.Start(t, b, patience, ns), &out
}

// An account that may not keep marks is served without them, and says what is missing.
func TestAccountWithoutMarksStarts(t *testing.T) {
	for name, deny := range map[string]string{
		"create": "$JS.API.STREAM.CREATE.weir_MARKS", "look": "$JS.API.STREAM.INFO.weir_MARKS", "read": "$JS.API.STREAM.MSG.GET.weir_MARKS",
		"write": "weir.mark.>", "everything": "$JS.API.STREAM.*.weir_MARKS",
	} {
		t.Run(name, func(t *testing.T) {
			ns := hub.Namespace{Name: "a"}.WithDefaults()
			n, out := startLogged(t, serverIn(t, deny), ns)
			n.Sub(&ns, "x", 0)
			n.Pub(&ns, "x", "1")
			n.Await(&ns, "x", 1)
			if st := n.Broker.(*Broker).Stats(); st.Unmarked != 1 {
				t.Errorf("%d logs without a mark", st.Unmarked)
			}
			for _, want := range []string{"marks of the logs cannot be kept", "no permission to publish to", "$JS.API.STREAM.{INFO,CREATE,UPDATE,MSG.GET}.weir_MARKS and to weir.mark.*"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the log does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

// An account without room for one more stream keeps marks as soon as it has it.
func TestMarksAreKeptWhenTheyCanBe(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	s := serverIn(t)
	limits := server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: -1, MaxStreams: 1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}
	limit := func() {
		t.Helper()
		if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
			t.Fatal(err)
		}
	}
	limit()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n, out := startLogged(t, s, ns)
	b := n.Broker.(*Broker)
	n.Pub(&ns, "x", "1")
	if st := b.Stats(); st.Unmarked != 1 || !strings.Contains(out.String(), "maximum number of streams") {
		t.Fatalf("%d logs without a mark:\n%s", st.Unmarked, out)
	}
	limits.MaxStreams = 2
	limit()
	hubtest.Until(t, 3*marksRetry, "marks are kept", func() bool { return b.Stats().Unmarked == 0 })
	hubtest.Until(t, patience, "a mark is written", func() bool {
		m, known, err := b.outside.Load().last(t.Context(), "a")
		return err == nil && known && m.Last == 1
	})
}

// The marks have the replicas of the best of the logs, whichever came first.
func TestMarksHaveTheReplicasOfTheLogs(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs := cluster(t)
	spawnAll(t, cs)
	replicas := func(b *Broker) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var a jetstream.StreamInfo
		if err := b.request(ctx, "STREAM.INFO."+b.marksStream(), nil, &a); err != nil {
			t.Fatal(err)
		}
		return a.Config.Replicas
	}
	start := func(prefix string, ns ...hub.Namespace) *Broker {
		t.Helper()
		return startOn(t, Config{URL: urls(cs), Prefix: prefix}, ns...).Broker.(*Broker)
	}
	one, three := hub.Namespace{Name: "a"}.WithDefaults(), hub.Namespace{Name: "b", Replicas: 3}.WithDefaults()
	if n := replicas(start("p", one, three)); n != 3 {
		t.Errorf("%d replicas with namespaces of 1 and 3", n)
	}
	b := start("q", one)
	if n := replicas(b); n != 1 {
		t.Errorf("%d replicas with a namespace of 1", n)
	}
	start("q", three)
	hubtest.Until(t, 30*time.Second, "three replicas", func() bool { return replicas(b) == 3 })
	start("q", one)
	if n := replicas(b); n != 3 {
		t.Errorf("%d replicas after a node with a namespace of 1 came", n)
	}
}
