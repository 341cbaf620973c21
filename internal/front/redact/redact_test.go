package redact

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

const jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"

func TestNamesOfSecrets(t *testing.T) {
	f := func(name string, anywhere, inQueries bool) {
		t.Helper()
		if got := Name(name); got != anywhere {
			t.Errorf("Name(%q) = %v", name, got)
		}
		if got := Parameter([]byte(name)); got != inQueries {
			t.Errorf("Parameter(%q) = %v", name, got)
		}
	}
	for _, name := range []string{
		"authorization", "Authorization", "AUTHORIZATION", "proxy-authorization", "auth_signature", "jwt", "sig", "client_secret", "X-Amz-Signature", "x-amz-security-token",
		"X-Amz-Credential", "token", "access_token", "accessToken", "refresh-token", "id.token", "token[]", "token2", "api_key", "apikey", "X-API-Key", "password", "db_password", "passwd",
		"secret", "hmac_secret", "Cookie", "Set-Cookie", "X-CSRF-Token", "X-Hub-Signature-256", "SAMLResponse", "client_assertion", "private_key", "Sec-WebSocket-Protocol", "DPoP", "Grip-Sig",
	} {
		f(name, true, true)
	}
	for _, name := range []string{"key", "code", "sid", "hash"} {
		f(name, false, true)
	}
	for _, name := range []string{"", "q", "channel", "monkey", "postcode", "design", "keyboard", "tokenizer", "secretary", "page", "user", "sort_key", "Accept", "Sec-WebSocket-Key", "max_line", "-", "9"} {
		f(name, false, false)
	}
}

func TestQueries(t *testing.T) {
	f := func(query, want string) {
		t.Helper()
		if got := string(AppendQuery(nil, []byte(query), []string{"mine"})); got != want {
			t.Errorf("%q is shown as %q, want %q", query, got, want)
		}
	}
	f("a=1&b=2", "a=1&b=2")
	f("token=x&a=1", "token=[redacted]&a=1")
	f("TOKEN=x&%74oken=y&t%6Fken=z", "TOKEN=[redacted]&%74oken=[redacted]&t%6Fken=[redacted]")
	f("%2574oken=x", "%2574oken=[redacted]") // decoded once more by a backend
	f("authorization=Bearer+abc&auth_signature=1&jwt=2&sig=3&client_secret=4&X-Amz-Signature=5", "authorization=[redacted]&auth_signature=[redacted]&jwt=[redacted]&sig=[redacted]&client_secret=[redacted]&X-Amz-Signature=[redacted]")
	f("Mine=1&yours=2", "Mine=[redacted]&yours=2")
	f("%zz=1&a=2", "[redacted]&a=2")
	f("a="+jwt, "a=[redacted]")
	f(jwt, "[redacted]")
	f("next=https%3A%2F%2Fu%3Ap%40host%2F", "next=[redacted]")
	f("next=https%3A%2F%2Fhost%2F%3Ftoken%3Dx", "next=[redacted]")
	f("next=%2Fa%3Fb%3Dc", "next=%2Fa%3Fb%3Dc")
	f("", "")
	f("&&a", "&&a")
}

func TestText(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := Text(s); got != want {
			t.Errorf("%q is shown as %q, want %q", s, got, want)
		}
	}
	same := func(s string) { t.Helper(); f(s, s) }
	same("")
	same("listen 127.0.0.1:8000: permission denied")
	same("read_token: it is the token: anyone who has it could do everything")
	same("https://example.com/@scope/pkg?a=b")
	same("a bearer token is wanted, basic authentication is not")
	same("mail ann@example.com about code=503")
	same("version 1.2.3.4 key: value")
	f("dial nats://user:pass@nats:4222: refused", "dial nats://user:[redacted]@nats:4222: refused")
	f("nats://canary@nats:4222", "nats://[redacted]@nats:4222")
	f("nats://a:b@h1:4222,nats://c:d@h2:4222", "nats://a:[redacted]@h1:4222,nats://c:[redacted]@h2:4222")
	f(`parse "nats://u:p/w@host:4222": invalid port ":p" after host`, `parse "nats://u:[redacted]@host:4222": invalid port "[redacted]" after host`)
	f("postgres://u:p%40@db/x?sslmode=disable&password=q", "postgres://u:[redacted]@db/x?sslmode=disable&password=[redacted]")
	f("user:pass@tcp(db:3306)/x", "user:[redacted]@tcp(db:3306)/x")
	f("host=db user=u password=s3cret dbname=x", "host=db user=u password=[redacted] dbname=x")
	f(`password='a b' x`, `password=[redacted] x`)
	f("https://hook.example/x?sig=abc&b=c", "https://hook.example/x?sig=[redacted]&b=c")
	f("https://hook.example/x?key=abc", "https://hook.example/x?key=[redacted]")
	f("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]")
	f("sent authorization basic dXNlcjpwYXNz to it", "sent authorization basic [redacted] to it")
	f("token "+jwt+" expired", "token [redacted] expired")
	f(`{"client_secret":"s3cret","a":"b"}`, `{"client_secret":"[redacted]","a":"b"}`)
	f(`{\"token\":\"s3cret\"}`, `{\"token\":\"[redacted]\"}`)
	f(`hmac_secret: "s3cret"`, `hmac_secret: "[redacted]"`)
}

func TestLogsHaveNoSecrets(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(Handler(slog.NewTextHandler(&b, nil))).With("token", "canary-1", "url", "nats://u:canary-2@h")
	log.WithGroup("g").Info("dial nats://canary-3@h", "err", errors.New("GET /x?sig=canary-4"), slog.Group("in", "api_key", "canary-5"), "list", []string{"redis://:canary-6@h"}, "n", 7, "plain", "stays")
	out := b.String()
	if strings.Contains(out, "canary") || !strings.Contains(out, "plain=stays") || !strings.Contains(out, "n=7") {
		t.Error(out)
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"nats://u:p@h", "a=b", `"token":"`, `token:\"`, "bearer ", "@(", "://@", "password='", "eyJ..", "?%=@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		Text(s)
		AppendQuery(nil, []byte(s), nil)
		AppendPath(nil, []byte(s))
	})
}
