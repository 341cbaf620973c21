package observe_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// continuing is a broker that has everything which a hub looks for.
type continuing struct{ *nats.Broker }

func (continuing) Continues(*hub.Namespace, string) []hub.Position {
	return []hub.Position{{Epoch: "before", Offset: 7}}
}

func (continuing) Opened() time.Time { return time.Unix(1, 0) }

// What a hub looks for in a broker, it finds in the probe that is between them.
func TestProbeHidesNothingOfTheBroker(t *testing.T) {
	b, err := nats.New(nats.Config{Dir: t.TempDir()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, probed := observe.NewProbe(continuing{b})
	if c, ok := probed.(hub.Continuer); !ok || len(c.Continues(&hub.Namespace{}, "after")) != 1 {
		t.Error("the epochs that a log continues are hidden")
	}
	if o, ok := probed.(hub.Opener); !ok || !o.Opened().Equal(time.Unix(1, 0)) {
		t.Error("the time when the logs were opened is hidden")
	}
	if _, ok := probed.(hub.Archive); !ok {
		t.Error("the archive is hidden")
	}
	if _, ok := probed.(hub.Changer); !ok {
		t.Error("changes of namespaces are hidden")
	}
}
