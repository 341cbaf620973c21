package app

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// unpack returns the names and contents of a bundle.
func unpack(t *testing.T, b []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(h.Name + "\n")
		_, _ = io.Copy(&out, r) //nolint:gosec // it is our own
	}
}

// TestPlantedSecretsComeOutNowhere sends canaries wherever a client may have a secret, and
// looks for them in everything that is written for people.
func TestPlantedSecretsComeOutNowhere(t *testing.T) {
	b := backend(t, "b")
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	g := start(t, func(c *config.Config) {
		c.Governor.Enabled, c.Governor.Evidence.Dir = setting.On, filepath.Join(dir, "evidence")
		c.Governor.Evidence.Profile = hub.Duration(1e7)
		c.AccessLog.File = log
		c.Clusters, c.Routes = append(c.Clusters, b), []policy.RouteConfig{{
			Path: "/*", Cluster: "b", AccessLog: policy.AccessLogRule{Headers: []string{"Authorization", "Cookie", "X-Vault-Token", "X-API-Key", "Referer", "X-Plain"}},
			RequestHeaders: policy.HeaderRules{Set: map[string]string{"X-Internal": "plantedsecret0"}},
		}}
	})
	const query = "authorization=plantedsecret1&auth_signature=plantedsecret2&JWT=plantedsecret3&Sig=plantedsecret4&client_secret=plantedsecret5&X-Amz-Signature=plantedsecret6&t%6Fken=plantedsecret7&%2573ig=plantedsecret8&next=https%3A%2F%2Fu%3Aplantedsecret9%40h&plain=stays"
	for _, client := range []*http.Client{http.DefaultClient, overHTTP2(t, nil)} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, g.URL()+"/p?"+query, nil)
		for name, value := range map[string]string{
			"Authorization": "Bearer plantedsecret10", "Cookie": "a=plantedsecret11", "X-Vault-Token": "plantedsecret12", "X-API-Key": "plantedsecret13", "Referer": "https://u:plantedsecret14@h/?sig=plantedsecret15", "X-Plain": "stays",
			"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		} {
			req.Header.Set(name, value)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	clean := func(what, text string) {
		t.Helper()
		if i := strings.Index(text, "plantedsecret"); i >= 0 {
			t.Errorf("%s shows ...%s", what, text[max(0, i-60):min(len(text), i+20)])
		}
	}
	var lines string
	trial.Eventually(t, "both lines are written", func() bool {
		b, _ := os.ReadFile(log)
		lines = string(b)
		return strings.Count(lines, "\n") >= 2
	})
	clean("the access log", lines)
	if strings.Count(lines, "plain=stays") != 2 || strings.Count(lines, `"x-plain":"stays"`) != 2 {
		t.Errorf("the access log has %s", lines)
	}
	admin := "http://" + g.AdminAddr().String()
	for _, path := range []string{"/metrics", "/debug/vars", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/api/info", "/api/snapshot", "/api/connections", "/api/channels", "/api/upstreams", "/"} {
		res, err := http.Get(admin + path) //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		clean(path, string(b))
	}
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, admin+"/api/bundles?reason=nats%3A%2F%2Fu%3Aplantedsecret16%40h", nil)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != 201 {
		t.Fatalf("no bundle: %d %s", res.StatusCode, answer)
	}
	clean("the answer with the bundle", string(answer))
	files, _ := filepath.Glob(filepath.Join(dir, "evidence", "*"))
	if len(files) == 0 {
		t.Fatal("no bundle is there")
	}
	for _, file := range files {
		b, _ := os.ReadFile(file)
		if strings.HasSuffix(file, ".tar.gz") {
			clean(file, unpack(t, b))
		}
	}
}
