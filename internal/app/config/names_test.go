package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// negativeNames are boolean keys whose name may be negative, and why.
var negativeNames = map[string]string{
	"eventloop.sockets.no_delay":      "the name of the socket option, TCP_NODELAY",
	"clusters[].retry.non_idempotent": "the requests that are not idempotent (RFC 9110 §9.2.2)",
}

// A switch that reads "disable: false" takes two steps to understand.
func TestNoSwitchHasANegativeName(t *testing.T) {
	negative := []string{"no", "not", "non", "off", "disable", "disabled", "disallow", "skip", "without", "never", "hide", "ignore", "omit", "exclude", "prevent", "forbid"}
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if typ := deref(k.typ); typ.Kind() != reflect.Bool && typ != switchType || negativeNames[k.path] != "" {
			continue
		}
		for part := range strings.SplitSeq(k.key, "_") {
			if slices.Contains(negative, part) {
				t.Errorf("%s is a negative name: use a positive one with a default of true (setting.Switch)", k.path)
			}
		}
	}
}

// A boolean that is true by default is a Switch: a nil pointer means what its comment
// says, and a Switch what its type says.
func TestNoKeyIsAPointerToABool(t *testing.T) {
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if k.typ.Kind() == reflect.Pointer && deref(k.typ).Kind() == reflect.Bool {
			t.Errorf("%s is a *bool", k.path)
		}
	}
}

func TestRenamedKeysNameTheNewOnes(t *testing.T) {
	all := keysOf(reflect.TypeFor[Config]())
	for old, now := range renamed {
		if slices.ContainsFunc(all, func(k key) bool { return k.path == old }) {
			t.Errorf("%s is a key still", old)
		}
		name, _, _ := strings.Cut(now, ":")
		if !slices.ContainsFunc(all, func(k key) bool { return k.path == name || strings.HasSuffix(k.path, "."+name) }) {
			t.Errorf("%s: the new key %s does not exist", old, name)
		}
	}
	f := func(s Sources, want string) {
		t.Helper()
		_, err := Load(s)
		if err == nil || !strings.Contains(err.Error(), "unknown") || !strings.Contains(HintOf(err), want) {
			t.Errorf("%v, hint %q; want a hint with %q", err, HintOf(err), want)
		}
	}
	f(Sources{File: file(t, "mercure: {publisher: {hmac_secret: x}}")}, "mercure.publisher_keys: NAME")
	f(Sources{Env: []string{"WEIR_MERCURE_REQUIRE_EXPIRY=true"}}, "key_sets.*.require_expiry")
	f(Sources{Flags: []Override{{Flag: "--set", Key: "centrifuge.token", Value: "x"}}}, "centrifuge.keys: NAME")
	if _, err := Reference("auth.disable_query_token"); !strings.Contains(HintOf(err), "auth.query_token") {
		t.Errorf("docs: %v, hint %q", err, HintOf(err))
	}
}

// A deprecated key is read as its successor, from every kind of source, with a warning that
// names the successor and its value.
func TestDeprecatedKeysAreAcceptedWithAWarning(t *testing.T) {
	all := keysOf(reflect.TypeFor[Config]())
	for old, p := range deprecated {
		i := slices.IndexFunc(all, func(k key) bool { return k.path == p.successor(old) })
		if slices.ContainsFunc(all, func(k key) bool { return k.path == old }) || renamed[old] != "" || i < 0 {
			t.Errorf("%s: it is a key still, is renamed as well, or %s does not exist", old, p.successor(old))
		} else if typ := deref(all[i].typ); p.invert && typ != switchType && typ.Kind() != reflect.Bool {
			t.Errorf("%s: %s is not a boolean and cannot be inverted", old, all[i].path)
		}
	}
	f := func(s Sources, key, hint string) Config {
		t.Helper()
		c, _, err := Read(s)
		if err != nil {
			t.Fatal(err)
		}
		got := Deprecations(s)
		if len(got) != 1 || !strings.Contains(got[0].Text, key+": the key is deprecated") || got[0].Hint != "write "+hint {
			t.Errorf("%+v, want %s and %q", got, key, hint)
		}
		return c
	}
	if c := f(Sources{File: file(t, "tls:\n  disable_tickets: true\n")}, "weir.yaml:2: tls.disable_tickets", "tls.tickets: false"); c.TLS.Tickets.On() {
		t.Error("tickets are on")
	}
	if c := f(Sources{File: file(t, "tls: {disable_tickets: false}")}, "tls.disable_tickets", "tls.tickets: true"); !c.TLS.Tickets.On() {
		t.Error("tickets are off")
	}
	if c := f(Sources{File: file(t, "clusters: [{name: a}, {name: b, breaker: {disabled: true}}]")}, "clusters[1].breaker.disabled", "clusters[1].breaker.enabled: false"); c.Clusters[1].Breaker.Enabled.On() || !c.Clusters[0].Breaker.Enabled.On() {
		t.Error("the breaker of b is on, or that of a off")
	}
	if c := f(Sources{Env: []string{"WEIR_GOVERNOR_NO_CANARIES=true"}}, "WEIR_GOVERNOR_NO_CANARIES: governor.no_canaries", "governor.probes: false"); c.Governor.Probes.On() {
		t.Error("probes are on")
	}
	if c := f(Sources{Flags: []Override{{Flag: "--set", Key: "telemetry.no_traces", Value: "true"}}}, "--set: telemetry.no_traces", "telemetry.traces: false"); c.Telemetry.Traces.On() {
		t.Error("traces are on")
	}
	bad := func(text, want string) {
		t.Helper()
		if _, err := Load(Sources{File: file(t, text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	bad("tls: {disable_tickets: true, tickets: true}", "tls.tickets: written twice")
	bad("tls: {tickets: true, disable_tickets: true}", "tls.tickets: written twice")
	bad("tls: {disable_tickets: maybe}", "tls.tickets: want true or false")
	if got := Deprecations(Sources{File: file(t, "listen: 127.0.0.1:1\n")}); got != nil {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(configPage(), "| `tls.disable_tickets` | `tls.tickets`, which means the opposite |") {
		t.Error("the reference does not have it")
	}
}

func TestSwitchesAreTrueUnlessSetToFalse(t *testing.T) {
	f := func(text string, want bool) {
		t.Helper()
		c, origins, err := Read(Sources{File: file(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		if c.TLS.Tickets.On() != want {
			t.Errorf("%q: tickets %v, want %v", text, c.TLS.Tickets, want)
		}
		line := "\n  tickets: " + c.TLS.Tickets.String()
		if s := c.Effective(origins); !strings.Contains(s, line) {
			t.Errorf("%q: %q is not in the effective configuration", text, line)
		}
		back, _, err := Read(Sources{File: file(t, c.File())})
		if err != nil || back.TLS.Tickets != c.TLS.Tickets {
			t.Errorf("%q: written out and read back as %v, %v", text, back.TLS.Tickets, err)
		}
	}
	f("{}", true)
	f("tls: {}", true)
	f("tls: {tickets: }", true)
	f("tls: {tickets: true}", true)
	f("tls: {tickets: false}", false)
	c, _, err := Read(Sources{Env: []string{"WEIR_TLS_TICKETS=false"}})
	if err != nil || c.TLS.Tickets.On() {
		t.Errorf("WEIR_TLS_TICKETS=false: %v, %v", c.TLS.Tickets, err)
	}
	_, err = Load(Sources{File: file(t, "tls: {tickets: 0}")})
	if err == nil || !strings.Contains(err.Error(), "want true or false, have the number 0") {
		t.Errorf("0: %v", err)
	}
}

// file writes a configuration and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
