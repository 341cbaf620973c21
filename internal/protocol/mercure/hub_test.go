package mercure_test

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestWhatIsPublishedArrives(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		exact := n.subscribe("topic=" + q("https://example.com/books/1"))
		template := n.subscribe("topic=" + q("https://example.com/books/{id}"))
		all := n.subscribe("topic=*")
		pattern := n.subscribe("match_urlpattern=" + q("https://example.com/books/:id"))
		match := n.subscribe("match=" + q("https://example.com/books/1"))
		id := n.publish("topic=" + q("https://example.com/books/1") + "&data=" + q("a\nb\rc\r\nd") + "&type=change&retry=7&id=urn:my:1")
		expect(t, "id", id, "urn:my:1")
		for _, st := range []*stream{exact, template, all, pattern, match} {
			expect(t, "event", st.Next(), event{"urn:my:1", "change", "a\nb\nc\nd"})
		}
		other := n.publish("topic=" + q("https://example.com/authors/1") + "&data=x")
		expect(t, "of others", all.Next(), event{other, "", "x"})
		again := n.publish("topic=" + q("https://example.com/books/1") + "&data=y")
		for _, st := range []*stream{exact, template, all, pattern, match} {
			expect(t, "only what was asked for", st.Next(), event{again, "", "y"})
		}
		h := exact.head
		expect(t, "buffering", h.Get("X-Accel-Buffering"), "no")
		if !strings.Contains(h.Get("Cache-Control"), "no-") || h.Get("Last-Event-ID") != "" {
			t.Errorf("head %v", h)
		}
	})
}

// An update on several topics comes once to anyone who means any of them.
func TestAlternatesArriveOnce(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		subs := []*stream{
			n.subscribe("topic=a"), n.subscribe("topic=b"), n.subscribe("topic=c&topic=a&topic=b"), n.subscribe("topic=*"),
			n.subscribe("topic=b&topic=x{y}"), n.subscribe("match=c&match=b"),
			n.subscribe("topic=c&topic=b", "Authorization", "Bearer "+token07(t, subSecret, "subscribe", "b")),
		}
		id := n.publish("topic=a&topic=b&topic=c&topic=a&data=1")
		n.publish("topic=a&data=end")
		n.publish("topic=b&data=end")
		for i, st := range subs {
			expect(t, fmt.Sprint("subscriber ", i), st.Next(), event{id, "", "1"})
			expect(t, fmt.Sprint("subscriber ", i), st.Next().data, "end")
		}
	})
}

func TestPrivateUpdatesNeedAGrant(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		grant := func(topics ...string) []string {
			return []string{"Authorization", "Bearer " + token07(t, subSecret, "subscribe", topics...)}
		}
		f := func(want string, query string, header ...string) func() {
			st := n.subscribe(query, header...)
			return func() {
				t.Helper()
				var got []string
				for {
					d := st.Next().data
					if d == "end" {
						break
					}
					got = append(got, d)
				}
				expect(t, query, strings.Join(got, " "), want)
			}
		}
		checks := []func(){
			f("pub", "topic=/a"),
			f("pub alt", "topic=*"),
			f("pub", "match=/a"),
			f("priv pub", "topic=/a", grant("/a")...),
			f("priv pub alt", "topic=*", grant("/a")...),
			f("priv pub", "topic=/a", grant("*")...),
			f("priv pub", "topic=/a", grant("/{x}")...),
			f("pub", "topic=/a", grant("/b")...),
			f("pub", "topic=/a", grant()...),
			f("pub alt", "topic=/a&topic=/b"),
			f("priv pub alt", "topic=/a&topic=/c", grant("/b", "/a")...), // /b is an alternate: granted by either
			f("priv pub", "match=/a", "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "/a")),
			f("priv pub", "match_urlpattern=/a", "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "pattern /:x")),
			f("pub", "match=/a", "Authorization", "Bearer "+token08(t, subSecret, "publish", "/a")),
		}
		n.publish("topic=/a&private=on&data=priv")
		n.publish("topic=/a&data=pub")
		n.publish("topic=/b&data=alt")
		n.publish("topic=/c&private&topic=/b&data=alt")
		n.publish("topic=/a&data=end")
		for _, check := range checks {
			check()
		}
	})
}

func TestSubscribingWithoutATokenRequiresAnonymous(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		s.strict = true
		s.cfg.PublicURL, s.cfg.PublisherKeys, s.cfg.SubscriberKeys = publicURL, "publishers", "subscribers"
		n := start(t, s)
		f := func(query string, status int, challenge string, header ...string) {
			t.Helper()
			got, h, text := n.request("GET", hubPath+"?"+query, "", header...)
			if got != status || h.Get("WWW-Authenticate") != challenge {
				t.Errorf("%s: %d %q %s, want %d %q", query, got, h.Get("WWW-Authenticate"), text, status, challenge)
			}
		}
		const meta = `resource_metadata="https://hub.example.com/.well-known/oauth-protected-resource/.well-known/mercure"`
		f("topic=a", 401, "Bearer "+meta)
		f("match=a", 401, "Bearer "+meta)
		f("", 401, "Bearer "+meta)
		f("topic=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer x.y.z")
		f("topic=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Basic abc")
		f("topic=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer "+token07(t, pubSecret, "subscribe", "*")) // of another role
		f("match=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer x.y.z")
		expired := claims08("subscribe", []any{map[string]any{"match": "*"}})
		expired["exp"] = time.Now().Add(-time.Hour).Unix()
		f("match=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer "+sign(t, subSecret, "at+jwt", expired))
		for _, break1 := range []func(map[string]any){
			func(c map[string]any) { delete(c, "exp") },
			func(c map[string]any) { c["aud"] = "https://other.example" },
			func(c map[string]any) { delete(c, "aud") },
			func(c map[string]any) {
				c["authorization_details"] = []any{map[string]any{"type": "https://mercure.rocks/authorization-detail"}}
			},
		} {
			c := claims08("subscribe", []any{map[string]any{"match": "*"}})
			break1(c)
			f("match=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer "+sign(t, subSecret, "at+jwt", c))
		}
		good := token07(t, subSecret, "subscribe", "a")
		n.subscribe("topic=a", "Authorization", "Bearer "+good)
		n.subscribe("topic=a&authorization=" + good)
		n.subscribe("topic=a", "Cookie", "x=y; mercureAuthorization="+good)
		n.subscribe("match=a", "Cookie", "__Secure-mercure_access_token="+token08(t, subSecret, "subscribe", "a"))
		c := claims08("subscribe", []any{map[string]any{"match": "*"}})
		c["aud"] = []string{"x", publicURL}
		n.subscribe("match=a", "Authorization", "Bearer "+sign(t, subSecret, "at+jwt", c))
		f("topic=a", 401, `Bearer error="invalid_token", `+meta, "Authorization", "Bearer x", "Cookie", "mercureAuthorization="+good) // the header wins
		f("match=a&authorization="+good, 401, "Bearer "+meta)                                                                         // draft 08 has no such parameter
		// Cookies count for pages that are trusted only.
		n.subscribe("topic=a", "Cookie", "mercureAuthorization="+good, "Origin", appOrigin)
		f("topic=a", 403, "", "Cookie", "mercureAuthorization="+good, "Origin", "https://evil.example")
	})
}

func TestPublishersNeedEveryTopic(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		f := func(token, form string, status int, challenge string, header ...string) {
			t.Helper()
			if token != "" {
				header = append(header, "Authorization", "Bearer "+token)
			}
			got, h, text := n.request("POST", hubPath, form, header...)
			if got != status || !strings.HasPrefix(h.Get("WWW-Authenticate"), challenge) || (challenge == "" && h.Get("WWW-Authenticate") != "") {
				t.Errorf("%s: %d %q %s, want %d %q", form, got, h.Get("WWW-Authenticate"), text, status, challenge)
			}
		}
		t7 := func(topics ...string) string { return token07(t, pubSecret, "publish", topics...) }
		t8 := func(topics ...string) string { return token08(t, pubSecret, "publish", topics...) }
		f("", "topic=a", 401, "Bearer resource_metadata=")
		f("x", "topic=a", 401, `Bearer error="invalid_token"`)
		f(t7("a"), "topic=a", 200, "")
		f(t7("*"), "topic=a&topic=b", 200, "")
		f(t7("a"), "topic=a&topic=b", 401, "")
		f(t7(), "topic=a", 401, "")
		f(token07(t, pubSecret, "subscribe", "*"), "topic=a", 401, "")
		f(token07(t, subSecret, "publish", "*"), "topic=a", 401, `Bearer error="invalid_token"`)
		f(t7("/x/{y}"), "topic=/x/1", 200, "")
		f(t8("a"), "topic=a", 200, "")
		f(t8("a"), "topic=a&topic=b", 403, `Bearer error="insufficient_scope"`)
		f(t8("*"), "topic=*", 400, `Bearer error="invalid_request"`)
		f(t8("*"), "topic=a&type=mercure", 400, `Bearer error="invalid_request"`)
		f(t8("*"), "topic=/.well-known/mercure/x", 400, `Bearer error="invalid_request"`)
		f(t8("*"), "topic=a&id="+strings.Repeat("x", 300), 413, "")
		f(t7("*"), "topic=/.well-known/mercure/x", 403, "")
		f(t7("*"), "data=x", 400, "")
		f(t7("*"), "topic=a&id=x%0Adata: y", 400, "")
		f(t7("*"), "topic=a&type=x%0Ddata: y", 400, "")
		f(t7("*"), "topic=a&retry=soon", 400, "")
		f(t7("*"), "topic=a", 400, "", "Content-Type", "application/json")
		f(t8("*"), "topic=a", 415, "", "Content-Type", "application/json")
		f(t7("*"), "topic=a&data="+strings.Repeat("x", 100_000), 413, "") // the namespace's bound
		// A cookie publishes for pages on the list only.
		cookie := "mercureAuthorization=" + t7("*")
		f("", "topic=a", 401, "", "Cookie", cookie)
		f("", "topic=a", 200, "", "Cookie", cookie, "Origin", appOrigin)
		f("", "topic=a", 200, "", "Cookie", cookie, "Referer", appOrigin+"/page?x")
		f("", "topic=a", 401, "", "Cookie", cookie, "Referer", "https://evil.example/"+appOrigin)
		f("", "topic=a", 403, "", "Cookie", cookie, "Origin", "https://evil.example")
		f("", "topic=a", 403, `Bearer error="insufficient_scope"`, "Cookie", "__Secure-mercure_access_token="+t8("*"))
		_, h, _ := n.request("POST", hubPath, "topic=a&data=x", "Authorization", "Bearer "+t7("*"))
		expect(t, "content type", h.Get("Content-Type"), "text/plain; charset=utf-8")
	})
}

func TestMalformedSubscriptionsAreRefused(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		f := func(query string, status int, text string) {
			t.Helper()
			got, _, body := n.request("GET", hubPath+"?"+query, "")
			if got != status || !strings.HasPrefix(body, text) {
				t.Errorf("%s: %d %s", query, got, body)
			}
		}
		f("", 400, `Missing "topic" parameter.`)
		f("foo=bar", 400, `Missing "topic" parameter.`)
		f("matchURLPattern=a", 400, "Unknown matcher type")
		f("match_urlpattern=%28", 400, "")
		f("match=a&topic=a", 400, `"topic" and "match"`)
		f("topic=%zz", 400, "")
		f(strings.Repeat("match=a&", 101), 400, "More than 100")
		status, h, _ := n.request("DELETE", hubPath, "")
		expect(t, "status", status, 405)
		if !strings.Contains(h.Get("Allow"), "QUERY") {
			t.Errorf("Allow is %q", h.Get("Allow"))
		}
		status, _, _ = n.request("GET", hubPath+"/nothing", "")
		expect(t, "status", status, 404)
	})
}

func TestHeadAndQuery(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		status, h, _ := n.request("HEAD", hubPath+"?topic=a", "")
		expect(t, "HEAD", fmt.Sprint(status, " ", h.Get("Content-Type")), "200 text/event-stream")
		status, _, _ = n.request("HEAD", hubPath, "")
		expect(t, "HEAD of nothing", status, 400)
		st := n.stream("QUERY", hubPath+"?match=a", "match=b&last_event_id=earliest")
		expect(t, "resumes", st.head.Get("Mercure-Last-Event-ID"), "earliest")
		n.publish("topic=a&data=1")
		n.publish("topic=b&data=2")
		expect(t, "QUERY", st.data(2), []string{"1", "2"})
		status, _, _ = n.request("QUERY", hubPath, "topic=a")
		expect(t, "QUERY of draft 07", status, 400)
		status, _, _ = n.request("QUERY", hubPath, "match=a", "Content-Type", "application/json")
		expect(t, "QUERY of something else", status, 415)
	})
}

func TestOneDraftAlone(t *testing.T) {
	n07 := start(t, settings{cfg: mercure.Config{Draft: "07"}})
	status, _, _ := n07.request("GET", hubPath+"?match=a", "")
	expect(t, "match at 07", status, 400)
	status, _, _ = n07.request("QUERY", hubPath, "match=a")
	expect(t, "QUERY at 07", status, 405)
	n07.subscribe("topic=a")
	n08 := start(t, settings{cfg: mercure.Config{Draft: "08"}})
	status, _, _ = n08.request("GET", hubPath+"?topic=a", "")
	expect(t, "topic at 08", status, 400)
	n08.subscribe("match=a")
	status, h, _ := n08.request("POST", hubPath, "topic=a", "Authorization", "Bearer "+token07(t, pubSecret, "publish", "*"))
	expect(t, "a token of 07 at 08", fmt.Sprint(status, strings.HasPrefix(h.Get("WWW-Authenticate"), `Bearer error="invalid_token"`)), "401 true")
}

func TestPagesOfOtherOriginsNeedToBeListed(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		st := n.subscribe("topic=a&lastEventID=x", "Origin", appOrigin)
		h := st.head
		expect(t, "origin", h.Get("Access-Control-Allow-Origin"), appOrigin)
		expect(t, "credentials", h.Get("Access-Control-Allow-Credentials"), "true")
		exposed := strings.Split(strings.Join(h.Values("Access-Control-Expose-Headers"), ", "), ", ")
		for _, name := range []string{"Last-Event-ID", "Mercure-Last-Event-ID", "Link", "Retry-After", "ETag", "WWW-Authenticate"} {
			if !slices.Contains(exposed, name) {
				t.Errorf("%s is not exposed: %q", name, exposed)
			}
		}
		status, h, _ := n.request("OPTIONS", hubPath, "", "Origin", appOrigin, "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization, cache-control, last-event-id")
		for _, name := range []string{"authorization", "cache-control", "last-event-id"} {
			if status/100 != 2 || !strings.Contains(strings.ToLower(h.Get("Access-Control-Allow-Headers")), name) {
				t.Errorf("preflight: %d %v", status, h)
			}
		}
		status, _, _ = n.request("GET", hubPath+"?topic=a", "", "Origin", "https://evil.example")
		expect(t, "others", status, 403)
	})
}

func TestMetadata(t *testing.T) {
	n := start(t, settings{cfg: mercure.Config{Issuers: []mercure.Issuer{{Issuer: "https://as.example", Keys: "subscribers"}}}})
	status, h, text := n.request("GET", "/.well-known/oauth-protected-resource"+hubPath, "")
	expect(t, "status", fmt.Sprint(status, " ", h.Get("Content-Type")), "200 application/json")
	expect(t, "metadata", text, `{"resource":"`+publicURL+`","authorization_servers":["https://as.example"],"authorization_details_types_supported":["https://mercure.rocks/authorization-detail"],"bearer_methods_supported":["header"],"mercure_cookie":"__Secure-mercure_access_token","mercure_matcher_types_supported":["exact","urlpattern"],"mercure_subscriptions":true}`)
	// The keys of an issuer are for its tokens, and no others.
	c := claims08("subscribe", []any{map[string]any{"match": "*"}})
	f := func(iss string, status int) {
		t.Helper()
		c["iss"] = iss
		got, _, _ := n.request("HEAD", hubPath+"?match=a", "", "Authorization", "Bearer "+sign(t, subSecret, "at+jwt", c))
		expect(t, iss, got, status)
	}
	f("https://as.example", 200)
	f("https://other.example", 401)
}

func TestStreamsEndWithTheirTime(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s settings) {
		s.cfg.ConnectionLife = hub.Duration(time.Second)
		n := start(t, s)
		began := time.Now()
		st := n.subscribe("topic=a")
		_, _ = st.Rest()
		if d := time.Since(began); d < 700*time.Millisecond {
			t.Errorf("ended after %v", d)
		}
	})
}

// A token is let in with some leeway, but a stream does not live on that.
func TestStreamsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		ends := time.Now().Add(2 * time.Second).Truncate(time.Second)
		claims := map[string]any{"exp": ends.Unix(), "mercure": map[string]any{"subscribe": []string{"*"}}}
		st := n.subscribe("topic=a", "Authorization", "Bearer "+sign(t, subSecret, "JWT", claims))
		n.publish("topic=a&data=x&private")
		expect(t, "before", st.Next().data, "x")
		_, _ = st.Rest()
		if now := time.Now(); now.Before(ends) {
			t.Errorf("ended %v before its token", ends.Sub(now))
		}
	})
}

func TestSilenceIsBrokenByComments(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, s settings) {
		s.quiet, s.cfg.Heartbeat = true, hub.Duration(time.Second)
		n := start(t, s)
		resp, err := n.Client.Get("http://" + n.Addr + hubPath + "?topic=a")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for range 3 { // one at once, others in silence
			for lines.Scan() && lines.Text() == "" {
			}
			expect(t, "line", lines.Text(), ":")
		}
	})
}

// One channel, all protocols: what comes by another way arrives here, and what is
// published here has a place in the log.
func TestUpdatesAreMessagesOfTheHub(t *testing.T) {
	n := start(t, settings{})
	st := n.subscribe("topic=" + q("https://example.com/é 1"))
	answered := make(chan hub.Position, 1)
	n.Hub.Publish(hub.Publication{Channel: "mercure:https://example.com/é%201", Data: []byte(`{"x":1}`)}, func(at hub.Position, err error) {
		if err != nil {
			t.Error(err)
		}
		answered <- at
	})
	at := <-answered
	expect(t, "event", st.Next(), event{at.String(), "", `{"x":1}`})
	long := "https://example.com/" + strings.Repeat("x", 2000)
	ls, lt := n.subscribe("topic="+long), n.subscribe("topic="+q("https://example.com/{x}"))
	n.publish("topic=" + long + "&data=long")
	expect(t, "a long topic", ls.Next().data, "long")
	expect(t, "a long topic by template", lt.Next().data, "long")
}

func TestWithoutALogIdsAreRandom(t *testing.T) {
	n := start(t, settings{space: hub.Namespace{Durability: hub.None}})
	st := n.subscribe("topic=a")
	id := n.publish("topic=a&data=x")
	if !strings.HasPrefix(id, "urn:uuid:") {
		t.Errorf("id %q", id)
	}
	expect(t, "event", st.Next(), event{id, "", "x"})
	n.subscribe("topic=a&lastEventID=" + q(id)) // unknown, but no error
}

func TestLinksNameThePositionToResumeFrom(t *testing.T) {
	t.Parallel()
	n := start(t, settings{})
	trial.Eventually(t, "a cursor", func() bool { return strings.Contains(n.server.Link(""), "last-event-id") })
	expect(t, "link", n.server.Link("application/json"), `<`+publicURL+`>; rel="mercure"; last-event-id="earliest"; content-type="application/json"`)
	id := n.publish("topic=a&data=x")
	trial.Eventually(t, "a newer cursor", func() bool { return n.server.Link("") == `<`+publicURL+`>; rel="mercure"; last-event-id="`+id+`."` })
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	f := func(c mercure.Config, want string) {
		t.Helper()
		err := c.Validate()
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	f(mercure.Config{}, "")
	f(mercure.Config{}.WithDefaults(), "")
	f(mercure.Config{Path: "x"}, "path")
	f(mercure.Config{Path: "/a/../b"}, "path")
	f(mercure.Config{Draft: "09"}, "draft")
	f(mercure.Config{PublicURL: "hub"}, "public_url")
	f(mercure.Config{PublishOrigins: []string{"*"}}, "")
	f(mercure.Config{PublishOrigins: []string{"https://a/"}}, "publish_origins")
	f(mercure.Config{Cookie: "a b"}, "cookie")
	f(mercure.Config{Heartbeat: 1}, "heartbeat")
	f(mercure.Config{ConnectionLife: 1}, "connection_life")
	f(mercure.Config{ConnectionLife: -1}, "")
	f(mercure.Config{MaxTopics: 1001}, "max_topics")
	f(mercure.Config{MaxMatchers: -1}, "max_matchers")
	f(mercure.Config{MaxBody: -1}, "max_body")
	f(mercure.Config{Issuers: []mercure.Issuer{{Issuer: "a"}}}, "issuers[0]")
	if _, err := mercure.New(mercure.Config{}, mercure.Deps{}); err == nil {
		t.Error("a server without a hub")
	}
}

func TestEveryTokenIsRefusedInEveryBrokenForm(t *testing.T) {
	n := start(t, settings{})
	good := token07(t, pubSecret, "publish", "*")
	parts := strings.Split(good, ".")
	for _, token := range []string{"", ".", "..", parts[0], parts[0] + "." + parts[1], good + "x", parts[0] + "." + parts[1] + ".", "eyJhbGciOiJub25lIn0." + parts[1] + "."} {
		status, _, _ := n.request("POST", hubPath, "topic=a", "Authorization", "Bearer "+token)
		if status != http.StatusUnauthorized {
			t.Errorf("%q: %d", token, status)
		}
	}
}

// A client that knows only the resource identifier finds the metadata, and relative patterns stand
// beside it.
func TestAResourceIdentifierIsWhereTheHubIs(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		s.strict, s.cfg.Resource, s.cfg.Draft = true, publicURL, "08"
		s.cfg.PublisherKeys, s.cfg.SubscriberKeys = "publishers", "subscribers"
		n := start(t, s)
		f := func(query string, status int, challenge string, header ...string) {
			t.Helper()
			got, h, text := n.request("GET", hubPath+"?"+query, "", header...)
			if got != status || h.Get("WWW-Authenticate") != challenge {
				t.Errorf("%s: %d %q %s, want %d %q", query, got, h.Get("WWW-Authenticate"), text, status, challenge)
			}
		}
		const meta = `resource_metadata="https://hub.example.com/.well-known/oauth-protected-resource/.well-known/mercure"`
		token := "Bearer " + token08(t, subSecret, "subscribe", "*")
		f("match=a", 401, "Bearer "+meta)
		f("topic=a&match=a", 400, `Bearer error="invalid_request"`, "Authorization", token)
		f("topic=a", 400, `Bearer error="invalid_request"`, "Authorization", token)
		status, h, _ := n.request("POST", hubPath, "topic=b", "Authorization", "Bearer "+token08(t, pubSecret, "publish", "a"))
		expect(t, "not granted", fmt.Sprint(status, h.Get("WWW-Authenticate")), `403Bearer error="insufficient_scope", `+meta)
		c := n.subscribe("match_urlpattern=/books/:id", "Authorization", token)
		status, _, text := n.request("POST", hubPath, "topic=https://hub.example.com/books/1&data=x", "Authorization", "Bearer "+token08(t, pubSecret, "publish", "https://hub.example.com/books/1"))
		expect(t, text, status, 200)
		if e := c.Next(); e.data != "x" {
			t.Errorf("%+v", e)
		}
	})
}
