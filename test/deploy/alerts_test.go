package deploy

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/yaml"
)

const deployed = "../../deploy/"

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployed, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAnAlertRollsAReleaseBack: what Alertmanager posts for the example's alert takes the share
// away from the canary of a running Weir. test/observe has Alertmanager's own tool check the file.
func TestAnAlertRollsAReleaseBack(t *testing.T) {
	type webhook struct {
		URL          string
		SendResolved *bool `json:"send_resolved"`
		HTTPConfig   struct {
			Authorization struct {
				CredentialsFile string `json:"credentials_file"`
			}
		} `json:"http_config"`
	}
	var c struct {
		Receivers []struct {
			Name     string
			Webhooks []webhook `json:"webhook_configs"`
		}
	}
	if err := yaml.Unmarshal(readFile(t, "prometheus/alertmanager.yaml"), &c); err != nil {
		t.Fatal(err)
	}
	var hooks []webhook
	for _, r := range c.Receivers {
		if r.Name == "roll-back-shop" {
			hooks = r.Webhooks
		}
	}
	if len(hooks) != 3 {
		t.Fatalf("%d webhooks roll back, want one for each node", len(hooks))
	}
	const state = "{$.splits[?(@.name == 'shop')].canary.state}"
	admin := serve(t, adminToken)
	for i, hook := range hooks {
		at, err := url.Parse(hook.URL)
		if err != nil || hook.SendResolved == nil || *hook.SendResolved || hook.HTTPConfig.Authorization.CredentialsFile == "" || !strings.HasPrefix(at.Host, fmt.Sprintf("weir-%d.", i)) {
			t.Fatalf("%+v: %v", hook, err)
		}
		if status := post(t, "http://"+admin+at.Path, ""); status != http.StatusUnauthorized {
			t.Errorf("without the token: %d", status)
		}
		// Repeated alerts change nothing.
		if status := post(t, "http://"+admin+at.Path, adminToken); status != http.StatusNoContent {
			t.Errorf("%s: %d", at.Path, status)
		}
		if got := weirSays(t, admin, state); got != "rolled back" {
			t.Errorf("%s: the canary is %q", at.Path, got)
		}
	}
}

// post sends what Alertmanager sends for a group of alerts.
func post(t *testing.T, at, token string) int {
	t.Helper()
	const body = `{"version":"4","groupKey":"{}/{action=\"roll-back\"}:{}","truncatedAlerts":0,"status":"firing","receiver":"roll-back-shop",` +
		`"groupLabels":{"alertname":"ShopOrdersFailing"},"commonLabels":{"action":"roll-back"},"commonAnnotations":{},"externalURL":"http://alertmanager",` +
		`"alerts":[{"status":"firing","labels":{"alertname":"ShopOrdersFailing"},"annotations":{},"startsAt":"2026-01-02T03:04:05Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"","fingerprint":"0"}]}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Alertmanager/0.28")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// TestTheHPAScalesOnWhatTheAdapterServes: both name metrics that Weir has, by connections and by lag.
// test/observe has a Prometheus evaluate the adapter's queries.
func TestTheHPAScalesOnWhatTheAdapterServes(t *testing.T) {
	var hpa autoscalingv2.HorizontalPodAutoscaler
	if err := yaml.UnmarshalStrict(readFile(t, "kubernetes/hpa.yaml"), &hpa); err != nil {
		t.Fatal(err)
	}
	var adapter struct {
		Rules struct {
			Default bool `json:"default"`
			Custom  []struct {
				SeriesQuery string         `json:"seriesQuery"`
				Resources   map[string]any `json:"resources"`
				Query       string         `json:"metricsQuery"`
			} `json:"custom"`
		} `json:"rules"`
	}
	if err := yaml.UnmarshalStrict(readFile(t, "prometheus/adapter.yaml"), &adapter); err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	c := load(t)
	text, err := render(c, cases["external"])
	if err != nil {
		t.Fatal(err)
	}
	var served []string
	for _, r := range adapter.Rules.Custom {
		name, _, _ := strings.Cut(r.SeriesQuery, "{")
		served = append(served, name)
		if !strings.Contains(string(reference), "| `"+name+"` |") {
			t.Errorf("Weir has no metric %s", name)
		}
	}
	var used []string
	for _, m := range hpa.Spec.Metrics {
		used = append(used, m.Pods.Metric.Name)
		if !strings.Contains(text, "name: "+m.Pods.Metric.Name+"}") {
			t.Errorf("the chart's HPA has no %s", m.Pods.Metric.Name)
		}
	}
	if !slices.Equal(used, served) || len(used) != 2 {
		t.Errorf("the HPA uses %q, the adapter serves %q", used, served)
	}
	deployment := string(readFile(t, "kubernetes/weir.yaml"))
	if ref := hpa.Spec.ScaleTargetRef; !strings.Contains(deployment, "kind: "+ref.Kind+"\nmetadata: {name: "+ref.Name+"}") {
		t.Errorf("there is no %s %s", ref.Kind, ref.Name)
	}
}
