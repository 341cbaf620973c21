package migrate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

var update = flag.Bool("update", false, "write the golden translations")

// samples are the files of testdata that are translated, with what is laid over them.
var samples = []struct {
	kind      Kind
	file, env string
}{
	{Centrifugo, "centrifugo6.json", ""}, {Centrifugo, "centrifugo5.toml", ""}, {Centrifugo, "centrifugo.env", ""}, {Centrifugo, "centrifugo6.yaml", ""},
	{Mercure, "mercure07.Caddyfile", "mercure.env"}, {Mercure, "mercure08.Caddyfile", ""}, {Mercure, "mercure-resource.Caddyfile", ""}, {Mercure, "mercure.env", ""}, {Mercure, "mercure-old.env", ""},
	{Soketi, "soketi.json", ""}, {Soketi, "soketi.env", ""}, {Reverb, "reverb.env", ""},
}

func readSample(t testing.TB, name string) []byte {
	t.Helper()
	if name == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// load reads a translation as weir config check does.
func load(t testing.TB, y []byte) error {
	t.Helper()
	f, err := os.CreateTemp("", "weir-migrate-")
	if err != nil {
		t.Fatal(err)
	}
	name := f.Name()
	defer os.Remove(name)
	if _, err := f.Write(y); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = config.Load(config.Sources{File: name})
	return err
}

func TestSamplesAreTranslated(t *testing.T) {
	for _, s := range samples {
		t.Run(s.file, func(t *testing.T) {
			r, err := Translate(s.kind, s.file, readSample(t, s.file), Options{Env: readSample(t, s.env), EnvName: s.env})
			if err != nil {
				t.Fatal(err)
			}
			if err := load(t, r.YAML); err != nil {
				t.Errorf("config check: %v", err)
			}
			golden(t, "golden/"+s.file+".yaml", r.YAML)
			golden(t, "golden/"+s.file+".report", []byte(r.Report()))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is another (%v); run go test ./internal/app/migrate -run %s -update and look at the difference:\n%s", name, err, t.Name(), got)
	}
}

// A redacted translation holds and says no secret, and is accepted all the same. Nor
// does the report of any.
func TestSecretsAreNotShown(t *testing.T) {
	secrets := map[string][]string{
		"centrifugo6.json": {
			"8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10", "c1d2e3f4-aaaa-4b4b-8c8c-1234567890ab", "a-key-of-the-backend-0123456789",
			"correct horse battery", "Bearer backend-key",
		},
		"mercure07.Caddyfile": {"!ChangeThisMercureHubJWTSecretKey"},
		"mercure08.Caddyfile": {"a secret of publishers"},
		"mercure.env":         {"!ChangeThisMercureHubJWTSecretKey"},
		"soketi.json":         {"shop-secret-0123456789", "ea187699ef5e67a7", "hunter2", "hook-token"},
		"soketi.env":          {"a-secret-that-is-longer"},
	}
	for _, s := range samples {
		for _, redact := range []bool{true, false} {
			r, err := Translate(s.kind, s.file, readSample(t, s.file), Options{Env: readSample(t, s.env), EnvName: s.env, Redact: redact})
			if err != nil {
				t.Fatal(err)
			}
			if err := load(t, r.YAML); err != nil {
				t.Errorf("%s: redacted %v: %v", s.file, redact, err)
			}
			for _, secret := range secrets[s.file] {
				if strings.Contains(r.Report(), secret) {
					t.Errorf("%s: the report has %q", s.file, secret)
				}
				if redact && bytes.Contains(r.YAML, []byte(secret)) {
					t.Errorf("%s: %q is not redacted", s.file, secret)
				}
			}
			if len(secrets[s.file]) > 0 && !strings.Contains(r.Report(), map[bool]string{true: "replace-me", false: "--redact"}[redact]) {
				t.Errorf("%s: the report does not say that there are secrets", s.file)
			}
		}
	}
}

func TestCredentialsOfNATSAreRedacted(t *testing.T) {
	f := func(kind Kind, text string) {
		t.Helper()
		r, err := Translate(kind, "c.json", []byte(text), Options{Redact: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := load(t, r.YAML); err != nil || bytes.Contains(r.YAML, []byte("hunter2")) || r.Secrets == 0 {
			t.Errorf("%d secrets, %v:\n%s", r.Secrets, err, r.YAML)
		}
	}
	f(Centrifugo, `{"broker":{"enabled":true,"type":"nats","nats":{"url":"nats://u:hunter2@n:4222"}}}`)
	f(Soketi, `{"adapter":{"driver":"nats","nats":{"servers":["u:hunter2@n:4222"]}}}`)
}

// An unknown key is named wherever it is.
func TestUnknownKeysAreNamed(t *testing.T) {
	f := func(kind Kind, file string) {
		t.Helper()
		objects := 0
		for i := 0; ; i++ {
			var v any
			if err := json.Unmarshal(readSample(t, file), &v); err != nil {
				t.Fatal(err)
			}
			at := i
			if !plant(v, &at) {
				break
			}
			objects++
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Translate(kind, file, b, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(r.Report(), "zz_planted") && !strings.Contains(string(r.YAML), "zz_planted") {
				t.Errorf("%s: zz_planted in object %d is lost:\n%s", file, i, r.Report())
			}
		}
		if objects < 5 {
			t.Errorf("%s: %d objects", file, objects)
		}
	}
	f(Centrifugo, "centrifugo6.json")
	f(Soketi, "soketi.json")
}

// plant puts an unknown key into the n-th object of v.
func plant(v any, n *int) bool {
	switch v := v.(type) {
	case map[string]any:
		if *n == 0 {
			v["zz_planted"] = "1"
			return true
		}
		*n--
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if plant(v[k], n) {
				return true
			}
		}
	case []any:
		for _, x := range v {
			if plant(x, n) {
				return true
			}
		}
	}
	return false
}

// The forms of a file mean the same.
func TestFormsMeanTheSame(t *testing.T) {
	const js = `{"client":{"token":{"hmac_secret_key":"8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10"},"ping_interval":"10s"},"channel":{"namespaces":[{"name":"a","presence":true}]}}`
	const ya = "client:\n  token: &t\n    hmac_secret_key: 8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10\n  ping_interval: 10s\nchannel:\n  namespaces:\n    - name: a\n      presence: true\n"
	const to = "[client]\nping_interval = \"10s\"\n[client.token]\nhmac_secret_key = \"8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10\"\n[[channel.namespaces]]\nname = \"a\"\npresence = true\n"
	const en = "CENTRIFUGO_CLIENT_TOKEN_HMAC_SECRET_KEY=8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10\nCENTRIFUGO_CLIENT_PING_INTERVAL=10s\nCENTRIFUGO_CHANNEL_NAMESPACES='[{\"name\":\"a\",\"presence\":true}]'\n"
	const v5 = `{"token_hmac_secret_key":"8f2b6c0d-4f6e-4a35-9e1a-2f5d3c7b9a10","ping_interval":"10s","namespaces":[{"name":"a","presence":true}]}`
	var want string
	for _, f := range []struct{ name, text string }{{"c.json", js}, {"c.yaml", ya}, {"c.toml", to}, {".env", en}, {"5.json", v5}, {"noname", js}} {
		r, err := Translate(Centrifugo, f.name, []byte(f.text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(string(r.YAML), "\n\n")
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", f.name, got, want)
		}
	}
}

func TestWhatCannotBeReadIsSaidWithItsPlace(t *testing.T) {
	f := func(kind Kind, file, text, want string) {
		t.Helper()
		_, err := Translate(kind, file, []byte(text), Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %q: %v, want %q", file, text, err, want)
		}
	}
	f(Centrifugo, "c.json", "{\n \"a\": {\"b\": }\n}", "c.json:2: a.b: invalid character")
	f(Centrifugo, "c.json", "{\n \"a\": 1", "c.json:2: it ends too early")
	f(Centrifugo, "c.json", "[]", "c.json:1: want an object")
	f(Centrifugo, "c.json", "{} {}", "something follows")
	f(Centrifugo, "c.yaml", "a: 1\nb: [", "c.yaml:2: ")
	f(Centrifugo, "c.yaml", "- a", "want keys with values")
	f(Centrifugo, "c.toml", "a = 1\nb = \n", "c.toml:2: ")
	f(Centrifugo, "c.toml", "a = 1\na = 2\n", "c.toml:2: ")
	f(Centrifugo, ".env", "A=1\nnonsense\n", ".env:2: ")
	f(Centrifugo, ".env", "A='1\nB=2\n", ".env:1: A: the quote is not closed")
	f(Centrifugo, "c.ini", "x", "what is it written in?")
	f(Centrifugo, "c.json", "{\"a\": \"\xff\"}", "c.json:1: it is not UTF-8")
	f(Centrifugo, "c.json", strings.Repeat(" ", maxInput+1), "no configuration is that long")
	f(Centrifugo, "c.json", strings.Repeat(`{"a":`, 100), "deep")
	f(Centrifugo, "c.json", `{"a":[`+strings.Repeat("1,", maxNodes+1)+`1]}`, "more than 50000 values")
	f(Centrifugo, "c.yaml", "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b ["+strings.Repeat("*a,", 30)+"]\nc: &c ["+strings.Repeat("*b,", 30)+"]\nd: &d ["+strings.Repeat("*c,", 30)+"]\n", "")
	f(Centrifugo, "c.yaml", "a: &a\n  b: *a\n", "")
	f(Mercure, "Caddyfile", "localhost {\n\tmercure {\n", "Caddyfile:2: a block is not closed")
	f(Mercure, "Caddyfile", "localhost {\n}\n}\n", "Caddyfile:3: } closes nothing")
	f(Mercure, "Caddyfile", "localhost {\n respond \"x\n}\n", "Caddyfile:2: ")
	f(Mercure, "Caddyfile", "localhost {\n respond 200\n}\n", "no site with a directive mercure")
	f(Mercure, "caddy.json", "{}", "Caddy's JSON is not read")
	f(Soketi, "s.json", "{", "s.json:1: ")
	f("nchan", "x", "{}", `"nchan" is not a server`)
}

// What Weir refuses is brought to what it takes, or left out, and said.
func TestWhatIsRefusedIsSaid(t *testing.T) {
	f := func(kind Kind, file, text string, want ...string) {
		t.Helper()
		r, err := Translate(kind, file, []byte(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := load(t, r.YAML); err != nil {
			t.Errorf("%s: %v\n%s", text, err, r.YAML)
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(strings.Fields(r.Report()), " "), w) {
				t.Errorf("%s: no %q in\n%s", text, w, r.Report())
			}
		}
	}
	c := func(text string, want ...string) { t.Helper(); f(Centrifugo, "c.json", text, want...) }
	c(`{"token_hmac_secret_key":"short"}`, "accepted as before: 5 bytes can be guessed")
	c(`{"token_hmac_secret_key":"`+strings.Repeat("ab", 20)+`"}`, "accepted as before: has fewer than 8 different bytes")
	c(`{"token_hmac_secret_key":"-----BEGIN PUBLIC KEY-----"}`, "left out: is a PEM key", "listen: \":8000\"")
	c(`{"api_key":"short"}`, "a key of 5 bytes can be guessed", "listen: \":8000\"")
	c(`{"client":{"token":{"rsa_public_key":"no"}}}`, "left out: ")
	c(`{"client":{"token":{"jwks_public_endpoint":"http://keys.example/jwks"}}}`, "left out: ")
	c(`{"client":{"ping_interval":"5s","pong_timeout":"8s"}}`, "each answered before the next")
	c(`{"client":{"channel_limit":1000000}}`, "was 1000000; Weir takes 1 to 10000")
	c(`{"client":{"channel_limit":"many"}}`, `"many" is not a number`)
	c(`{"client":{"ping_interval":"soon"}}`, `"soon" is not a duration`)
	c(`{"client":{"insecure":"perhaps"}}`, "neither true nor false")
	c(`{"client":{"allowed_origins":["shop.example","https://ok.example"]}}`, `"shop.example" is not an origin`)
	c(`{"client":{"insecure":true}}`, "clients are let in without a token")
	c(`{"http_server":{"tls":{"enabled":true,"cert_pem":"-----BEGIN CERTIFICATE-----"}},"http_api":{"key":"0123456789abcdef"}}`, "reads certificates and keys from files", "with TLS")
	c(`{"http_server":{"tls_autocert":{"enabled":true}}}`, "not translated")
	c(`{"http_server":{"address":"host.example"}}`, "not an address that can be listened on")
	c(`{"channel":{"namespaces":[{"name":"A"},{"name":"default"},{"name":"b","channel_regex":"("},5,{}]}}`, "is not a name", "centrifuge.namespaces.b.channel_regex", "a namespace without a name")
	c(`{"channel":{"without_namespace":{"subscribe_proxy_enabled":true}}}`, `there is no proxy "default"`, "the backend is not queried")
	c(`{"channel":{"namespaces":[{"name":"a","subscribe_proxy_enabled":true,"subscribe_proxy_name":"x"},{"name":"b","subscribe_proxy_enabled":true,"subscribe_proxy_name":"y"}]},"proxies":[{"name":"x","endpoint":"http://a"},{"name":"y","endpoint":"http://b"}]}`,
		"there is one backend for each event")
	c(`{"channel":{"without_namespace":{"history_size":5,"history_ttl":"1ms"}}}`, "at least 1s")
	c(`{"engine":{"type":"mongodb"}}`, `"mongodb" is not an engine`)
	c(`{"broker":{"enabled":true,"type":"nats","nats":{"url":"nats://n:4222","prefix":"a.b"}}}`, "needs JetStream", "a prefix is 1 to 32")
	c(`{"port":8000,"http_server":{"port":9000}}`, "there twice")
	c(`{"channel":{"namespaces":"1,\"y\":2"}}`, "it is not a list of namespaces")
	f(Soketi, "s.json", `{}`, "no applications in it")
	f(Soketi, "s.json", `{"appManager":{"driver":"mysql"}}`, "read from the configuration, not from mysql")
	f(Soketi, "s.json", `{"appManager.array.apps.0.id":"a","appManager.array.apps.0.key":"b","appManager.array.apps.0.secret":"s"}`, "1 bytes can be guessed", "was :6001")
	f(Soketi, "s.json", `{"appManager":{"array":{"apps":[{"id":"a b","key":"b","secret":"c"},{"id":"a"},7]}}}`, "is not 1 to 64 letters", "wants id, key and secret")
	f(Soketi, "s.json", `{"ssl":{"certPath":"c.pem","keyPath":"k.pem","passphrase":"p"}}`, "without a passphrase")
	f(Mercure, "Caddyfile", "http://:80 {\n mercure {\n publisher_jwt short\n}\n}\n", "left out: 5 bytes can be guessed", "there are no keys")
	f(Mercure, "Caddyfile", "http://:80 {\n mercure {\n publisher_jwt 0123456789abcdef0123456789abcdef HS512\n}\n}\n", "64 for HS512")
	f(Mercure, "Caddyfile", "http://:80 {\n mercure {\n publisher_jwt {env.KEY}\n transport redis {\n address x\n}\n}\n}\n", "{env.KEY} is not known here", "is a log outside")
}

// A configuration that is translated to something else says so beside the value, too.
func TestChangesAreShownBesideValues(t *testing.T) {
	r, err := Translate(Centrifugo, "c.json", []byte(`{"log":{"level":"trace"}}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "  level: debug # was trace\n"; !strings.Contains(string(r.YAML), want) {
		t.Errorf("no %q in\n%s", want, r.YAML)
	}
}

func TestOutputIsReadBackAsItWasWritten(t *testing.T) {
	f := func(s string) {
		t.Helper()
		out := &section{}
		out.at("mercure").set("cookie", s, "a comment\nof two # lines\x00")
		y := out.yaml("head\nmore: \u2028evil: 1")
		n, err := parseYAML("x", y)
		if err != nil {
			t.Fatalf("%q: %v\n%s", s, err, y)
		}
		if got := n.at("mercure.cookie"); got == nil || got.kind != text || got.value != s || len(n.fields) != 1 {
			t.Errorf("%q is read as %+v:\n%s", s, got, y)
		}
	}
	for _, s := range []string{
		"a", "", "yes", "null", "1", "1e3", "0x1", "~", "a: b", "a #b", "- a", "'", `"`, "\\", "\n", "a\tb", "\x7f", "\u0085", "\u2028", "\ufeff", "é", "😀",
		"2001-01-01", "!x", "&x", "*x", "{", "[", "%x", "@x", "`x`", "| x", "-", "?", ":", "a:", ".inf", "=", "<<", "0o7", "1:30", "-----BEGIN X-----\nabc\n-----END X-----\n",
	} {
		f(s)
	}
}

func TestReportFitsItsLines(t *testing.T) {
	for _, s := range samples {
		r, err := Translate(s.kind, s.file, readSample(t, s.file), Options{Env: readSample(t, s.env), EnvName: s.env})
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(r.Report()) {
			if len(line) > reportWidth+1 {
				t.Errorf("%s: a line of %d bytes: %s", s.file, len(line), line)
			}
		}
		total := fmt.Sprintf("%s: %d values", s.file, r.Keys)
		if !strings.HasPrefix(r.Report(), total) {
			t.Errorf("%s: the report does not start with %q", s.file, total)
		}
	}
}
