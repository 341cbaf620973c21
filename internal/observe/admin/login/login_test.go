package login

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func good() Config {
	return Config{Issuer: "https://login.example.com", ClientID: "weir", RedirectURL: "https://weir.example.com/oidc/callback", Operators: []string{"ops"}}
}

func TestValidate(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := good()
		change(&c)
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a secret is in %q", err)
		}
	}
	f("", func(*Config) {})
	f("", func(c *Config) { *c = Config{} })
	f("", func(c *Config) {
		c.Issuer, c.RedirectURL = "http://127.0.0.1:9000/", "http://localhost:8001/oidc/callback"
	})
	f("issuer: it is missing", func(c *Config) { c.Issuer = "" })
	f("issuer: ", func(c *Config) { c.Issuer = "http://login.example.com" })
	f("issuer: ", func(c *Config) { c.Issuer = "login.example.com" })
	f("issuer: ", func(c *Config) { c.Issuer = "https://login.example.com/?x=1" })
	f("redirect_url: ", func(c *Config) { c.RedirectURL = "" })
	f("redirect_url: ", func(c *Config) { c.RedirectURL = "https://weir.example.com/" })
	f("redirect_url: ", func(c *Config) { c.RedirectURL = "http://weir.example.com/oidc/callback" })
	f("client_id: ", func(c *Config) { c.ClientID = "" })
	f("client_secret, client_secret_file: ", func(c *Config) { c.ClientSecret, c.ClientSecretFile = "hunter2", "x" })
	f("session_key, session_key_file: ", func(c *Config) { c.SessionKey, c.SessionKeyFile = "hunter2hunter2hunter2hunter2hunter2", "x" })
	f("session_key: 7 bytes", func(c *Config) { c.SessionKey = "hunter2" })
	f("operators: ", func(c *Config) { c.Operators = nil })
	f("operators, readers: ", func(c *Config) { c.Readers = []string{""} })
	f("session: ", func(c *Config) { c.Session = hub.Duration(time.Second) })
	f("session: ", func(c *Config) { c.Session = hub.Duration(8 * 24 * time.Hour) })
}

// What was sealed opens for its purpose alone, and nothing else does.
func FuzzOpen(f *testing.F) {
	s, err := newSealer("a session key of more than 32 bytes", "issuer")
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := s.seal(purposeSession, Session{ID: "1", Role: Operator, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	var v Session
	if !s.open(purposeSession, sealed, &v) || v.Role != Operator {
		f.Fatal("it does not open")
	}
	if s.open(purposeLogin, sealed, &v) {
		f.Fatal("it opens for another purpose")
	}
	f.Add(sealed)
	f.Add("")
	f.Add("AAAA")
	f.Add(sealed[:len(sealed)-1])
	f.Add(strings.Repeat("A", maxSealed+1))
	f.Fuzz(func(t *testing.T, value string) {
		if v := (Session{}); s.open(purposeSession, value, &v) && value != sealed {
			// The last character may have bits that no byte needs.
			if len(value) != len(sealed) || value[:len(value)-1] != sealed[:len(sealed)-1] {
				t.Errorf("%q opens", value)
			}
		}
	})
}

// Ended sessions are remembered until they would have expired, within a bound.
func TestSpentIDsAreBounded(t *testing.T) {
	s := spentIDs{ids: map[string]time.Time{}}
	now := time.Now()
	f := func(id string, expires time.Time, want bool) {
		t.Helper()
		if got := s.add(id, expires, now); got != want {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
	}
	f("long", now.Add(time.Hour), true)
	f("long", now.Add(time.Hour), false)
	for i := range maxSpent + 10 {
		f(strconv.Itoa(i), now.Add(time.Minute+time.Duration(i)), true)
	}
	if len(s.ids) > maxSpent || !s.has("long") || s.has("0") {
		t.Errorf("%d are remembered", len(s.ids))
	}
	now = now.Add(30 * time.Minute)
	f("new", now.Add(time.Minute), true)
	if len(s.ids) != 2 {
		t.Errorf("%d are remembered, of which all but two have expired", len(s.ids))
	}
}
