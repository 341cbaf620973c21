package upstream

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestConfigSaysWhatIsWrong(t *testing.T) {
	f := func(change func(c *Config), want string) {
		t.Helper()
		c := Config{Name: "test", Peers: equal(2)}
		change(&c)
		err := c.Validate()
		switch {
		case want == "" && err != nil:
			t.Errorf("%v, want no error", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(func(c *Config) {}, "")
	f(func(c *Config) { *c = c.WithDefaults() }, "")
	f(func(c *Config) { c.Name = "" }, "no name")
	f(func(c *Config) { c.Peers = nil }, "no peers")
	f(func(c *Config) { c.Peers = peers("10.0.0.1:80", "10.0.0.1:80") }, "10.0.0.1:80 is listed twice")
	f(func(c *Config) { c.Peers = peers("App:80", "app.:80") }, "is listed twice")
	f(func(c *Config) { c.Peers[0].Weight = -1 }, "weight -1; write 1 to 1000")
	f(func(c *Config) { c.Peers[0].Weight = 1001 }, "weight 1001")
	f(func(c *Config) { c.Balance = "random" }, `"random" is none of round_robin`)
	f(func(c *Config) { c.HashKey = "query" }, "write header:X, cookie:name, path or address")
	f(func(c *Config) { c.HashLoad = 0.5 }, "hash_load")
	f(func(c *Config) { c.ProxyProtocol = 3 }, "proxy_protocol: 3")
	f(func(c *Config) { c.SlowStart = -1 }, "slow_start: -1ns is below 0")
	f(func(c *Config) { c.Timeouts.Total = -1 }, "timeouts.total")
	f(func(c *Config) { c.Health.Check = "ping" }, "none of none, http, tcp, grpc")
	f(func(c *Config) { c.Health.Service = "a.B" }, "health.service: is for check: grpc")
	f(func(c *Config) { c.Health.Path = "healthz" }, "write a path like /healthz")
	f(func(c *Config) { c.Health.Path = "/a b" }, "write a path like /healthz")
	f(func(c *Config) { c.Health.Host = "a\r\nX: y" }, "is not a host")
	f(func(c *Config) { c.Health.Status = "2xx" }, `"2xx" is not a status`)
	f(func(c *Config) { c.Health.Status = "200-299, 401" }, "")
	f(func(c *Config) { c.Health.Status = "299-200" }, "is not a status")
	f(func(c *Config) { c.Health.PanicBelow = 2 }, "is not a share")
	f(func(c *Config) { c.Outlier.MaxEjected = -0.5 }, "outlier.max_ejected")
	f(func(c *Config) { c.Outlier.BaseEjection = d(time.Minute) }, "max_ejection: 20s is below base_ejection (1m0s)")
	f(func(c *Config) { c.Breaker.Window = d(time.Minute) }, "breaker.window: 1m0s; write 1s to 30s")
	f(func(c *Config) { c.Breaker.Probes = 128 }, "breaker.probes: 128")
	f(func(c *Config) { c.Retry.On = []string{"5xx"} }, "write connect-failure, reset, timeout or a status")
	f(func(c *Config) { c.Retry.On = []string{"200"} }, "status from 400 to 599")
	f(func(c *Config) { c.Retry.Attempts = -1 }, "retry.attempts")
	f(func(c *Config) { c.Hedge.Percentile = 100 }, "hedge.percentile")
	f(func(c *Config) { c.Pool.MaxPerPeer = -1 }, "pool.max_per_peer")
	f(func(c *Config) { c.DNS.Family = "6" }, "dns.family")
	f(func(c *Config) { c.DNS.Interval = 1 }, "dns.interval")
}

func TestSplitConfigSaysWhatIsWrong(t *testing.T) {
	f := func(change func(c *SplitConfig), want string) {
		t.Helper()
		c := SplitConfig{Name: "s", Arms: []ArmConfig{{"a", 1}, {"b", 1}}}
		change(&c)
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(func(c *SplitConfig) {}, "")
	f(func(c *SplitConfig) { c.Arms[1].Cluster = "a" }, "is listed twice")
	f(func(c *SplitConfig) { c.Arms = []ArmConfig{{"a", 0}} }, "no weight is above 0")
	f(func(c *SplitConfig) { c.Arms[0].Weight = -1 }, "weight -1")
	f(func(c *SplitConfig) { c.Sticky = "path" }, "a path is no client")
	f(func(c *SplitConfig) { c.Sticky = "cookie" }, "names no cookie")
	f(func(c *SplitConfig) { c.Rules = []RuleConfig{{Cluster: "a"}} }, "either header or cookie")
	f(func(c *SplitConfig) { c.Rules = []RuleConfig{{Header: "a b", Cluster: "a"}} }, "is not a name")
	f(func(c *SplitConfig) { c.Mirror.Share = 0.5 }, "a share but no cluster")
	f(func(c *SplitConfig) { c.Canary.Steps = []float64{5, 5} }, "rising percentages")
	f(func(c *SplitConfig) { c.Canary.Steps = []float64{5, 200} }, "rising percentages")
	f(func(c *SplitConfig) { c.Canary = fiveSteps; c.Arms = c.Arms[:1] }, "write two, the baseline and the canary")
	f(func(c *SplitConfig) { c.Canary = fiveSteps; c.Canary.Samples = 10 }, "write 50 or more")
}

func TestDefaultsStayWithin30sOfRecovery(t *testing.T) {
	c := Config{Name: "test", Peers: equal(2), Health: HealthConfig{Path: "/"}, Balance: EWMA}
	if got := c.RecoveryBound(); got >= 30*time.Second {
		t.Errorf("the bound of the defaults is %s", got)
	}
	c.Health.Interval = d(time.Minute)
	if got := c.RecoveryBound(); got < 2*time.Minute {
		t.Errorf("with checks each minute the bound is %s", got)
	}
}

func TestConfigReadsItsOwnJSON(t *testing.T) {
	c := Config{Name: "test", Peers: weighted(1, 2), Balance: EWMA, Health: HealthConfig{Path: "/"}}.WithDefaults()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back Config
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	again, _ := json.Marshal(back)
	if string(again) != string(b) {
		t.Errorf("%s\n%s", b, again)
	}
}

func TestParseTarget(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		x, err := parseTarget(in)
		got := x.host
		if err != nil {
			got = "error: " + err.Error()
		} else if x.host == "" {
			got = x.addr.String()
		}
		if got != want && (!strings.HasPrefix(want, "error") || !strings.HasPrefix(got, "error") || !strings.Contains(got, want[6:])) {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	f("10.0.0.1:80", "10.0.0.1:80")
	f("[fd00::1]:80", "[fd00::1]:80")
	f("[::ffff:10.0.0.1]:80", "10.0.0.1:80")
	f("Backend.Example.:80", "backend.example")
	f("my_service:80", "my_service")
	f("unix:/run/app.sock", "unix:/run/app.sock")
	f("unix:run/app.sock", "error:absolute")
	f("unix:", "error:absolute")
	f("unix:/"+strings.Repeat("x", 107), "error:at most 107 bytes")
	f("http://10.0.0.1:80", "error:without a scheme")
	f("https://10.0.0.1:8443", "10.0.0.1:8443")
	f("https://10.0.0.1", "10.0.0.1:443")
	f("https://[fd00::1]", "[fd00::1]:443")
	f("https://App.example", "app.example")
	f("https://app.example/", "error:nothing behind")
	f("https://u@app.example", "error:nothing behind")
	f("https://unix:/run/app.sock", "error:nothing behind")
	f("https://https://a", "error:nothing behind")
	f("https://:443", "error:no host")
	f("https://", "error:no host")
	f("https://fd00::1", "error:https://host")
	f("10.0.0.1", "error:write host:port")
	f("fd00::1:80", "error:write host:port")
	f(":80", "error:no host")
	f("10.0.0.256:80", "error:not an IP address")
	f("a..b:80", "error:not a host name")
	f("-a:80", "error:not a host name")
	f("a b:80", "error:not a host name")
	f("a:0", "error:the port is a number")
	f("a:65536", "error:the port is a number")
	f("a:http", "error:the port is a number")
	f("", "error:write host:port")
}

// What is read can be written and read again.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", "[fd00::1]:80", "app.example:80", "unix:/run/app.sock", "[fe80::1%eth0]:1", "a:1:2", ":80", "[::ffff:1.2.3.4]:5", "https://10.0.0.1", "https://[fd00::1]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x, err := parseTarget(s)
		if err != nil || x.host != "" {
			return
		}
		text := x.addr.String()
		if x.tls {
			text = "https://" + text
		}
		again, err := parseTarget(text)
		if again.name, x.name = "", ""; err != nil || again != x {
			t.Errorf("%q is %v, which is %v, %v", s, x, again, err)
		}
	})
}

func FuzzParseStatusRanges(f *testing.F) {
	for _, s := range []string{"200", "200-299,401", " 200 , 300-399", "", ",", "1-2-3", "-200", "599-100"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all, err := parseStatusRanges(s)
		if err != nil {
			return
		}
		for _, r := range all {
			if r[0] < 100 || r[1] > 599 || r[0] > r[1] || !all.has(r[0]) || !all.has(r[1]) {
				t.Errorf("%q: %v", s, all)
			}
		}
		if all.has(99) || all.has(600) {
			t.Errorf("%q has what is not a status", s)
		}
	})
}

func FuzzParseKeySource(f *testing.F) {
	for _, s := range []string{"", "header:X-User", "cookie:id", "path", "address", "header:", "path:x", "cookie:a b", "header:a:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := parseKeySource(s)
		if err == nil && (k.Kind == KeyHeader || k.Kind == KeyCookie) != (k.Name != "") {
			t.Errorf("%q: %+v", s, k)
		}
	})
}

func TestKeysHashTheSameForever(t *testing.T) {
	// These values stand: another hash would move every client at an update.
	f := func(s string, want uint64) {
		t.Helper()
		if got := HashString(s); got != want || HashBytes([]byte(s)) != want {
			t.Errorf("%q: %#x, want %#x", s, got, want)
		}
	}
	f("", 0xefd01f60ba992926)
	f("user-1", 0x41a2fca5c68401c5)
}
