package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// sample has one key of each shape, so that the cases do not change whenever a
// package gets a new option.
type sample struct {
	Listen   string            `json:"listen"`
	On       bool              `json:"on"`
	Ratio    float64           `json:"ratio"`
	Workers  uint8             `json:"workers"`
	MaxBytes int64             `json:"max_bytes"`
	Wait     hub.Duration      `json:"wait"`
	Tick     time.Duration     `json:"tick"`
	Origins  []string          `json:"origins"`
	Networks []netip.Prefix    `json:"networks"`
	Labels   map[string]string `json:"labels"`
	Nats     sampleNATS        `json:"nats"`
	Keys     []sampleKey       `json:"keys"`
	Limit    *sampleLimit      `json:"limit"`
	Hook     func()            `json:"-"`
}

type sampleNATS struct {
	URL     string `json:"url"`
	DataDir string `json:"data_dir"`
	Secret  string `json:"secret" secret:"true"`
}

type sampleKey struct {
	Name  string   `json:"name"`
	Value string   `json:"value" secret:"true"`
	Also  []string `json:"also"`
}

type sampleLimit struct {
	PerSecond int `json:"per_second"`
}

// sampled reads sources and returns the effective YAML, without the defaults.
func sampled(s Sources) (string, error) {
	var v sample
	o := Origins{}
	if err := read(s, reflect.ValueOf(&v).Elem(), o); err != nil {
		return "", err
	}
	r := renderer{origins: o, redact: true}
	r.section(reflect.ValueOf(v), "", 0)
	return r.b.String(), nil
}

// Each file in testdata/cases is one case: the sources (config.yaml, env, flags)
// and what they give: effective.yaml or error, with hints on lines of their own.
func TestCases(t *testing.T) {
	names, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no cases", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, want := runCase(t, a)
			if *update {
				writeCase(t, name, a, got)
				return
			}
			if got.Name != want.Name || string(got.Data) != string(want.Data) {
				t.Errorf("%s:\n%s\nwant %s:\n%s", got.Name, got.Data, want.Name, want.Data)
			}
		})
	}
}

// runCase returns what the sources give and what they should, each led by the
// name of its file: an error is not an effective configuration.
func runCase(t *testing.T, a *txtar.Archive) (got, want txtar.File) {
	t.Helper()
	dir := t.TempDir()
	var s Sources
	for _, f := range a.Files {
		switch data := string(f.Data); f.Name {
		case "config.yaml":
			s.File = filepath.Join(dir, f.Name)
			if err := os.WriteFile(s.File, f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		case "env":
			s.Env = strings.Split(strings.TrimSpace(data), "\n")
		case "flags":
			for line := range strings.Lines(data) {
				o, err := ParseSet(strings.TrimRight(line, "\n"))
				if err != nil {
					t.Fatal(err)
				}
				s.Flags = append(s.Flags, o)
			}
		case "effective.yaml", "error":
			want = f
		default:
			t.Fatalf("a case has no file %q", f.Name)
		}
	}
	out, err := sampled(s)
	name := "effective.yaml"
	if err != nil {
		name = "error"
		for _, p := range Problems(err) {
			out += p.Error() + "\n"
			if h := HintOf(p); h != "" {
				out += "  hint: " + h + "\n"
			}
		}
	}
	out = strings.ReplaceAll(out, dir+string(filepath.Separator), "")
	return txtar.File{Name: name, Data: []byte(out)}, want
}

func writeCase(t *testing.T, name string, a *txtar.Archive, got txtar.File) {
	t.Helper()
	var files []txtar.File
	for _, f := range a.Files {
		if f.Name != "effective.yaml" && f.Name != "error" {
			files = append(files, f)
		}
	}
	a.Files = append(files, got)
	if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDefaultFileReadsBackAsDefault(t *testing.T) {
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, []byte(Default().File()), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(Sources{File: name})
	if err != nil {
		t.Fatal(err)
	}
	if want := Default(); got.Effective(nil) != want.Effective(nil) {
		t.Errorf("read back:\n%s\nwant:\n%s", got.Effective(nil), want.Effective(nil))
	}
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestCompletingTwiceChangesNothing(t *testing.T) {
	a := Default()
	b := a
	complete(reflect.ValueOf(&b).Elem())
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestLaterSourcesWin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, []byte("log: {level: debug, format: json}\nlisten: :1\nadmin: {listen: 'off'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, origins, err := Read(Sources{
		File:  name,
		Env:   []string{"HOME=/root", "WEIR_LOG_LEVEL=warn", "WEIR_LISTEN=:2", "WEIR_ADMIN_LISTEN="},
		Flags: []Override{{"--listen", "listen", ":3"}, {"--set", "listen", ":4"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := func(path, got, want, origin string) {
		t.Helper()
		if got != want || origins[path] != origin {
			t.Errorf("%s = %q from %q, want %q from %q", path, got, origins[path], want, origin)
		}
	}
	f("log.format", c.Log.Format, "json", name+":1")
	f("log.level", c.Log.Level, "warn", "WEIR_LOG_LEVEL")
	f("listen", c.Listen, ":4", "--set")
	f("admin.listen", c.Admin.Listen, "off", name+":3")
	f("broker.kind", c.Broker.Kind, "nats", "")
}

func TestValidateNamesTheKey(t *testing.T) {
	f := func(set, problem, hint string) {
		t.Helper()
		o, err := ParseSet(set)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Load(Sources{Flags: []Override{o}})
		ps := Problems(err)
		if len(ps) != 1 || !strings.Contains(ps[0].Error(), problem) || !strings.Contains(HintOf(ps[0]), hint) {
			t.Errorf("%s: %v, hint %q; want %q, hint %q", set, err, HintOf(err), problem, hint)
		}
	}
	f("log.level=wran", `log: level: "wran" is none of debug, info, warn, error`, "did you mean warn?")
	f("auth.leeway=1h", `auth.leeway: 1h0m0s is not within`, "")
	f("listen=8000", `listen: "8000" is not an address`, "write host:port")
	f("listen=127.0.0.1:http", `the port is not within 0..65535`, "write host:port")
	f("admin.listen=x", `admin: listen: "x" is not an address`, "write host:port")
	f("broker.kind=redis", `broker: kind: "redis" is none of nats, memory`, "")
	f(`namespaces=[{"name":"a"},{"name":"a"}]`, `namespaces[1]: name: "a" is taken by namespaces[0]`, "")
	f(`namespaces=[{"name":"a.b"}]`, `namespaces[0]: namespace "a.b": name:`, "")
	f("broker.nats.url=4222", `broker: nats: url: "4222" is not an address`, "")
	f("broker.nats.prefix=a-b", `broker: nats: prefix: "a-b" is not`, "")
	f("push.max_channels=1000", `push: max_channels: 1000 is not within`, "")
	f("downstream.max_line=40000", `downstream: max_line: 40000 is not within`, "")
	f("eventloop.engine=kqueue", `eventloop: engine: "kqueue" is`, "")
	f(`centrifuge={"enabled":true,"events_channel":"nope:x"}`, `centrifuge.events_channel: there is no namespace "nope"`, "- name: nope")
	f("shutdown.drain=-1s", `shutdown: drain: -1s is negative`, "")
}

func TestInvalidValuesAreLocated(t *testing.T) {
	name := filepath.Join(t.TempDir(), "weir.yaml")
	file := "log:\n  level: loud\nnamespaces:\n- name: a\n  replicas: 9\nauth:\n  api_keys:\n  - name: x\n    sha256: short\n"
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(Sources{File: name, Flags: []Override{{"--listen", "listen", "x"}}, Env: []string{"WEIR_LOG_FORMAT=xml"}})
	f := func(start string) {
		t.Helper()
		for _, p := range Problems(err) {
			if strings.HasPrefix(p.Error(), start) {
				return
			}
		}
		t.Errorf("no problem starts with %q:\n%v", start, err)
	}
	f(name + ":2: log: level: ")
	f("WEIR_LOG_FORMAT: log: format: ")
	f(name + ":5: namespaces[0]: namespace \"a\": replicas: ")
	f(name + ":9: auth.api_keys[0].sha256: ")
	f("--listen: listen: ")
	if n := len(Problems(err)); n != 5 {
		t.Errorf("%d problems, want 5:\n%v", n, err)
	}
}

func TestMemoryBrokerCannotSync(t *testing.T) {
	_, err := Load(Sources{Flags: []Override{
		{"--set", "broker.kind", "memory"},
		{"--set", "namespaces", `[{"name":"a","durability":"synced"}]`},
	}})
	if err == nil || !strings.Contains(err.Error(), "namespaces[0]: durability") || HintOf(err) == "" {
		t.Errorf("%v, hint %q", err, HintOf(err))
	}
}

func TestWithoutKeysOnlyLoopback(t *testing.T) {
	f := func(ok bool, sets ...string) {
		t.Helper()
		var s Sources
		for _, set := range sets {
			o, err := ParseSet(set)
			if err != nil {
				t.Fatal(err)
			}
			s.Flags = append(s.Flags, o)
		}
		_, err := Load(s)
		if (err == nil) != ok || !ok && !strings.Contains(HintOf(err), "WEIR_AUTH_HMAC_SECRET") {
			t.Errorf("%q: %v, hint %q", sets, err, HintOf(err))
		}
	}
	const secret = "0123456789abcdef0123456789abcdef"
	f(true, "listen=127.0.0.1:0")
	f(true, "listen=[::1]:0")
	f(false, "listen=:0")
	f(false, "listen=0.0.0.0:0")
	f(false, "listen=192.0.2.1:0", "auth.hmac_previous_secret="+secret)
	f(true, "listen=:0", "auth.hmac_secret="+secret)
	f(true, "listen=:0", "auth.jwks_url=https://issuer.example/keys")
	f(true, "listen=:0", `auth.api_keys=[{"name":"a","key":"`+secret+`"}]`)
}

func TestEmbeddedBrokerHasADirectory(t *testing.T) {
	f := func(dir string, flags ...Override) {
		t.Helper()
		c, err := Load(Sources{Flags: flags})
		if err != nil || c.Broker.NATS.Dir != dir {
			t.Errorf("%q: %q, %v", flags, c.Broker.NATS.Dir, err)
		}
	}
	f("weir-data")
	f("d", Override{"--data-dir", "broker.nats.dir", "d"})
	f("", Override{"--set", "broker.nats.url", "nats://h:4222"})
	f("", Override{"--set", "broker.kind", "memory"})
}

func TestSecretsAreNotShown(t *testing.T) {
	const secret = "hush-hush-0123456789-0123456789abc"
	c, origins, err := Read(Sources{
		Env:   []string{"WEIR_AUTH_HMAC_SECRET=" + secret, "WEIR_BROKER_NATS_PASSWORD=" + secret},
		Flags: []Override{{"--set", "auth.api_keys", `[{"name":"a","key":"` + secret + `"}]`}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Auth.HMACSecret) != secret || string(c.Auth.APIKeys[0].Key) != secret {
		t.Fatalf("not read: %#v", c.Auth)
	}
	if s := c.Effective(origins); strings.Contains(s, "hush") || strings.Count(s, redact.Mark) != 3 {
		t.Errorf("effective shows secrets:\n%s", s)
	}
	_, _, err = Read(Sources{Flags: []Override{{"--set", "auth.api_keys", `[{"key":["` + secret + `"]},{"key":12345678}]`}}})
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("%v", err)
	}
}

func TestKubernetesVariablesAreIgnored(t *testing.T) {
	f := func(name string, want bool) {
		t.Helper()
		_, _, err := Read(Sources{Env: []string{name + "=tcp://10.0.0.1:80"}})
		if (err == nil) != want {
			t.Errorf("%s: %v, want ignored %v", name, err, want)
		}
	}
	f("WEIR_PORT", true)
	f("WEIR_SERVICE_HOST", true)
	f("WEIR_SERVICE_PORT_HTTP", true)
	f("WEIR_PORT_8000_TCP_ADDR", true)
	f("WEIR_ADMIN_PORT_8001_TCP", true)
	f("WEIR_PORTS", false)
	f("WEIR_CONFIG", true)
}

func TestLoopback(t *testing.T) {
	f := func(addr string, want bool) {
		t.Helper()
		if Loopback(addr) != want {
			t.Errorf("Loopback(%q) = %v", addr, !want)
		}
	}
	f("127.0.0.1:8000", true)
	f("127.8.0.1:0", true)
	f("[::1]:8000", true)
	f("[::ffff:127.0.0.1]:1", true)
	f("localhost:8000", true)
	f(":8000", false)
	f("0.0.0.0:8000", false)
	f("[::]:8000", false)
	f("10.0.0.1:8000", false)
	f("example.org:8000", false)
	f("127.0.0.1", false)
}

func TestHintsSurviveWrapping(t *testing.T) {
	err := at("a.b", errors.Join(errors.New("x"), WithHint(errors.New("y"), "do z")))
	if HintOf(err) != "do z" {
		t.Errorf("hint %q", HintOf(err))
	}
	if WithHint(nil, "h") != nil || HintOf(nil) != "" || Problems(nil) != nil {
		t.Error("nil must stay nil")
	}
}

func TestSizes(t *testing.T) {
	f := func(s string, want int64, ok bool) {
		t.Helper()
		n, err := parseSize(s)
		if n != want || (err == nil) != ok {
			t.Errorf("parseSize(%q) = %d, %v", s, n, err)
		}
		if ok {
			if back, err := parseSize(formatSize(n)); back != n || err != nil {
				t.Errorf("%q → %d → %q → %d", s, n, formatSize(n), back)
			}
		}
	}
	f("0", 0, true)
	f("65536", 65536, true)
	f("64KiB", 65536, true)
	f("64 KiB", 65536, true)
	f("1GB", 1e9, true)
	f("9223372036854775807", 1<<63-1, true)
	f("8388608TiB", 0, false)
	f("", 0, false)
	f("KiB", 0, false)
	f("-1", 0, false)
	f("1.5MiB", 0, false)
	f("1kib", 0, false)
}

func TestNearest(t *testing.T) {
	f := func(s, want string, from ...string) {
		t.Helper()
		if got := nearest(s, from); got != want {
			t.Errorf("nearest(%q, %q) = %q, want %q", s, from, got, want)
		}
	}
	f("lisen", "listen", "log", "listen")
	f("lsiten", "listen", "log", "listen")
	f("dataDir", "data_dir", "url", "data_dir")
	f("max-conns", "max_conns", "max_conns", "max_conn_age")
	f("x", "", "log", "listen")
	f("", "", "a")
	f("heartbeat", "", "listen")
}

// Whatever is written, reading answers; what it accepts reads back the same.
func FuzzRead(f *testing.F) {
	f.Add("listen: x\nkeys:\n- name: a\n  also: [b, 'c,d']\n", "WEIR_WAIT=3s", "labels={a: b}")
	f.Add("limit: {per_second: 3}\nnetworks: [10.0.0.0/8]", "WEIR_ORIGINS=a,b", "nats.url=nats://u:p@h")
	f.Add("a: &a [*a]", "WEIR_KEYS=[{}]", "max_bytes=1KiB")
	f.Add("listen: \"\\u0085\\x00#: -\"\nworkers: 0x_f", "WEIR_X", "on=1")
	f.Fuzz(func(t *testing.T, file, env, set string) {
		name := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		s := Sources{File: name, Env: []string{env}}
		if o, err := ParseSet(set); err == nil {
			s.Flags = append(s.Flags, o)
		}
		var v, back sample
		if err := read(s, reflect.ValueOf(&v).Elem(), nil); err != nil {
			return
		}
		r := renderer{}
		r.section(reflect.ValueOf(v), "", 0)
		if ps := readYAML("back", []byte(r.b.String()), reflect.ValueOf(&back).Elem(), nil); len(ps) > 0 {
			t.Fatalf("%v\nin:\n%s", ps, r.b.String())
		}
		again := renderer{}
		again.section(reflect.ValueOf(back), "", 0)
		if again.b.String() != r.b.String() {
			t.Fatalf("once:\n%s\ntwice:\n%s", r.b.String(), again.b.String())
		}
	})
}

// What is read as a size is written so that it reads the same.
func FuzzSize(f *testing.F) {
	f.Add("64KiB")
	f.Add("1 GB")
	f.Add("0")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := parseSize(s)
		if err != nil {
			return
		}
		if back, err := parseSize(formatSize(n)); n < 0 || err != nil || back != n {
			t.Fatalf("%q → %d → %q → %d, %v", s, n, formatSize(n), back, err)
		}
	})
}

func TestShortKeysStayOnLoopback(t *testing.T) {
	f := func(listen, key string, ok bool) {
		t.Helper()
		c := Default()
		c.Listen = listen
		c.Auth.APIKeys = []auth.APIKey{{Name: "a", Key: auth.Secret(key)}}
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("listen %s with key %q: %v, want ok=%v", listen, key, err, ok)
		}
	}
	f("127.0.0.1:8000", "k", true)
	f("0.0.0.0:8000", "k", false)
	f("0.0.0.0:8000", "0123456789abcdef", true)
}

// One run of check names everything: keys that cannot be read, values that are not
// valid and what only building the parts finds, each with its line, once.
func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	name := filepath.Join(t.TempDir(), "weir.yaml")
	file := "lisen: x\nlog:\n  level: loud\nshutdown:\n  drain: 3 days\nnamespaces:\n- name: a\n  replicas: 9\n" +
		"clusters:\n- name: up\n  peers:\n  - addr: 127.0.0.1:1\n- name: down\n  balance: foo\n  peers:\n  - address: 127.0.0.1:1\n"
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(Config) error {
		return fmt.Errorf("cluster %q: %w", "down", errors.Join(errors.New("first"), WithHint(errors.New("second"), "do so")))
	}
	_, err := Load(Sources{File: name}, Config.Validate, check)
	var got []string
	for _, p := range Problems(err) {
		got = append(got, strings.TrimPrefix(p.Error(), name+":"))
	}
	want := []string{
		"1: lisen: unknown key",
		`5: shutdown.drain: invalid duration "3 days": `,
		"12: clusters[0].peers[0].addr: unknown key",
		`3: log: level: "loud"`,
		`8: namespaces[0]: namespace "a": replicas: `,
		`14: clusters[1]: cluster "down": balance: `,
		`13: cluster "down": first`,
		`13: cluster "down": second`,
	}
	for i, w := range want {
		if i >= len(got) || !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
			t.Errorf("no problem starts with %q", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d problems, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	if all := Problems(err); HintOf(all[len(all)-1]) != "do so" {
		t.Errorf("the last problem lost its hint: %v", all[len(all)-1])
	}
}
