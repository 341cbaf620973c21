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
	f(Sources{File: file(t, "tls: {disable_tickets: true}")}, "tls.tickets: false")
	f(Sources{File: file(t, "clusters: [{name: a, breaker: {disabled: true}}]")}, "enabled: false")
	f(Sources{Env: []string{"WEIR_GOVERNOR_NO_CANARIES=true"}}, "governor.probes: false")
	f(Sources{Flags: []Override{{Flag: "--set", Key: "telemetry.no_traces", Value: "true"}}}, "telemetry.traces: false")
	if _, err := Reference("auth.disable_query_token"); !strings.Contains(HintOf(err), "auth.query_token") {
		t.Errorf("docs: %v, hint %q", err, HintOf(err))
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
