package admin

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/observe/audit"
)

// logged has s log into the buffer, which is read between requests.
func logged(s *Server) *bytes.Buffer {
	var b bytes.Buffer
	s.access.log = slog.New(slog.NewTextHandler(&b, nil))
	return &b
}

// Every change is logged with who made it, and so is one that a known caller was refused;
// what only reads is not.
func TestChangesAreAudited(t *testing.T) {
	o := newOpenID(t)
	o.set(func() { o.claims = func(c jwt.MapClaims) { c["groups"] = []string{"ops"} } })
	s, _ := oidcSite(t, o, rightToken)
	log := logged(s.server)
	own := "Origin: http://" + s.addr
	ada := s.browser("127.0.0.1")
	ada.get("/oidc/login")
	plain := s.client("127.0.0.1")
	f := func(c *http.Client, method, path, body string, want string, fields ...string) {
		t.Helper()
		log.Reset()
		res, _ := s.do(c, method, path, body, fields...)
		line := log.String()
		if want == "" && line != "" || strings.Count(line, "\n") > 1 {
			t.Errorf("%s %s: %d, logged %q", method, path, res.StatusCode, line)
		}
		for part := range strings.SplitSeq(want, "|") {
			if !strings.Contains(line, part) {
				t.Errorf("%s %s: %d, logged %q, want %q", method, path, res.StatusCode, line, part)
			}
		}
		if strings.Contains(line, rightToken) || strings.Contains(line, "payload") {
			t.Errorf("a secret is in %q", line)
		}
	}
	for _, x := range changes {
		f(ada.Client, "POST", x.path, x.body, `msg="admin change"|path=`+x.path+` status=2|role=operator credential="oidc session" user=ada subject=user-1|peer=127.0.0.1:`, own)
	}
	f(plain, "POST", "/api/reload", "", `msg="admin change"|role=operator credential=token user="" subject=""`, bearer(rightToken))
	f(plain, "POST", "/api/publish?x=payload", `{"channel":"a","data":"payload"}`, "path=/api/publish status=200", bearer(rightToken))
	f(ada.Client, "POST", "/api/reload", "", `msg="admin change refused"|status=403|user=ada`) // without Origin
	f(plain, "POST", "/api/reload", "", `msg="admin change refused"|status=403|role=reader credential=read_token`, bearer(readToken))
	f(plain, "POST", "/api/canary/a/restart", "", `path=/api/canary/a/restart status=204`, bearer(rightToken))
	f(ada.Client, "GET", "/api/snapshot", "", "")
	f(plain, "POST", "/api/config/diff", "listen: a", "", bearer(rightToken))
	f(plain, "POST", "/api/reload", "", "") // no caller is known
	f(plain, "POST", "/api/reload", "", "", bearer("wrong-token-0123456789"))
	f(plain, "POST", "/login", "token="+rightToken, `msg="admin login" credential=token role=operator peer=127.0.0.1:`, "Content-Type: application/x-www-form-urlencoded")
}

// With several credentials the highest role counts, and a wrong token does not end a session.
func TestTheHighestOfSeveralRolesCounts(t *testing.T) {
	o := newOpenID(t)
	o.set(func() { o.claims = func(c jwt.MapClaims) { c["groups"] = []string{"staff"} } })
	s, _ := oidcSite(t, o, rightToken)
	log := logged(s.server)
	reader := s.browser("127.0.0.1")
	reader.get("/oidc/login")
	basic := func(token string) string {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.SetBasicAuth("admin", token)
		return "Authorization: " + r.Header.Get("Authorization")
	}
	f := func(read, change int, fields ...string) {
		t.Helper()
		if res, _ := s.do(reader.Client, "GET", "/api/snapshot", "", fields...); res.StatusCode != read {
			t.Errorf("%q: reading is answered %d, want %d", fields, res.StatusCode, read)
		}
		if res, _ := s.do(reader.Client, "POST", "/api/reload", "", fields...); res.StatusCode != change {
			t.Errorf("%q: a change is answered %d, want %d", fields, res.StatusCode, change)
		}
	}
	own := "Origin: http://" + s.addr
	f(200, 403, own)
	f(200, 403, own, bearer(readToken))
	f(200, 200, own, bearer(rightToken))
	f(200, 200, own, basic(rightToken))
	f(200, 200, bearer(rightToken)) // a page of another site cannot send the token
	if line := log.String(); !strings.Contains(line, "role=operator credential=token user=ada subject=user-1") {
		t.Errorf("the change by the token does not have the user of the session: %s", line)
	}
	for range 2 * maxGuesses {
		if res, _ := s.do(reader.Client, "GET", "/api/snapshot", "", bearer("wrong-token-0123456789")); res.StatusCode != 200 {
			t.Fatalf("a session beside a wrong token: %d", res.StatusCode)
		}
	}
	f(200, 200, bearer(rightToken))
	if res, _ := s.do(s.client("127.0.0.1"), "GET", "/api/snapshot", "", bearer("wrong-token-0123456789")); res.StatusCode != 429 {
		t.Errorf("a wrong token after many beside a session: %d", res.StatusCode)
	}
}

func TestChangesAreRecordedBeforeTheyAreMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	full, fail := errors.New("no space"), false
	records, err := audit.Open(file, func(f *os.File) error {
		if fail {
			return full
		}
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, rightToken, t.TempDir(), func(srv *Server) { srv.access.records = records })
	c := s.client("127.0.0.1")
	f := func(id, token string, want int) {
		t.Helper()
		if res, _ := s.do(c, "POST", "/api/connections/"+id+"/disconnect", "", bearer(token)); res.StatusCode != want {
			t.Errorf("disconnect %s: %d, want %d", id, res.StatusCode, want)
		}
	}
	f("7", rightToken, http.StatusNoContent)
	f("8", "wrong-token-0123456789", http.StatusUnauthorized)
	fail = true
	if f("9", rightToken, http.StatusServiceUnavailable); s.done["disconnect"] != 1 {
		t.Errorf("done: %v, though it is not on record", s.done)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	if _, _, err := audit.Verify(bytes.NewReader(text), func(r audit.Record) {
		lines = append(lines, strings.TrimSpace(strings.Join([]string{r.Do, r.From, r.By, http.StatusText(r.Status)}, " ")))
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(lines, "; "); got != "POST /api/connections/7/disconnect 127.0.0.1 token; No Content" {
		t.Errorf("recorded: %s", got)
	}
	if bytes.Contains(text, []byte(rightToken)) {
		t.Error("the token is in the log")
	}
}
