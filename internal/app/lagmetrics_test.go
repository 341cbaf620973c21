package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// lag scrapes a lag histogram: how many subscribers there are, how many do not
// lag, and the sum.
func lag(t *testing.T, g *gateway, name string) (count, none uint64, sum float64) {
	t.Helper()
	res, err := http.Get("http://" + g.AdminAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	h := families[name].GetMetric()[0].GetHistogram()
	return h.GetSampleCount(), h.GetBucket()[0].GetCumulativeCount(), h.GetSampleSum()
}

func TestLagHistogramsShowSlowClients(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Namespaces = []hub.Namespace{{Name: "default", Anonymous: true, Policy: hub.DropOldest, QueueMessages: 20, QueueBytes: 1 << 20, MaxMessageBytes: 20 << 10}}
		c.EventLoop.NotSentLowat = 4 << 10
	})
	keeps := g.sse(t, "channel=b", "")
	keeps.block()
	r, hurry := slowSSE(t, g, "channel=a")
	if count, none, _ := lag(t, g, "weir_subscriber_lag_messages"); count != 2 || none != 2 {
		t.Errorf("before: %d subscribers, %d without lag, want 2 and 2", count, none)
	}
	pad := strings.Repeat("x", 16<<10)
	var last hub.Position
	for i := 0; g.push.Stats().Dropped == 0; i++ {
		last = g.publish(t, "a", fmt.Sprintf(`{"n":%d,"pad":%q}`, i, pad))
	}
	if count, none, sum := lag(t, g, "weir_subscriber_lag_messages"); count != 2 || none != 1 || sum != 20 {
		t.Errorf("stopped reader: %d subscribers, %d without lag, %v messages; want 2, 1, 20", count, none, sum)
	}
	if _, none, sum := lag(t, g, "weir_subscriber_lag_bytes"); none != 1 || sum < 20*16<<10 {
		t.Errorf("stopped reader: %d without lag, %v bytes", none, sum)
	}
	if _, none, _ := lag(t, g, "weir_subscriber_lag_seconds"); none != 1 {
		t.Errorf("stopped reader: %d without lag", none)
	}
	hurry()
	for {
		if _, id, _ := event(t, r); id == last.String() {
			break
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, none, sum := lag(t, g, "weir_subscriber_lag_messages")
		if none == 2 && sum == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("caught up: %d without lag, %v messages", none, sum)
		}
	}
}
