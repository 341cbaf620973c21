package policy

import (
	"strings"
	"testing"
)

// A page finds the Mercure hub by a Link field only if it may read it.
func TestALinkToTheHubIsExposed(t *testing.T) {
	d := deps(t)
	d.Link = func() string { return `</.well-known/mercure>; rel="mercure"` }
	s := set(t, d, `{"path": "/a", "cluster": "c", "mercure": true, "cors": {"allowed_origins": ["https://app.example"], "expose_headers": ["X-B"]}}`,
		`{"path": "/b", "cluster": "c", "mercure": true, "cors": {"allowed_origins": ["https://app.example"]}}`,
		`{"path": "/c", "cluster": "c", "cors": {"allowed_origins": ["https://app.example"]}}`)
	f := func(path, want string) {
		t.Helper()
		x := exchange(t, "GET "+path+"\nOrigin: https://app.example")
		if v := admit(s, x, 0); v.Action != Forward {
			t.Fatalf("%s: %+v", path, v)
		}
		got := string(x.Route.AppendResponseHead(nil, x, 200, nil, Framing{Length: none}))
		_, field, _ := strings.Cut(got, "Access-Control-Expose-Headers: ")
		field, _, _ = strings.Cut(field, "\r\n")
		if field != want {
			t.Errorf("%s exposes %q, want %q, in %q", path, field, want, got)
		}
	}
	f("/a", "X-B, Link")
	f("/b", "Link")
	f("/c", "")
}
