package push

import (
	"strings"
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

func TestNamespacesOfCallsAreFoundWithoutParsing(t *testing.T) {
	f := func(body, want string, ok bool) {
		t.Helper()
		if ns, found := namespaceIn([]byte(body)); string(ns) != want || found != ok {
			t.Errorf("%.60s: %q, %v, want %q, %v", body, ns, found, want, ok)
		}
	}
	f(`{"channel":"orders:a","data":1}`, "orders", true)
	f(` { "channel" : "a" , "data":1}`, "default", true)
	f("\t{\r\n\"channel\":\"a:b:c\"", "a", true)
	f(`{"channel":":a"`, "", true)
	f(`{"channel":"","data":1}`, "", false)
	f(`{"data":1,"channel":"orders:a"}`, "", false)
	f(`{"channel":"\u0061:b"}`, "", false)
	f(`{"channels":["orders:a"]}`, "", false)
	f(`{"channel":7}`, "", false)
	f(`{"channel":"orders:a`, "", false)
	f(`["channel"`, "", false)
	f("", "", false)
	f(`{"channel":"`+strings.Repeat("x", hub.MaxChannelName+1)+`"}`, "", false)
}

// FuzzNamespaceIn finds in a call that is understood what the parser finds, or nothing.
func FuzzNamespaceIn(f *testing.F) {
	for _, s := range []string{`{"channel":"orders:a","data":1}`, `{"channel":"a"}`, `{"channel":"a:","data":{}}`, ` {"channel" :"é:b","data":[]}`, `{"channel":"a\nb","data":1}`} {
		f.Add([]byte(s))
	}
	b, err := memory.New(memory.Config{})
	if err != nil {
		f.Fatal(err)
	}
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "default"}, {Name: "orders"}, {Name: "a"}}}, b)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		ns, ok := namespaceIn(body)
		call, bad := wire.ParsePublish(h, body)
		if !ok || bad != nil || strings.Count(string(body), `channel`) > 1 {
			return // of two channels the parser takes another
		}
		if want := hub.NamespaceOf(call.Channels[0]); want != string(ns) {
			t.Errorf("%q is in %q, not %q", call.Channels[0], want, ns)
		}
	})
}
