package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// openID starts the certified OpenID provider of npm for an admin listener at address, and
// returns its issuer.
func openID(t testing.TB, port, address string) string {
	t.Helper()
	judge.Need(t, "npm")
	arg, err := json.Marshal(map[string]string{"port": port, "redirect": address + "oidc/callback", "logout": address + "login"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "openid.mjs", string(arg))
	cmd.Dir = judge.Path("test", "e2e", "npm")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // its sign to end
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil || !late.Stop() {
			t.Errorf("the provider: %v\n%s", err, stderr.Bytes())
		}
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatal("the provider does not start") // its end says why
	}
	return lines.Text()
}

// TestDashboardLoginByOpenID: Chromium logs in at a certified provider, as an operator, as a
// reader and as a user without a role, and logs out there too.
func TestDashboardLoginByOpenID(t *testing.T) {
	t.Parallel()
	s, address := watched(t, nil)
	_, port, err := net.SplitHostPort(judge.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	s.Terminate()
	s.Configure(map[string]any{"admin": map[string]any{
		"token": "dashboard-operator-token",
		"oidc": map[string]any{
			"issuer": "http://127.0.0.1:" + port, "client_id": "weir", "client_secret": "a-secret-of-this-test", "redirect_url": address + "oidc/callback",
			"scopes": []string{"groups"}, "operators": []string{"ops"}, "readers": []string{"staff"},
			"session_key": "a session key of more than 32 bytes",
		},
	}})
	s.Start() // before its provider
	p := newTab(t)
	opened := func() {
		t.Helper()
		p.do(t, "open", map[string]any{"url": address, "live": false}, nil)
		p.do(t, "wait", "a.oidc", nil)
	}
	opened()
	p.has(t, "p[role=alert]", "does not work now")
	issuer := openID(t, port, address)

	login := func(user string) {
		t.Helper()
		opened()
		judge.Eventually(t, 30*time.Second, "the provider's form", func() bool {
			var at string
			p.do(t, "click", "a.oidc", nil)
			p.do(t, "wait", "input[name=login], a.oidc", nil)
			p.do(t, "evaluate", "location.href", &at)
			return strings.HasPrefix(at, issuer)
		})
		p.do(t, "fill", map[string]string{"selector": "input[name=login]", "text": user}, nil)
		p.do(t, "fill", map[string]string{"selector": "input[name=password]", "text": "any"}, nil)
		p.do(t, "click", "button[type=submit]", nil)
		p.do(t, "wait", "form[action$=confirm], button[type=submit]", nil)
		p.do(t, "click", "button[type=submit]", nil)
	}
	status := func(method, path string) (code int) {
		t.Helper()
		p.do(t, "evaluate", "fetch("+strconv.Quote(path)+", {method: "+strconv.Quote(method)+"}).then((r) => r.status)", &code)
		return code
	}

	login("ops:ada")
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	if got := status(http.MethodPost, "/api/reload"); got != http.StatusOK {
		t.Errorf("an operator's change is answered %d", got)
	}
	s.Terminate()
	s.Start()
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	if got := status(http.MethodGet, "/api/info"); got != http.StatusOK {
		t.Errorf("after a restart the session is answered %d", got)
	}
	p.do(t, "wait", "#logout", nil)
	p.do(t, "click", "#logout button", nil)
	p.do(t, "wait", "button[name=logout]", nil) // at the provider
	p.do(t, "click", "button[name=logout]", nil)
	p.do(t, "wait", "#token", nil)
	var at string
	p.do(t, "evaluate", "location.href", &at)
	if at != address+"login" {
		t.Errorf("the logout ends at %s", at)
	}
	if got := status(http.MethodGet, "/api/info"); got != http.StatusUnauthorized {
		t.Errorf("after the logout the session is answered %d", got)
	}

	login("staff:bob")
	p.do(t, "wait", `html[data-live="yes"]`, nil)
	if got := status(http.MethodPost, "/api/reload"); got != http.StatusForbidden {
		t.Errorf("a reader's change is answered %d", got)
	}

	login("guests:eve")
	p.has(t, "p[role=alert]", "guests:eve")
	if got := status(http.MethodGet, "/api/info"); got != http.StatusUnauthorized {
		t.Errorf("a user without a role is answered %d", got)
	}
	req, err := http.NewRequest(http.MethodGet, address+"metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer dashboard-operator-token")
	res, err := posting.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Contains(b, []byte(`weir_admin_oidc_logins_total{result="ok"} 1`)) || !bytes.Contains(b, []byte(`weir_admin_oidc_logins_total{result="no_role"} 1`)) {
		t.Errorf("the token is answered %s, %v, without both logins since the restart", res.Status, err)
	}
}
