package app

import (
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

func TestEvidenceIsKeptBesideTheBrokersFiles(t *testing.T) {
	f := func(want, dir string, b config.Broker) {
		t.Helper()
		cfg := config.Config{Broker: b}
		cfg.Governor.Evidence.Dir = dir
		if got := evidenceDir(&cfg); got != want {
			t.Errorf("%q for %q with %+v, want %q", got, dir, b, want)
		}
	}
	embedded := config.Broker{Kind: config.BrokerNATS}
	embedded.NATS.Dir = "data"
	external := config.Broker{Kind: config.BrokerNATS}
	external.NATS.URL = "nats://127.0.0.1:4222"
	memory := config.Broker{Kind: config.BrokerMemory}
	f("data/evidence", "", embedded)
	f("elsewhere", "elsewhere", embedded)
	f("", "off", embedded)
	f("", "", external)
	f("e", "e", external)
	f("", "", memory)
}
