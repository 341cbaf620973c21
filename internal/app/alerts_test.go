package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/observe/alert"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A process that is past a threshold posts the alert to its webhook, which the metrics count.
func TestAnAlertReachesItsWebhook(t *testing.T) {
	got := make(chan string, 64)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct{ Alert, Status, Level, Node string }
		if json.NewDecoder(r.Body).Decode(&body) == nil && strings.HasPrefix(r.Header.Get("Weir-Signature"), "t=") {
			got <- body.Alert + " " + body.Status + " " + body.Level
		}
	}))
	t.Cleanup(hook.Close)
	g := start(t, func(c *config.Config) {
		c.Governor.Enabled = setting.On
		c.Governor.Thresholds.Soft, c.Governor.Thresholds.Hard = 0.00001, 0.00002
		c.Alerts = alert.Config{Webhooks: []alert.Webhook{{Name: "duty", URL: hook.URL, Secret: "a-secret-of-the-webhook"}}}
	})
	late := time.After(trial.Patience)
	for want := "WeirDescriptorsHard firing page"; ; {
		select {
		case have := <-got:
			if have != want {
				continue
			}
		case <-late:
			t.Fatalf("no %s", want)
		}
		break
	}
	trial.Eventually(t, "it is counted", func() bool {
		_, body := g.fetch(t, "/metrics")
		return strings.Contains(string(body), `weir_alert_webhook_deliveries_total{result="sent",webhook="duty"}`) &&
			!strings.Contains(string(body), `weir_alert_webhook_deliveries_total{result="sent",webhook="duty"} 0`)
	})
}
