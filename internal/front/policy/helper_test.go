package policy

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hmacSecret = "0123456789abcdef0123456789abcdef"

var authConfig = auth.Config{
	KeySet:  auth.KeySet{HMACSecret: hmacSecret},
	APIKeys: []auth.APIKey{{Name: "backend", Key: "a-key-of-sixteen-bytes"}},
}

// deps returns what a set needs; trusted names proxies.
func deps(t testing.TB, trusted ...string) Deps {
	t.Helper()
	a, err := auth.New(authConfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	trust, err := limit.NewTrust(limit.Trusted{Proxies: trusted})
	if err != nil {
		t.Fatal(err)
	}
	return Deps{Auth: a, Trust: trust, State: NewState(1024)}
}

// set compiles routes, JSON as in the config file.
func set(t testing.TB, d Deps, routes ...string) *Set {
	t.Helper()
	s, err := New(configs(t, routes...), d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func configs(t testing.TB, routes ...string) []RouteConfig {
	t.Helper()
	out := make([]RouteConfig, len(routes))
	for i, text := range routes {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&out[i]); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return out
}

// exchange parses a request, "\n" for CRLF, Host h unless it has one.
func exchange(t testing.TB, request string) *Exchange {
	t.Helper()
	x := &Exchange{}
	fill(t, x, request)
	return x
}

func fill(t testing.TB, x *Exchange, request string) {
	t.Helper()
	line, fields, _ := strings.Cut(strings.TrimRight(request, "\n"), "\n")
	if !strings.Contains(strings.ToLower("\n"+fields), "\nhost:") {
		fields = "Host: h\n" + fields
	}
	if !strings.HasSuffix(line, "HTTP/1.0") {
		line += " HTTP/1.1"
	}
	text := strings.ReplaceAll(strings.TrimRight(line+"\n"+fields, "\n")+"\n\n", "\n", "\r\n")
	var req http1.Request
	n, err := http1.ParseRequest(&req, []byte(text), http1.Limits{})
	if err != nil || n != len(text) {
		t.Fatalf("%q: %d, %v", text, n, err)
	}
	allow(x, &req)
}

func allow(x *Exchange, req *http1.Request) {
	x.Reset()
	x.Method, x.Path, x.Query, x.Host, x.Fields, x.Minor = req.Method, req.Path, req.Query, req.Host, req.Fields, req.Minor
	x.Length = req.ContentLength
	x.Peer = netip.MustParseAddrPort("203.0.113.7:4711")
}

// admit matches and admits at time now.
func admit(s *Set, x *Exchange, now time.Duration) Verdict {
	if v := s.Match(x); v.Action != Forward {
		return v
	}
	return x.Route.Admit(x, int64(now))
}

// forwarded returns the fields of the head that goes to the upstream.
func forwarded(t testing.TB, s *Set, x *Exchange, f Framing) (line string, fields []string) {
	t.Helper()
	if v := admit(s, x, 0); v.Action != Forward {
		t.Fatalf("not forwarded: %+v", v)
	}
	head := string(x.Route.AppendRequestHead(nil, x, f))
	lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
	return lines[0], lines[1:]
}

func token(t testing.TB, subject string, ttl time.Duration) string {
	t.Helper()
	tok, err := auth.Mint(authConfig, auth.MintClaims{Subject: subject, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func now() time.Time { return time.Now() }
