package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// want is what the error must say, none if empty.
	f := func(c Config, want ...string) {
		t.Helper()
		err := c.Validate()
		if len(want) == 0 && err != nil {
			t.Errorf("Validate: %v", err)
		}
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("Validate: %v\nwant it to say %q", err, w)
			}
		}
		if a, newErr := New(c, nil); (newErr == nil) != (err == nil) {
			t.Errorf("New: %v, Validate: %v", newErr, err)
		} else if newErr == nil {
			a.Close()
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("Validate shows a secret: %v", err)
		}
	}
	f(Config{})
	// Secrets.
	f(Config{KeySet: KeySet{HMACSecret: secret}})
	f(Config{KeySet: KeySet{HMACSecret: Secret(secret[:32])}})
	f(Config{KeySet: KeySet{HMACSecret: Secret(secret[:31])}}, "auth.hmac_secret: 31 bytes", "at least 32", "head -c 48 /dev/urandom")
	f(Config{KeySet: KeySet{HMACSecret: "secret"}}, "auth.hmac_secret: 6 bytes")
	f(Config{KeySet: KeySet{HMACSecret: Secret(strings.Repeat("ab", 30))}}, "different bytes")
	f(Config{KeySet: KeySet{HMACSecret: Secret(publicPEM(edKey()))}}, "auth.hmac_secret: is a PEM key")
	f(Config{KeySet: KeySet{HMACPreviousSecret: "short"}}, "auth.hmac_previous_secret: 5 bytes")
	f(Config{KeySet: KeySet{HMACSecret: secret, HMACSecretFile: "x"}}, "auth.hmac_secret: set this or hmac_secret_file")
	f(Config{KeySet: KeySet{HMACSecretFile: file("s1", secret+"\n")}})
	f(Config{KeySet: KeySet{HMACSecretFile: file("s2", "short\n")}}, "auth.hmac_secret_file: 5 bytes")
	f(Config{KeySet: KeySet{HMACSecretFile: file("s3", "")}}, "auth.hmac_secret_file: 0 bytes")
	f(Config{KeySet: KeySet{HMACSecretFile: file("s4", publicPEM(edKey()))}}, "auth.hmac_secret_file: is a PEM key")
	f(Config{KeySet: KeySet{HMACSecretFile: filepath.Join(dir, "none")}}, "auth.hmac_secret_file: open", "no such file")
	f(Config{KeySet: KeySet{HMACSecretFile: file("s5", strings.Repeat(secret, 40000))}}, "auth.hmac_secret_file", "over 1048576 bytes")
	// Public keys.
	pk := func(k PublicKey) Config { return Config{KeySet: KeySet{PublicKeys: []PublicKey{k}}} }
	f(pk(PublicKey{PEM: publicPEM(rsaKey())}))
	f(pk(PublicKey{File: file("p1", "a comment\n"+publicPEM(rsaKey())+publicPEM(edKey()))}))
	f(pk(PublicKey{PEM: string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey().PublicKey)}))}))
	f(pk(PublicKey{PEM: certificate(t)}))
	f(pk(PublicKey{}), "auth.public_keys[0]: set one of pem and file")
	f(pk(PublicKey{PEM: "x", File: "y"}), "set one of pem and file")
	f(pk(PublicKey{PEM: "x"}), "auth.public_keys[0].pem: has no PEM block")
	f(pk(PublicKey{File: filepath.Join(dir, "none")}), "auth.public_keys[0].file: open")
	f(pk(PublicKey{PEM: string(privatePEM(edKey()))}), "is a private key", "openssl pkey")
	f(pk(PublicKey{PEM: "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"}), "auth.public_keys[0].pem: ")
	f(pk(PublicKey{PEM: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}), "auth.public_keys[0].pem: ")
	f(pk(PublicKey{PEM: "-----BEGIN THING-----\nAAAA\n-----END THING-----\n"}), `PEM block "THING"`)
	f(pk(PublicKey{PEM: smallRSA}), "RSA key of 1024 bits")
	// JWKS.
	f(Config{KeySet: KeySet{JWKSURL: "https://issuer.example/jwks"}})
	f(Config{KeySet: KeySet{JWKSURL: "http://127.0.0.1:8080/jwks"}})
	f(Config{KeySet: KeySet{JWKSURL: "http://localhost/jwks"}})
	f(Config{KeySet: KeySet{JWKSURL: "http://[::1]/jwks"}})
	f(Config{KeySet: KeySet{JWKSURL: "http://issuer.example/jwks"}}, "auth.jwks_url: ", "want https")
	f(Config{KeySet: KeySet{JWKSURL: "http://127.0.0.1.evil.example/jwks"}}, "want https")
	f(Config{KeySet: KeySet{JWKSURL: "file:///etc/passwd"}}, "auth.jwks_url")
	f(Config{KeySet: KeySet{JWKSURL: "issuer.example"}}, "is not an absolute URL")
	f(Config{KeySet: KeySet{JWKSURL: "http://u:" + secret + "@issuer.example/"}}, "want https")
	f(Config{KeySet: KeySet{JWKSRefreshInterval: 1}}, "auth.jwks_refresh_interval")
	f(Config{KeySet: KeySet{JWKSMinRefetchInterval: -1}}, "auth.jwks_min_refetch_interval")
	f(Config{KeySet: KeySet{JWKSTimeout: hub.Duration(time.Hour)}}, "auth.jwks_timeout")
	// Algorithms.
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"HS256"}}})
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"none"}}}, "auth.algorithms[0]", "never allowed")
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"HS256", "NONE"}}}, "auth.algorithms[1]", "never allowed")
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"hs256"}}}, "is none of HS256")
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"RS256"}}}, "no configured key can verify RS256")
	f(Config{KeySet: KeySet{HMACSecret: secret, Algorithms: []string{"HS512"}}}, "no configured key can verify HS512")
	f(Config{KeySet: KeySet{JWKSURL: "https://i.example/", Algorithms: []string{"ES256"}}})
	f(Config{KeySet: KeySet{JWKSURL: "https://i.example/", Algorithms: []string{"HS256"}}}, "no configured key can verify HS256")
	// API keys.
	ak := func(k ...APIKey) Config { return Config{APIKeys: k} }
	f(ak(APIKey{Name: "a", Key: "0123456789abcdef"}, APIKey{Name: "b", KeyFile: file("k1", "0123456789abcdefg\n")}))
	f(ak(APIKey{Name: "a", SHA256: sha256Hex("x")}))
	f(ak(APIKey{Name: "a"}), "auth.api_keys[0]: set one of")
	f(ak(APIKey{Name: "a", Key: Secret(strings.Repeat("k", 1025))}), "auth.api_keys[0].key: 1025 bytes")
	f(ak(APIKey{Name: "a", KeyFile: file("k2", strings.Repeat("k", 1025))}), "auth.api_keys[0].key_file: 1025 bytes")
	f(ak(APIKey{Name: "a", SHA256: "abc"}), "auth.api_keys[0].sha256: want 64 hex digits")
	f(ak(APIKey{Name: "a", SHA256: sha256Hex("x"), Key: "0123456789abcdef"}), "set one of")
	f(ak(APIKey{Key: "0123456789abcdef"}), "auth.api_keys[0].name")
	f(ak(APIKey{Name: "a\n", Key: "0123456789abcdef"}), "auth.api_keys[0].name")
	f(ak(APIKey{Name: "a", Key: "0123456789abcdef"}, APIKey{Name: "a", Key: "0123456789abcdeg"}), `"a" is there twice`)
	f(ak(APIKey{Name: "a", Key: "0123456789abcdef"}, APIKey{Name: "b", SHA256: sha256Hex("0123456789abcdef")}), `same key as "a"`)
	f(ak(APIKey{Name: "a", Key: "0123456789abcdef", Publish: []string{""}}), "auth.api_keys[0]: publish: a pattern is empty")
	f(ak(APIKey{Name: "a", Key: "0123456789abcdef", Subscribe: []string{"a b"}}), "subscribe: a pattern has a space")
	// Origins.
	og := func(o ...string) Config { return Config{AllowedOrigins: o} }
	f(og("https://a.example", "https://*.example.com:8443", "null", "*", "http://[::1]:80", "capacitor://localhost"))
	f(og("a.example"), "auth.allowed_origins[0]")
	f(og("*", "https://a.example/"), "auth.allowed_origins[1]")
	f(og("https://*"), "auth.allowed_origins[0]")
	f(og("https://*.com"), "too wide")
	f(og("https://*.[::1]"), "too wide")
	f(og("https://*..com"), "too wide")
	f(og("https://a*.example.com"), "is not an origin")
	f(og("https://a.*.example.com"), "is not an origin")
	f(og("*.example.com"), "is not an origin")
	f(og("*://a.example.com"), "is not an origin")
	f(og(""), "is not an origin")
	// Limits.
	f(Config{KeySet: KeySet{Leeway: -1}}, "auth.leeway")
	f(Config{KeySet: KeySet{Leeway: hub.Duration(time.Hour)}}, "auth.leeway")
	f(Config{MaxTokenBytes: 10}, "auth.max_token_bytes")
	f(Config{MaxTokenBytes: 1 << 20}, "auth.max_token_bytes")
	f(Config{TokenCache: 1 << 30}, "auth.token_cache")
	f(Config{Cookie: "a b"}, "auth.cookie")
	f(Config{KeySet: KeySet{Audience: []string{""}}}, "auth.audience")
	// All that is wrong is said at once.
	f(Config{KeySet: KeySet{HMACSecret: "x", Leeway: -1}, AllowedOrigins: []string{"x"}}, "auth.hmac_secret", "auth.leeway", "auth.allowed_origins[0]")
}

func TestConfigErrorHasAHint(t *testing.T) {
	e, ok := errors.AsType[*ConfigError](Config{KeySet: KeySet{HMACSecret: "x"}}.Validate())
	if !ok || e.Key != "auth.hmac_secret" || !strings.Contains(e.Hint(), "/dev/urandom") {
		t.Errorf("error %#v", e)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	c := Config{KeySet: KeySet{HMACSecret: secret}, APIKeys: []APIKey{{Name: "a", Key: secret}}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", c.HMACSecret, "config", c)
	for _, s := range []string{
		toJSON(c), fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%q", c.HMACSecret), log.String(),
	} {
		if strings.Contains(s, secret) {
			t.Errorf("secret in %s", s)
		}
	}
	if !strings.Contains(toJSON(c), `"hmac_secret":"(secret)"`) || !strings.Contains(toJSON(Config{}), `"hmac_secret":""`) {
		t.Errorf("config reads %s", toJSON(c))
	}
}

func TestConfigReadsFromJSON(t *testing.T) {
	var c Config
	err := json.Unmarshal([]byte(`{"hmac_secret":"`+secret+`","leeway":"7s","audience":["a"],"api_keys":[{"name":"n","key":"0123456789abcdef"}]}`), &c)
	if err != nil || c.HMACSecret != secret || c.Leeway != hub.Duration(7*time.Second) || c.APIKeys[0].Key != "0123456789abcdef" {
		t.Errorf("read %v, %v", c, err)
	}
	if err := json.Unmarshal([]byte(`{"leeway":"soon"}`), &c); err == nil || !strings.Contains(err.Error(), "invalid duration") {
		t.Errorf("bad duration: %v", err)
	}
	if got := toJSON(Config{}.WithDefaults()); !strings.Contains(got, `"jwks_refresh_interval":"10m0s"`) || !strings.Contains(got, `"cookie":"weir_token"`) {
		t.Errorf("defaults read %s", got)
	}
}

func TestWeakSecretsAreAcceptedWhenAllowed(t *testing.T) {
	f := func(secret, refused string) {
		t.Helper()
		c := Config{KeySet: KeySet{HMACSecret: Secret(secret)}}
		if err := c.Validate(); err == nil {
			t.Errorf("%q is accepted without allow_weak_secrets", secret)
		}
		c.AllowWeakSecrets = true
		err := c.Validate()
		if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%q: %v, want %q", secret, err, refused)
		}
		if weak := c.WeakSecrets(); (len(weak) == 1) != (refused == "") {
			t.Errorf("%q: weak %v", secret, weak)
		}
	}
	f("secret", "")
	f(strings.Repeat("ab", 40), "")
	f("-----BEGIN PUBLIC KEY-----", "PEM") // with a public key as the secret everybody can sign
}

func TestShortKeysAreNamed(t *testing.T) {
	c := Config{APIKeys: []APIKey{{Name: "a", Key: "short"}, {Name: "b", Key: "0123456789abcdef"}}}
	if err := c.Validate(); err != nil {
		t.Errorf("a short key is refused: %v", err)
	}
	shown, err := c.APIKeys[0].Key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if err := (Config{APIKeys: []APIKey{{Name: "a", Key: Secret(shown)}}}).Validate(); err == nil {
		t.Errorf("%q, which anyone can read in a printed configuration, is accepted as a key", shown)
	}
	if got := c.ShortKeys(); len(got) != 1 || got[0] != "auth.api_keys[0]" {
		t.Errorf("ShortKeys() = %v, want auth.api_keys[0]", got)
	}
}
