package app

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// speaking is a gateway that speaks all protocols, in front of a backend.
func speaking(t *testing.T) *gateway {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "a book")
	}))
	t.Cleanup(backend.Close)
	return start(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure", Anonymous: true}, hub.Namespace{Name: "shop"})
		c.Mercure.Enabled, c.Mercure.Anonymous = true, true
		c.Centrifuge.Enabled, c.Centrifuge.Insecure = true, true
		c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop"}}
		c.Clusters = []upstream.Config{{Name: "books", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(backend.URL, "http://")}}}}
		c.Routes = []policy.RouteConfig{{Path: "/books/*", Cluster: "books", Mercure: true}, {Path: "/missing", Cluster: "books", Mercure: true}, {Path: "/plain", Cluster: "books"}}
	})
}

// TestARouteAnnouncesWhereItsUpdatesAre subscribes from where an answer says: nothing
// that was published since the request is missed.
func TestARouteAnnouncesWhereItsUpdatesAre(t *testing.T) {
	g := speaking(t)
	link := func(path string) string {
		res, err := http.Get(g.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.Header.Get("Link")
	}
	for _, path := range []string{"/plain", "/missing"} {
		if l := link(path); l != "" {
			t.Errorf("%s: Link: %s", path, l)
		}
	}
	g.publish(t, "mercure:https://example.com/books/1", `"before"`)
	deadline := time.Now().Add(10 * time.Second)
	var last string
	for { // the cursor follows the log shortly after
		m := regexp.MustCompile(`^</.well-known/mercure>; rel="mercure"; last-event-id="([^"]+-1\.)"$`).FindStringSubmatch(link("/books/1"))
		if m != nil {
			last = m[1]
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Link: %s", link("/books/1"))
		}
	}
	g.publish(t, "mercure:https://example.com/books/1", `"after"`)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+"/.well-known/mercure?topic=https://example.com/books/1", nil)
	req.Header.Set("Last-Event-Id", last)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		if data, ok := strings.CutPrefix(in.Text(), "data: "); ok {
			if data != `"after"` {
				t.Errorf("got %s", data)
			}
			return
		}
	}
	t.Error("nothing came: ", in.Err())
}

// TestEveryProtocolIsServedOnBothFronts requests of each what it answers at once.
func TestEveryProtocolIsServedOnBothFronts(t *testing.T) {
	g := speaking(t)
	h2 := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	h2.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	for name, client := range map[string]*http.Client{"loops": http.DefaultClient, "net/http": h2} {
		f := func(path string, status int) {
			t.Helper()
			res, err := client.Get(g.url + path)
			if err != nil {
				t.Errorf("%s: %s: %v", name, path, err)
				return
			}
			defer res.Body.Close()
			if res.StatusCode != status {
				b, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
				t.Errorf("%s: %s: %d %s, want %d", name, path, res.StatusCode, b, status)
			}
		}
		f("/.well-known/mercure?topic=a", 200)
		f("/.well-known/mercure", 400)
		f("/connection/uni_sse?cf_connect=%7B%7D", 200)
		f("/apps/1/channels", 401)
		f("/app/app-key", 426)
	}
}
