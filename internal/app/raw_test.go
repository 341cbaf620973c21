package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

func (g *gateway) dial(t *testing.T) *wiretest.Conn {
	t.Helper()
	return wiretest.Dial(t, g.Addr().String())
}

// ws opens a WebSocket by hand.
func (g *gateway) ws(t *testing.T, query, fields string) *wiretest.Conn {
	t.Helper()
	w := g.dial(t)
	w.Upgrade("/ws?"+query, fields)
	return w
}

// wantError checks that an answer is an error as all of them are.
func wantError[B string | []byte](t *testing.T, what string, res *http.Response, body B, status int) {
	t.Helper()
	var e struct {
		Error struct {
			Code          int
			Message, Hint string
		}
	}
	if res.StatusCode != status {
		t.Errorf("%s: %d %s, want %d", what, res.StatusCode, body, status)
		return
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Code != status || e.Error.Message == "" {
		t.Errorf("%s: body %q, want an error of code %d with a message", what, body, status)
	}
	f := func(name, want string) {
		t.Helper()
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %s is %q, want %q", what, name, got, want)
		}
	}
	f("Content-Type", "application/json")
	f("X-Content-Type-Options", "nosniff")
	f("Cache-Control", "no-store")
	if res.Header.Get("Date") == "" {
		t.Errorf("%s: no Date", what)
	}
	if status == 503 && res.Header.Get("Retry-After") == "" {
		t.Errorf("%s: no Retry-After", what)
	}
	if status == 401 && !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("%s: no WWW-Authenticate", what)
	}
}

func postHead(fields string, length int) string {
	return wiretest.CRLF(fmt.Sprintf("POST /api/publish HTTP/1.1\nHost: a\n%sContent-Length: %d\n\n", fields, length))
}

const keyField = "X-API-Key: " + testKey + "\n"

// publishBody is a small call.
const publishBody = `{"channel":"news","data":{"n":1}}`

func hasResult[B string | []byte](body B) bool { return strings.Contains(string(body), `"offset":`) }

func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}
