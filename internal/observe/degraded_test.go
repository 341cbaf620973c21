package observe

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin"
)

func TestDegradedModesComeAndGo(t *testing.T) {
	var text bytes.Buffer
	d := &degraded{Node: &Node{Log: slog.New(slog.NewTextHandler(&text, nil))}, active: map[string]admin.Degradation{}}
	at := time.Unix(1_800_000_000, 0)
	f := func(after time.Duration, reasons map[string]string, want string) {
		t.Helper()
		d.look(at.Add(after), reasons)
		var got []string
		for _, m := range d.list() {
			got = append(got, m.Mode+"/"+m.Reason+"/"+m.Since.Sub(at).String()+"/"+m.Alert)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("after %v: %q, want %q", after, s, want)
		}
	}
	f(0, nil, "")
	f(time.Second, map[string]string{modeMemory: "m"}, "memory/m/1s/WeirMemoryHard")
	f(2*time.Second, map[string]string{modeMemory: "n", modeBroker: "b"}, "broker-away/b/2s/WeirBrokerAway memory/n/1s/WeirMemoryHard")
	f(3*time.Second, map[string]string{modeBroker: "b"}, "broker-away/b/2s/WeirBrokerAway")
	f(4*time.Second, nil, "")
	if n := strings.Count(text.String(), "degraded mode"); n != 4 {
		t.Errorf("%d lines, want one for each mode that came or went:\n%s", n, &text)
	}
}

func TestTheLoadOfANodeHasRates(t *testing.T) {
	var l load
	at := time.Unix(1_800_000_000, 0)
	f := func(after time.Duration, published uint64, want float64) {
		t.Helper()
		if got, out := l.rates(at.Add(after), published, 10*published); got != want || out != 10*want {
			t.Errorf("after %v: %v and %v, want %v", after, got, out, want)
		}
	}
	f(0, 1000, 0)
	f(100*time.Millisecond, 1100, 0) // too soon
	f(2*time.Second, 1400, 200)
	f(2100*time.Millisecond, 9000, 200)
	f(4*time.Second, 1400, 0)
}
