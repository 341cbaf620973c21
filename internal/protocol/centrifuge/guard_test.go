package centrifuge_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestTokensForChannelsDoNotConnect(t *testing.T) {
	n := start(t, settings{})
	of := token(t, map[string]any{"sub": "42", "channel": "$news"})
	c := n.dial("/connection/websocket")
	c.send(`{"id":1,"connect":{"token":"` + of + `"}}`)
	c.Closes(3500, "invalid token")
	c = n.connect(`{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`)
	c.send(`{"id":2,"refresh":{"token":"` + of + `"}}`)
	c.Closes(3500, "invalid token")
}

func TestWhatIsPublishedOnGuardedChannelsIsPrivateElsewhere(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"default": open}}})
	grants := map[string]any{"publish": []string{"$news"}}
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42", "weir": grants}) + `"}`)
	private := func(channel string) bool {
		t.Helper()
		m, err := n.Hub.Latest(t.Context(), channel)
		if err != nil {
			t.Fatal(err)
		}
		return m.Attributes != nil && m.Attributes.Private
	}
	f := func(channel string, want bool) {
		t.Helper()
		if n.wantAPI("publish", `{"channel":"`+channel+`","data":1}`, `{"result":"?"}`); private(channel) != want {
			t.Errorf("published on %s by the server API: want private %v", channel, want)
		}
		c.send(`{"id":2,"publish":{"channel":"` + channel + `","data":2}}`)
		if c.expect(`{"id":2,"publish":{}}`); private(channel) != want {
			t.Errorf("published on %s by a client: want private %v", channel, want)
		}
	}
	f("news", false)
	f("$news", true)
	f("news#42", true)
	other := n.connect(`{"token":"` + token(t, map[string]any{"sub": "7"}) + `"}`)
	for _, channel := range []string{"$news", "news#42"} { // what everyone may does not count there
		other.send(`{"id":2,"publish":{"channel":"` + channel + `","data":2}}`)
		other.expect(`{"id":2,"error":{"code":103,"message":"permission denied"}}`)
	}
	c.subscribe(`{"channel":"news#42"}`)
	n.wantAPI("publish", `{"channel":"news#42","data":3}`, `{"result":"?"}`)
	for !strings.Contains(c.next(), `"data":3`) { // what comes before it is the client's own coming
	}
}

func TestProxiedNamespacesAreNotOpenToUnidirectionalClients(t *testing.T) {
	b := startBackend(t)
	s := b.settings()
	s.cfg.AnonymousConnect, s.cfg.Proxies.Connect = true, centrifuge.Proxy{}
	requests := proxied
	requests.AllowSubscribeForClient, requests.AllowSubscribeForAnonymous = true, true
	s.cfg.Namespaces = map[string]centrifuge.Namespace{"default": requests}
	n := start(t, s)
	b.answer("/subscribe", `{"error":{"code":403,"message":"not for you"}}`)
	c := n.dial("/connection/uni_websocket")
	c.send(`{"subs":{"news":{}}}`)
	c.Closes(3507, "permission denied")
}

func TestClientsCannotForgeConfiguredHeaders(t *testing.T) {
	b := startBackend(t)
	s := b.settings()
	s.cfg.Proxies.Connect.HTTPHeaders = []string{"X-Static", "X-Tenant"}
	n := start(t, s)
	b.answer("/connect", `{"result":{"user":"42"}}`)
	c := n.dialWith("/connection/websocket", http.Header{"X-Static": {"mine"}})
	c.send(`{"id":1,"connect":{"headers":{"x-static":"mine"}}}`)
	c.expect(`{"id":1,"connect":"?"}`)
	if _, h := b.question("/connect"); h.Get("X-Static") != "s" {
		t.Errorf("X-Static: %q", h.Get("X-Static"))
	}
}

func TestWhatABackendHasPublishedIsCheckedForJSON(t *testing.T) {
	b := startBackend(t)
	n := start(t, b.settings())
	b.answer("/connect", `{"result":{"user":"42"}}`)
	c := n.connect("{}")
	b.answer("/publish", `{"result":{"b64data":"`+base64.StdEncoding.EncodeToString([]byte("}\n{\xff"))+`"}}`)
	c.send(`{"id":2,"publish":{"channel":"news","data":{}}}`)
	c.expect(`{"id":2,"publish":{}}`)
	m, err := n.Hub.Latest(t.Context(), "news")
	if err != nil || m.Attributes.Payload != hub.Binary {
		t.Errorf("%+v, %v: want it kept as bytes", m, err)
	}
}

// A command of sixty bytes is not to make an answer of the size of the whole log.
func TestAnswersAreBoundedInBytes(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{
		MaxQueue: 2500, AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": open},
	}})
	payload := `"` + strings.Repeat("x", 1000-2) + `"`
	at := n.publish("news", payload)
	for range 4 {
		n.publish("news", payload)
	}
	c := n.connect("{}")
	f := func(more string, want ...uint64) {
		t.Helper()
		c.send(`{"id":2,"history":{"channel":"news","limit":-1` + more + `}}`)
		var got struct {
			History struct {
				Publications []struct{ Offset uint64 }
				Offset       uint64
			}
		}
		if err := json.Unmarshal([]byte(c.next()), &got); err != nil || len(got.History.Publications) != len(want) || got.History.Offset != 5 {
			t.Fatalf("%s: %+v, %v; want %v", more, got, err, want)
		}
		for i, p := range got.History.Publications {
			if p.Offset != want[i] {
				t.Errorf("%s: %+v, want %v", more, got, want)
			}
		}
	}
	f("", 1, 2)
	f(`,"since":{"offset":2,"epoch":"`+at.Epoch+`"}`, 3, 4)
	f(`,"since":{"offset":4,"epoch":"`+at.Epoch+`"}`, 5)
	f(`,"reverse":true`, 5, 4)

	c.send(`{"id":3,"subscribe":{"channel":"news","recover":true,"epoch":"` + at.Epoch + `","offset":1}}`)
	c.expect(`{"id":3,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":5,"was_recovering":true}}`)
	c = n.connect("{}")
	c.send(`{"id":3,"subscribe":{"channel":"news","recover":true,"epoch":"` + at.Epoch + `","offset":3}}`)
	c.expect(`{"id":3,"subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":3,"recovered":true,"was_recovering":true,"publications":["?","?"]}}`)

	for _, ch := range []string{"more", "most"} {
		n.publish(ch, payload)
		n.publish(ch, payload)
	}
	c = n.dial("/connection/uni_websocket")
	from := `":{"recover":true,"epoch":"` + at.Epoch + `","offset":5}`
	c.send(`{"subs":{"more` + from + `,"most` + from + `}}`)
	var got struct {
		Connect struct {
			Subs map[string]struct {
				Recovered    bool
				Publications []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(c.next()), &got); err != nil || len(got.Connect.Subs) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if a, b := got.Connect.Subs["more"], got.Connect.Subs["most"]; a.Recovered == b.Recovered || len(a.Publications)+len(b.Publications) != 2 {
		t.Errorf("%+v: want one of them recovered", got)
	}
}

func TestBatchesAreBoundedBeforeTheyAreRead(t *testing.T) {
	n := start(t, settings{})
	one := `{"publish":{"channel":"news","data":1}}`
	var got struct{ Replies []json.RawMessage }
	_, text := n.api("batch", `{"commands":[`+one+strings.Repeat(","+one, 999)+`]}`)
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Replies) != 1000 {
		t.Errorf("%d replies, %v", len(got.Replies), err)
	}
	if status, text := n.api("batch", `{"commands":[{}`+strings.Repeat(",{}", 1_000_000)+`]}`); status != http.StatusBadRequest || !strings.Contains(text, "1000 commands") || len(text) > 1000 {
		t.Errorf("%d %.200s", status, text)
	}
	for _, body := range []string{`{"commands":{}}`, `{"commands":[1]}`, `{"commands":"x"}`} {
		if status, text := n.api("batch", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	for _, body := range []string{`{"commands":null}`, `{"commands":[]}`, `{}`} {
		if status, text := n.api("batch", body); status != http.StatusOK || text != "{}" {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
}
