package mercure_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hubPath   = "/.well-known/mercure"
	publicURL = "https://hub.example.com" + hubPath
	pubSecret = "secret-of-publishers-of-the-test-0123456789"
	subSecret = "secret-of-subscribers-of-the-test-987654321"
	appOrigin = "https://app.example.com"
)

// node is a server with the protocol on real sockets.
type node struct {
	*nodetest.Node
	server *mercure.Server
}

// settings of a node. The zero value is alone, with everything on.
type settings struct {
	cfg    mercure.Config
	space  hub.Namespace
	bus    hub.Bus
	broker hub.Broker // nil: in memory
	http2  bool
	strict bool // cfg as it is
	quiet  bool // without subscription events
}

// both runs f over both versions of HTTP.
func both(t *testing.T, f func(t *testing.T, s settings)) {
	t.Helper()
	t.Run("loops", func(t *testing.T) { f(t, settings{}) })
	t.Run("http2", func(t *testing.T) { f(t, settings{http2: true}) })
}

func (s *settings) complete() {
	s.cfg.Enabled = true
	s.space.Name = "mercure"
	if s.strict {
		return
	}
	s.cfg.PublicURL = publicURL
	s.cfg.Anonymous, s.cfg.Subscriptions = true, !s.quiet
	s.cfg.PublisherKeys, s.cfg.SubscriberKeys = "publishers", "subscribers"
	s.cfg.PublishOrigins = []string{appOrigin}
}

func start(t *testing.T, s settings) *node {
	t.Helper()
	s.complete()
	n := &node{Node: nodetest.New(t, nodetest.Config{
		Auth:       auth.Config{KeySet: auth.KeySet{HMACSecret: subSecret}, AllowedOrigins: []string{appOrigin}},
		Namespaces: []hub.Namespace{{Name: "default", Anonymous: true}, s.space},
		Broker:     s.broker, HTTP2: s.http2,
	})}
	n.Join(s.bus, 20*time.Millisecond)
	sets, err := auth.NewKeySets(auth.Config{}, map[string]auth.KeySet{
		"publishers":  {HMACSecret: pubSecret, RequireExpiry: setting.Off},
		"subscribers": {HMACSecret: subSecret, RequireExpiry: setting.Off},
	}, n.Log)
	n.Must(err)
	n.Run("key sets", sets.Run)
	n.server, err = mercure.New(s.cfg, mercure.Deps{Hub: n.Hub, Auth: n.Auth, KeySets: sets, Cluster: n.Cluster, Presence: n.Presence, Log: n.Log})
	n.Must(err)
	n.Run("mercure", n.server.Run)
	n.Serve(n.server.Endpoints())
	return n
}

func sign(t *testing.T, secret, typ string, claims map[string]any) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims))
	tok.Header["typ"] = typ
	s, err := tok.SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// token07 is what deployed publishers and subscribers present.
func token07(t *testing.T, secret, right string, topics ...string) string {
	t.Helper()
	return sign(t, secret, "JWT", map[string]any{"mercure": map[string]any{right: topics, "payload": map[string]any{"user": 1}}})
}

// token08 is an access token of draft 08; topics that start with ":" are URL patterns.
func token08(t *testing.T, secret, action string, topics ...string) string {
	t.Helper()
	var list []map[string]any
	for _, s := range topics {
		m := map[string]any{"match": s}
		if p, ok := strings.CutPrefix(s, "pattern "); ok {
			m = map[string]any{"match": p, "match_type": "urlpattern"}
		}
		list = append(list, m)
	}
	return sign(t, secret, "at+jwt", claims08(action, list))
}

func claims08(action string, topics any) map[string]any {
	return map[string]any{
		"iss": "me", "aud": publicURL, "exp": time.Now().Add(time.Hour).Unix(),
		"authorization_details": []any{map[string]any{
			"type": protocol.DetailType, "actions": []string{action}, "topics": topics, "payload": map[string]any{"user": 8},
		}},
	}
}

// form reports that a body is one; header may say otherwise.
func form(body string, header []string) []string {
	if body == "" {
		return header
	}
	return append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)
}

// request sends one and returns the answer, the body read.
func (n *node) request(method, target, body string, header ...string) (status int, head http.Header, text string) {
	n.T.Helper()
	return n.Request(method, target, body, form(body, header)...)
}

// publish publishes with a token that allows all and returns the id.
func (n *node) publish(form string) string {
	n.T.Helper()
	status, _, text := n.request("POST", hubPath, form, "Authorization", "Bearer "+token07(n.T, pubSecret, "publish", "*"))
	if status != http.StatusOK {
		n.T.Fatalf("publish %q: %d %s", form, status, text)
	}
	return text
}

// A stream is a connected subscriber.
type stream struct {
	*nodetest.Feed[event]
	head http.Header
}

type event struct{ id, kind, data string }

func (e event) String() string { return e.id + "|" + e.kind + "|" + e.data }

// subscribe opens a stream and fails if it cannot be had.
func (n *node) subscribe(query string, header ...string) *stream {
	n.T.Helper()
	return n.stream("GET", hubPath+"?"+query, "", header...)
}

func (n *node) stream(method, target, body string, header ...string) *stream {
	n.T.Helper()
	feed, head := nodetest.Stream(n.Node, events, method, target, body, form(body, header)...)
	expect(n.T, "content type", head.Get("Content-Type"), "text/event-stream")
	return &stream{feed, head}
}

// events reads those with data.
func events(body io.Reader, put func(event)) error {
	in := sse.NewReader(body)
	for {
		ev, err := in.Next()
		if err != nil {
			return err
		}
		if ev.HasData {
			put(event{string(ev.ID), string(ev.Type), string(ev.Data)})
		}
	}
}

// data are the data of the next n events.
func (s *stream) data(n int) (out []string) {
	for range n {
		out = append(out, s.Next().data)
	}
	return out
}

// expect compares.
func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func q(s string) string { return url.QueryEscape(s) }
