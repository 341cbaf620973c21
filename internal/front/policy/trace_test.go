package policy

import (
	"strings"
	"testing"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceparentIsReadAsTheStandardSays(t *testing.T) {
	f := func(in string, want bool) {
		t.Helper()
		if _, ok := ParseTraceparent([]byte(in)); ok != want {
			t.Errorf("%q: %v", in, ok)
		}
	}
	f(parent, true)
	f(parent[:53]+"ff", true)
	f("cc"+parent[2:], true)
	f("cc"+parent[2:]+"-what-comes-later", true)
	f("cc"+parent[2:]+".", false)
	f(parent+"-x", false)
	f(parent+"-", false)
	f("ff"+parent[2:], false)
	f(strings.ToUpper(parent), false)
	f("00-00000000000000000000000000000000-b7ad6b7169203331-01", false)
	f("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false)
	f("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", false)
	f("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g", false)
	f("00.0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false)
	f("", false)
}

func TestATraceIsContinuedOrStarted(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c"}`, `{"path": "/quiet", "cluster": "c", "trace_sample": -1}`)
	f := func(request string) (traceparent, state string) {
		t.Helper()
		_, fields := forwarded(t, s, exchange(t, request), Framing{Length: none})
		for _, l := range fields {
			name, value, _ := strings.Cut(l, ": ")
			switch name {
			case "traceparent":
				if traceparent != "" {
					t.Errorf("%q: two traceparents", request)
				}
				traceparent = value
			case "tracestate":
				state += value + ";"
			}
		}
		if _, ok := ParseTraceparent([]byte(traceparent)); !ok {
			t.Errorf("%q: %q goes out", request, traceparent)
		}
		return traceparent, state
	}
	got, state := f("GET /\ntraceparent: " + parent + "\ntracestate: a=b\nTracestate: c=d")
	if got[:36] != parent[:36] || got[36:52] == parent[36:52] || got[52:] != "-01" || state != "a=b;c=d;" {
		t.Errorf("continued as %s, %s", got, state)
	}
	got, state = f("GET /\ntraceparent: " + parent + "\ntraceparent: " + parent + "\ntracestate: a=b")
	if got[:36] == parent[:36] || state != "" {
		t.Errorf("two traceparents are continued as %s, %s", got, state)
	}
	a, state := f("GET /\ntraceparent: nonsense\ntracestate: a=b")
	b, _ := f("GET /")
	if a[:36] == b[:36] || state != "" || a[52:] != "-03" {
		t.Errorf("started as %s and %s, %s", a, b, state)
	}
	if got, _ = f("GET /quiet"); got[52:] != "-02" {
		t.Errorf("a trace that is not sampled starts as %s", got)
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add(parent)
	f.Add("cc" + parent[2:] + "-x")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0")
	f.Fuzz(func(t *testing.T, in string) {
		tr, ok := ParseTraceparent([]byte(in))
		if !ok {
			if tr != (Trace{}) && len(in) < 55 {
				t.Fatalf("%q is refused and read as %+v", in, tr)
			}
			return
		}
		if !strings.Contains(in, string(tr.AppendTraceparent(nil)[3:36])) {
			t.Fatalf("%q: id %x", in, tr.ID)
		}
		tr.Span = tr.Parent
		again, ok := ParseTraceparent(tr.AppendTraceparent(nil))
		if again.Span = again.Parent; !ok || again != tr {
			t.Fatalf("%q: %+v, %+v", in, tr, again)
		}
	})
}
