package nats

import (
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("WEIR_TEST_ROLE"); role != "" {
		os.Exit(child(role))
	}
	var err error
	if plainDir, err = os.MkdirTemp("", "weir-nats-test-"); err != nil {
		panic(err)
	}
	quickElections() // before any server of this process: tests that run at once start them
	// A server that takes a log over tries for some seconds to end the copying at the other one.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*stream).tryDeleteSourcingConsumer.func1"),
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(plainDir)
			os.Exit(code)
		}))
}

const patience = 20 * time.Second

// logger shows the broker's log when WEIR_TEST_LOG is set.
func logger() *slog.Logger {
	if os.Getenv("WEIR_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func newBroker(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := New(cfg, logger())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEmbeddedConforms(t *testing.T) {
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Alone: true, New: func(t *testing.T) hub.Broker {
			return newBroker(t, Config{Dir: t.TempDir()})
		}}
	})
}

func TestEmbeddedSyncedConforms(t *testing.T) {
	trial.Long(t)
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Alone: true, Durability: hub.Synced, New: func(t *testing.T) hub.Broker {
			return newBroker(t, Config{Dir: t.TempDir()})
		}}
	})
}

func TestExternalConforms(t *testing.T) {
	c := external(t)
	c.spawn(t)
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, New: func(t *testing.T) hub.Broker { return newBroker(t, Config{URL: c.url()}) }}
	})
}

func TestClusterConforms(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs := cluster(t)
	spawnAll(t, cs)
	var next atomic.Int64
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Replicas: 3, Patience: patience, New: func(t *testing.T) hub.Broker {
			// Nodes of one test connect to different servers.
			return newBroker(t, Config{URL: cs[next.Add(1)%3].url()})
		}}
	})
}

func spawnAll(t *testing.T, cs []natsChild) []*process {
	t.Helper()
	ps := make([]*process, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() { ps[i] = c.spawn(t) })
	}
	wg.Wait()
	return ps
}

// Namespaces that are added to a running broker pass what those of its start do.
func TestEmbeddedConformsWithAddedNamespaces(t *testing.T) {
	trial.Long(t)
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Alone: true, Late: true, New: func(t *testing.T) hub.Broker {
			return newBroker(t, Config{Dir: t.TempDir()})
		}}
	})
}

func TestExternalConformsWithAddedNamespaces(t *testing.T) {
	trial.Long(t)
	c := external(t)
	c.spawn(t)
	hubtest.Run(t, func(t *testing.T) hubtest.Harness {
		return hubtest.Harness{Lose: loseOn, Late: true, New: func(t *testing.T) hub.Broker { return newBroker(t, Config{URL: c.url()}) }}
	})
}
