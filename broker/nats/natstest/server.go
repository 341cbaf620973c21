// Package natstest runs NATS servers for tests. Only tests import it.
package natstest

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Server runs one with JetStream until the test ends and returns its URL.
func Server(t testing.TB) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(trial.Patience) {
		t.Fatal("the NATS server is not ready")
	}
	return s.ClientURL()
}
