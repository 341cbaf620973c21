package downstream

import (
	"slices"
	"testing"

	"github.com/weir-gateway/weir/internal/front/http1"
)

func TestSplitListMindsQuotesAndEscapes(t *testing.T) {
	f := func(s string, want ...string) {
		t.Helper()
		if got := splitList(s, ';'); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	f("", "")
	f("a; b ;c", "a", "b", "c")
	f(`a;"b;c";d`, "a", `"b;c"`, "d")
	f(`a\;b;c`, `a\;b`, "c")
	f(`a\`, `a\`)
	f(`"a;b`, `"a;b`)
}

func FuzzParseHold(f *testing.F) {
	f.Add("stream", "a, b; prev-id=e-1", `\n; format=cstring; timeout=5`, "200 OK", "text/event-stream")
	f.Add("response", ",", ";;;", "", "")
	f.Add("stream", `"a"`, "x; format=base64", "999", "text/html")
	f.Fuzz(func(t *testing.T, mode, channel, alive, status, kind string) {
		res := &http1.Response{Status: 200}
		for _, kv := range [...][2]string{{"Grip-Hold", mode}, {"weir-channel", channel}, {"Grip-Keep-Alive", alive}, {"Grip-Status", status}, {"Content-Type", kind}} {
			if kv[1] != "" {
				res.Fields = append(res.Fields, http1.Field{Name: []byte(kv[0]), Value: []byte(kv[1])})
			}
		}
		h, err := parseHold(res)
		if err != nil {
			return
		}
		if len(h.channels) == 0 || slices.Contains(h.channels, "") || h.answered < 200 || h.answered > 599 || len(h.alive.Text) > maxKeepAlive || h.alive.Every < 0 {
			t.Errorf("%+v", h)
		}
		for i, c := range h.channels {
			if slices.Contains(h.channels[:i], c) {
				t.Errorf("channel %q twice", c)
			}
		}
	})
}
