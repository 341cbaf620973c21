package deploy

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rollouts "github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

const argocd = "../../deploy/argocd/"

// application are the chart's values in deploy/argocd/application.yaml.
func application(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(argocd + "application.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var app struct {
		Kind string
		Spec struct {
			Source struct {
				Path string
				Helm struct{ ValuesObject map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(text, &app); err != nil {
		t.Fatal(err)
	}
	if app.Kind != "Application" || app.Spec.Source.Path != "deploy/helm/weir" || app.Spec.Source.Helm.ValuesObject == nil {
		t.Fatalf("not an application of the chart: %+v", app)
	}
	return app.Spec.Source.Helm.ValuesObject
}

// TestTheRolloutIsOfArgosTypes: no field is unknown, and every analysis has its template.
func TestTheRolloutIsOfArgosTypes(t *testing.T) {
	text, err := os.ReadFile(argocd + "rollout.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shop rollouts.Rollout
	templates := map[string]rollouts.AnalysisTemplate{}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(doc, "kind: Rollout") {
			if err := yaml.UnmarshalStrict([]byte(doc), &shop); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var a rollouts.AnalysisTemplate
		if err := yaml.UnmarshalStrict([]byte(doc), &a); err != nil {
			t.Fatal(err)
		}
		templates[a.Name] = a
	}
	used := 0
	for _, step := range shop.Spec.Strategy.Canary.Steps {
		if step.Analysis == nil {
			continue
		}
		for _, ref := range step.Analysis.Templates {
			if used++; templates[ref.TemplateName].Name == "" {
				t.Errorf("there is no template %s", ref.TemplateName)
			}
		}
	}
	if used != len(templates) || used == 0 {
		t.Errorf("%d templates, %d of them used", len(templates), used)
	}

	state := templates["weir-canary"].Spec.Metrics[0]
	source, err := os.ReadFile("../../internal/proxy/upstream/canary.go")
	if err != nil {
		t.Fatal(err)
	}
	for condition, name := range map[string]string{state.SuccessCondition: "CanaryPromoted", state.FailureCondition: "CanaryRolledBack"} {
		if value, ok := strings.CutPrefix(condition, "result == "); !ok || !bytes.Contains(bytes.Join(bytes.Fields(source), []byte(" ")), []byte(name+" = "+value)) {
			t.Errorf("%s: want the value of %s", condition, name)
		}
	}
	if got := weirSays(t, serve(t, adminToken), state.Provider.Web.JSONPath); got != "running" {
		t.Errorf("a new canary is %q by %s", got, state.Provider.Web.JSONPath)
	}
}

const adminToken = "admin-token-0123456789"

// serve runs Weir with the application's configuration and returns its admin listener.
func serve(t *testing.T, token string) (admin string) {
	t.Helper()
	config, _ := application(t)["config"].(map[string]any)
	for _, ns := range config["namespaces"].([]any) {
		delete(ns.(map[string]any), "replicas") // one node
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "weir.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.Addr().String()
	}
	public, admin := free(), free()
	var log bytes.Buffer
	cmd := exec.Command(binary(t), "serve", "--config", "weir.yaml", "--listen", public, "--admin-listen", admin)
	cmd.Dir, cmd.Stderr, cmd.Env = dir, &log, append(os.Environ(), "WEIR_ADMIN_TOKEN="+token)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		res, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return admin
			}
		}
		if time.Now().After(end) {
			t.Fatalf("not ready within 30 s: %v", err)
		}
	}
}

// weirSays evaluates the path, as Argo Rollouts does, on what Weir answers.
func weirSays(t *testing.T, admin, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+"/api/upstreams", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var answer any
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	p := jsonpath.New("state")
	if err := p.Parse(path); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := p.Execute(&out, answer); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
