package protocol

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	hubPath = "/.well-known/mercure"
	hubURL  = "https://hub.example.com/.well-known/mercure"
)

func TestUpdateForms(t *testing.T) {
	f := func(form string, d Dialect, want string) {
		t.Helper()
		u, err := ParseUpdate(form, d, hubPath)
		got := fmt.Sprintf("%+v", u)
		if err != nil {
			got = fmt.Sprint(err.Status)
		}
		if strings.TrimPrefix(got, "&") != want {
			t.Errorf("%q in %s: %s, want %s", form, d, got, want)
		}
	}
	both := func(form, want string) {
		t.Helper()
		f(form, Draft07, want)
		f(form, Draft08, want)
	}
	both("topic=a&topic=b&data=x%0Ay&private&id=urn:1&type=t&retry=5", "{Topics:[a b] Data:x\ny Private:true ID:urn:1 Type:t Retry:5}")
	both("topic=a%20b+c&unknown=1", "{Topics:[a b c] Data: Private:false ID: Type: Retry:0}")
	both("topic=a&private=off", "{Topics:[a] Data: Private:true ID: Type: Retry:0}")
	both("topic=a&retry=0", "{Topics:[a] Data: Private:false ID: Type: Retry:0}")
	both("data=x", "400")
	both("", "400")
	both("topic=", "400")
	both("topic=a&id=%23x", "400")
	both("topic=a&id=x%0Ad", "400")
	both("topic=a&id=x%0D", "400")
	both("topic=a&id=x%00", "400")
	both("topic=a&type=x%0Adata:%20evil", "400")
	both("topic=a&type=x%0D", "400")
	both("topic=a&retry=5s", "400")
	both("topic=a&retry=-1", "400")
	both("topic=a&retry=+1", "400")
	both("topic=a&retry=%EF%BC%91", "400")
	both("topic=a&retry=99999999999999999999", "400")
	both("topic=%ff", "400")
	both("topic=a&data=%ff", "400")
	both("topic=a&data=%zz", "400")
	both("topic=a&data=%4", "400")
	f("topic=*", Draft07, "{Topics:[*] Data: Private:false ID: Type: Retry:0}")
	f("topic=*", Draft08, "400")
	f("topic=a&type=mercure", Draft07, "{Topics:[a] Data: Private:false ID: Type:mercure Retry:0}")
	f("topic=a&type=mercure", Draft08, "400")
	f("topic=a&id=earliest", Draft08, "400")
	f("topic=a&id=x%E2%80%8By", Draft08, "400") // a zero-width space is of category Cf
	f("topic=a&id=x%E2%80%8By", Draft07, "{Topics:[a] Data: Private:false ID:x\u200by Type: Retry:0}")
	f("topic=a%07", Draft08, "400")
	f("topic=a&id="+strings.Repeat("x", 256), Draft07, "400")
	f("topic=a&id="+strings.Repeat("x", 256), Draft08, "413")
	f("topic="+strings.Repeat("x", MaxSelector+1), Draft08, "413")
	f("topic=x/.well-known/mercure/subscriptions/a/b", Draft07, "403")
	f("topic=/.well-known/mercure/subscriptions/a/b", Draft08, "400")
	f("topic=ok&topic=/.well-known/mercure", Draft08, "400")
}

func TestHubsOwnTopicsCannotBeHidden(t *testing.T) {
	f := func(topic string, want bool) {
		t.Helper()
		if got := Reserved(topic, hubPath); got != want {
			t.Errorf("Reserved(%q) = %v", topic, got)
		}
	}
	f("/.well-known/mercure", true)
	f("/.well-known/mercure/subscriptions/x", true)
	f("https://hub.example.com/.well-known/mercure/x", true)
	f("https://other.example/.well-known/mercure", true)
	f("//other/.well-known/mercure", true)
	f("/a/../.well-known/mercure/x", true)
	f("/.well-known/./mercure/x", true)
	f("/.well-known/x/%2e%2e/mercure/x", true)
	f("/.well%2Dknown/%6Dercure", true)
	f("mercure/subscriptions", true) // beside the hub
	f("./mercure", true)
	f(`\.well-known\mercure`, true)
	f("/.well-known/mercure?x=1", true)
	f("/.well-known/mercurex", false)
	f("/.well-known", false)
	f("https://example.com/books/1", false)
	f("urn:uuid:1", false)
	f("books", false)
	f("https://example.com/?u=/.well-known/mercure", false)
}

func TestRequests(t *testing.T) {
	all := Dialects{true, true}
	f := func(query, body, header string, serve Dialects, want string) {
		t.Helper()
		r, err := ParseRequest(query, body, header, serve)
		var got string
		switch {
		case err != nil:
			got = fmt.Sprint(err.Status, " ", err.Message)
		default:
			got = fmt.Sprintf("%s %v %q %v %q", r.Dialect, r.Selectors, r.LastID, r.Resumes, r.Token)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q %q %q: %s, want %s", query, body, header, got, want)
		}
	}
	f("topic=a&topic=b{x}", "", "", all, `draft-07 [{exact a} {exact b{x}}] "" false ""`)
	f("topic=a&authorization=tok&lastEventID=5", "", "", all, `draft-07 [{exact a}] "5" true "tok"`)
	f("topic=a&Last-Event-ID=5", "", "", all, `draft-07 [{exact a}] "5" true ""`)
	f("topic=a&lastEventID=5", "", "6", all, `draft-07 [{exact a}] "6" true ""`)
	f("match=a&match_exact=b&match_urlpattern=/c/:d&authorization=t", "", "", all, `draft-08 [{exact a} {exact b} {urlpattern /c/:d}] "" false ""`)
	f("match=a&last_event_id=", "", "", all, `draft-08 [{exact a}] "" true ""`)
	f("match=a", "match=b&last_event_id=7", "", all, `draft-08 [{exact a} {exact b}] "7" true ""`)
	f("", "", "", all, `400 Missing "topic" parameter.`)
	f("foo=1", "", "", Dialects{Draft08: true}, `400 Missing "match" parameter.`)
	f("topic=a", "", "", Dialects{Draft08: true}, `400 "topic" is of draft 07`)
	f("match=a", "", "", Dialects{Draft07: true}, `400 Missing "topic" parameter.`)
	f("match=a&topic=b", "", "", all, `400 "topic" and "match"`)
	f("match=a&topic=b", "", "", Dialects{Draft08: true}, `400 "topic" and "match"`)
	f("match=a&topic=b", "", "", Dialects{Draft07: true}, `draft-07 [{exact b}] "" false ""`)
	f("matchURLPattern=a", "", "", all, `400 Unknown matcher type`)
	f("MATCH=a", "", "", all, `400 Unknown matcher type`)
	f("match=a&matches=1", "", "", all, `400 Unknown matcher type`)
	f("match=", "", "", all, `400 A topic selector is empty`)
	f("match=%07", "", "", all, `400 A topic selector is not UTF-8, or has control`)
	f("topic=%ff", "", "", all, `400 A topic selector is not UTF-8`)
	f("topic=%f", "", "", all, `400 "topic=%f" has a percent`)
	f(strings.Repeat("match=a&", MaxMatchers), "", "", all, `draft-08`)
	f(strings.Repeat("match=a&", MaxMatchers+1), "", "", all, `400 More than 100`)
	f(strings.Repeat("topic=a&", MaxTopics07), "", "", all, `draft-07`)
	f(strings.Repeat("topic=a&", MaxTopics07+1), "", "", all, `400 More than 1000`)
	f("match="+strings.Repeat("a", MaxSelector), "", "", all, `draft-08`)
	f("match="+strings.Repeat("a", MaxSelector+1), "", "", all, `400 A topic selector has`)
}

func TestSelectors(t *testing.T) {
	f := func(kind Kind, text, topic string, want bool) {
		t.Helper()
		c, err := Compile(Selector{kind, text}, hubURL)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is remembered
			if got := c.Match(topic); got != want {
				t.Errorf("%q means %q: %v", text, topic, got)
			}
		}
		c.Match("something else")
		if got := NewSet([]*Compiled{c}).Match(topic); got != want {
			t.Errorf("set of %q means %q: %v", text, topic, got)
		}
	}
	f(Exact, "a", "a", true)
	f(Exact, "a", "A", false)
	f(Exact, "*", "anything", true)
	f(Exact, "a{b}", "ax", false)
	f(Template, "*", "anything", true)
	f(Template, "a*", "ab", false)
	f(Template, "https://example.com/books/{id}", "https://example.com/books/1", true)
	f(Template, "https://example.com/books/{id}", "https://example.com/books/", true)
	f(Template, "https://example.com/books/{id}", "https://example.com/books/1/2", false)
	f(Template, "https://example.com/books/{id}", "https://example.com/books/{id}", true) // the same bytes
	f(Template, "https://example.com/books/{id}.json", "https://example.com/books/1xjson", false)
	f(Template, "https://example.com/{+path}", "https://example.com/a/b/c", true)
	f(Template, "/a{/x,y}", "/a/1/2", true)
	f(Template, "/a{/x,y}", "/a/1/2/3", false)
	f(Template, "/a{?q*}", "/a?x=1&y=2", true)
	f(Template, "/a{", "/a{", true) // no template: just text
	f(Template, "/a{", "/a", false)
	f(Template, "/a{"+strings.Repeat("v,", 40)+"v}", "/a1", false) // past the bound
	f(URLPattern, "https://example.com/books/:id", "https://example.com/books/1", true)
	f(URLPattern, "https://example.com/books/:id", "https://EXAMPLE.com/books/1", true)
	f(URLPattern, "https://example.com/books/:id", "https://example.com/Books/1", false)
	f(URLPattern, "https://example.com/books/:id", "https://example.com/books/1/2", false)
	f(URLPattern, "https://example.com/*", "https://example.com/a/b", true)
	f(URLPattern, "/books/:id", "/books/1", true)
	f(URLPattern, "/books/:id", "https://hub.example.com/books/1", true)
	f(URLPattern, "/books/:id", "https://example.com/books/1", false)
	f(URLPattern, "/books/(\\d+)", "/books/12", true)
	f(URLPattern, "/books/(\\d+)", "/books/x", false)
	f(URLPattern, "*", "anything", true)
	for _, text := range []string{"/a/(", "/(a{1000}b{1000})", "/((?:" + strings.Repeat("a", 300) + "){900})", "/(a{99999999999999999999})"} {
		if _, err := Compile(Selector{URLPattern, text}, hubURL); !errors.Is(err, ErrPattern) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	f(URLPattern, "/(\\d{4})-(\\d{2})", "/2026-11", true)
	var none *Set
	if none.Match("a") || !none.Empty() || NewSet(nil).Match("a") || !NewSet(nil).Empty() {
		t.Error("nothing means something")
	}
}

// A hostile pattern costs no more than its length times the topic's.
func TestMatchingIsLinear(t *testing.T) {
	evil := []Selector{
		{Template, strings.Repeat("{a}", 64) + "!"},
		{Template, "{" + strings.TrimSuffix(strings.Repeat("a,", 32), ",") + "}!"},
		{URLPattern, "/(a+)+b"},
		{URLPattern, "/" + strings.Repeat(":a*-", 40)},
	}
	for _, s := range evil {
		c, err := Compile(s, hubURL)
		if err != nil {
			continue // refused is as well
		}
		if c.Match("/" + strings.Repeat("a", 4000)) {
			t.Errorf("%q matches", s.Text)
		}
	}
}

func TestClaims(t *testing.T) {
	f := func(d Dialect, claims, want string) {
		t.Helper()
		c, err := ParseClaims([]byte(claims), d)
		got := "refused"
		if err == nil {
			got = fmt.Sprint(c.Publish, c.Subscribe, len(c.payloads))
		}
		if got != want {
			t.Errorf("%s %s: %s, want %s (%v)", d, claims, got, want, err)
		}
	}
	f(Draft07, `{}`, "[] [] 0")
	f(Draft07, `{"mercure":null}`, "[] [] 0")
	f(Draft07, `{"mercure":{"publish":["*"],"subscribe":["a","b"],"payload":{"x":1}}}`, "[{exact *}] [{exact a} {exact b}] 1")
	f(Draft07, `{"https://mercure.rocks/":{"publish":["a"]}}`, "[{exact a}] [] 0")
	f(Draft07, `{"mercure":{"publish":"*"}}`, "refused")
	f(Draft07, `{"mercure":[]}`, "refused")
	f(Draft07, `[]`, "refused")
	f(Draft07, `{"mercure":{"publish":["`+strings.Repeat("x", MaxSelector+1)+`"]}}`, "refused")
	detail := func(s string) string {
		return `{"authorization_details":[{"type":"other","topics":5},{"type":"` + DetailType + `",` + s + `}]}`
	}
	f(Draft08, `{"mercure":{"publish":["*"]}}`, "[] [] 0")
	f(Draft08, detail(`"actions":["publish"],"topics":[{"match":"a"}]`), "[{exact a}] [] 0")
	f(Draft08, detail(`"actions":["subscribe","x"],"topics":[{"match":"/:a","match_type":"urlpattern"}],"payload":{}`), "[] [{urlpattern /:a}] 1")
	f(Draft08, detail(`"actions":["future"],"topics":[{"match":"a"}]`), "[] [] 0")
	f(Draft08, detail(`"actions":[],"topics":[{"match":"a"}]`), "refused")
	f(Draft08, detail(`"actions":["publish"],"topics":[]`), "refused")
	f(Draft08, detail(`"actions":["publish"],"topics":["a"]`), "refused")
	f(Draft08, detail(`"actions":["publish"],"topics":[{"match":"a","match_type":"Exact"}]`), "refused")
	f(Draft08, detail(`"actions":["publish"],"topics":[{}]`), "refused")
	f(Draft08, detail(`"actions":["publish"],"topics":[null]`), "refused")
	f(Draft08, detail(`"actions":["subscribe"],"topics":[{"match":"a"}],"payload":5`), "refused")
	f(Draft08, detail(`"actions":"publish","topics":[{"match":"a"}]`), "refused")
	f(Draft08, `{"authorization_details":{}}`, "refused")
	f(Draft08, `{"authorization_details":[5]}`, "refused")
}

func TestPayloadOfASubscriptionIsTheFirstThatMeansIt(t *testing.T) {
	c, err := ParseClaims([]byte(`{"authorization_details":[
		{"type":"`+DetailType+`","actions":["subscribe"],"topics":[{"match":"/foo"}],"payload":{"n":1}},
		{"type":"`+DetailType+`","actions":["subscribe"],"topics":[{"match":"/bar/:id","match_type":"urlpattern"}],"payload":{"n":2}},
		{"type":"`+DetailType+`","actions":["subscribe"],"topics":[{"match":"*"}],"payload":{"n":3}}]}`), Draft08)
	if err != nil {
		t.Fatal(err)
	}
	compile := func(s Selector) (*Compiled, error) { return Compile(s, hubURL) }
	f := func(s Selector, want string) {
		t.Helper()
		if got := string(c.Payload(s, compile)); got != want {
			t.Errorf("payload of %v is %s, want %s", s, got, want)
		}
	}
	f(Selector{Exact, "/foo"}, `{"n":1}`)
	f(Selector{URLPattern, "/bar/:id"}, `{"n":2}`)
	f(Selector{Exact, "/bar/5"}, `{"n":2}`)
	f(Selector{Exact, "/else"}, `{"n":3}`)
}

func TestTokensSelectTheirDialect(t *testing.T) {
	f := func(header string, want Dialect) {
		t.Helper()
		if got := DialectOf([]byte(header)); got != want {
			t.Errorf("%s is of %s", header, got)
		}
	}
	f(`{"alg":"HS256","typ":"JWT"}`, Draft07)
	f(`{"alg":"HS256"}`, Draft07)
	f(`{"typ":"at+jwt"}`, Draft08)
	f(`{"typ":"application/AT+JWT"}`, Draft08)
	f(`{`, Draft07)
}

func TestCookiesAndBearers(t *testing.T) {
	c := func(field, want string) {
		t.Helper()
		if got := Cookie(field, "mercureAuthorization"); got != want {
			t.Errorf("cookie of %q is %q", field, got)
		}
	}
	c("mercureAuthorization=abc", "abc")
	c("a=b; mercureAuthorization=abc; mercureAuthorization=d", "abc")
	c(`x=1;mercureAuthorization="abc"`, "abc")
	c("xmercureAuthorization=abc", "")
	c("", "")
	b := func(field, token string, has bool) {
		t.Helper()
		if got, ok := Bearer(field); got != token || ok != has {
			t.Errorf("bearer of %q is %q, %v", field, got, ok)
		}
	}
	b("Bearer abc", "abc", true)
	b("bearer  abc", "abc", true)
	b("Bearer", "", true)
	b("Basic abc", "", false)
	b("Bearerabc", "", false)
	b("", "", false)
}

func TestDocuments(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	s7 := Subscription{Draft07, Selector{Template, "https://e/{x}"}, "urn:uuid:1", true, []byte(`{"a":"<b>"}`)}
	s8 := Subscription{Draft08, Selector{URLPattern, "/a/:b"}, "urn:uuid:2", false, nil}
	const id7 = hubPath + "/subscriptions/https%3A%2F%2Fe%2F%7Bx%7D/urn%3Auuid%3A1"
	const id8 = hubPath + "/subscriptions/urlpattern/%2Fa%2F%3Ab/urn%3Auuid%3A2"
	f(s7.Event(hubPath), `{"@context":"https://mercure.rocks/","id":"`+id7+`","type":"Subscription","topic":"https://e/{x}","subscriber":"urn:uuid:1","active":true,"payload":{"a":"<b>"}}`)
	f(s8.Event(hubPath), `{"id":"`+id8+`","type":"subscription","match_type":"urlpattern","match":"/a/:b","subscriber":"urn:uuid:2","active":false}`)
	f(s7.Document(hubPath, "e-5"), `{"@context":"https://mercure.rocks/","id":"`+id7+`","type":"Subscription","topic":"https://e/{x}","subscriber":"urn:uuid:1","active":true,"payload":{"a":"<b>"},"lastEventID":"e-5"}`)
	f(Documents(Draft07, "/x", "e-5", hubPath, nil), `{"@context":"https://mercure.rocks/","id":"/x","type":"Subscriptions","lastEventID":"e-5","subscriptions":[]}`)
	f(Documents(Draft08, "/x", "e-5", hubPath, []Subscription{s8}), `{"id":"/x","type":"subscriptions","subscriptions":[{"id":"`+id8+`","type":"subscription","match_type":"urlpattern","match":"/a/:b","subscriber":"urn:uuid:2","active":false}]}`)
	f([]byte(Link{Hub: "https://h/m", LastID: `a"b`, Type: "mercure", ContentType: "application/json"}.String()),
		`<https://h/m>; rel="mercure"; last-event-id="a\"b"; type="mercure"; content-type="application/json"`)
	f([]byte(Link{Hub: "/m\r\nX: y"}.String()), `</mX: y>; rel="mercure"`)
}

func TestPlaces(t *testing.T) {
	f := func(d Dialect, rest, want string) {
		t.Helper()
		p, ok := ParsePlace(hubPath+"/subscriptions"+rest, hubPath, d)
		got := "none"
		if ok {
			got = "all"
			if p.Selector != nil {
				got = fmt.Sprintf("%s %q %q", p.Selector.Kind, p.Selector.Text, p.Subscriber)
			}
		}
		if got != want {
			t.Errorf("%s %q: %s, want %s", d, rest, got, want)
		}
	}
	f(Draft07, "", "all")
	f(Draft07, "/", "all")
	f(Draft07, "/a%2Fb", `exact "a/b" ""`)
	f(Draft07, "/a%2Fb/urn%3Ax", `exact "a/b" "urn:x"`)
	f(Draft07, "/a+b", `exact "a+b" ""`)
	f(Draft07, "/a/b/c", "none")
	f(Draft07, "/%zz", "none")
	f(Draft07, "x", "none")
	f(Draft08, "", "all")
	f(Draft08, "/exact", "none")
	f(Draft08, "/exact/a", `exact "a" ""`)
	f(Draft08, "/urlpattern/%2F%3Aa/s", `urlpattern "/:a" "s"`)
	f(Draft08, "/other/a", "none")
}

func FuzzEscape(f *testing.F) {
	f.Add("a/b%41 é")
	f.Fuzz(func(t *testing.T, s string) {
		e := Escape(s)
		if got, ok := Unescape(e); !ok || got != s || UnescapeLax(e) != s {
			t.Fatalf("%q escaped is %q, back %q", s, e, got)
		}
	})
}

// FuzzUpdate holds what is accepted to what may appear in an event.
func FuzzUpdate(f *testing.F) {
	f.Add("topic=a&topic=b&data=x%0Ay&private&id=urn:1&type=t&retry=5")
	f.Add("topic=%2F.well-known%2F%2e/mercure&id=%00")
	f.Fuzz(func(t *testing.T, form string) {
		for _, d := range []Dialect{Draft07, Draft08} {
			u, err := ParseUpdate(form, d, hubPath)
			if err != nil {
				if err.Status != http.StatusBadRequest && err.Status != http.StatusForbidden && err.Status != http.StatusRequestEntityTooLarge {
					t.Fatalf("status %d", err.Status)
				}
				continue
			}
			if strings.ContainsAny(u.ID+u.Type, "\r\n\x00") || strings.HasPrefix(u.ID, "#") || len(u.Topics) == 0 || u.Retry < 0 {
				t.Fatalf("%q became %+v", form, u)
			}
		}
	})
}

// FuzzSelector holds matching to: no panic, what is the same matches, and a set says
// what its one selector does.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"*", "https://e/{x}{?a,b*}", "/:a(\\d+)?", "{+a:3}", "{", "/{a}?", "http{s}?://*.e/*"} {
		f.Add(s, "https://e/1")
	}
	f.Fuzz(func(t *testing.T, text, topic string) {
		if len(text) > 200 || len(topic) > 200 {
			return
		}
		for _, kind := range []Kind{Exact, Template, URLPattern} {
			s := Selector{kind, text}
			if s.check(Draft08) != nil {
				continue
			}
			c, err := Compile(s, hubURL)
			if err != nil {
				continue
			}
			if kind != URLPattern && !c.Match(text) {
				t.Fatalf("%q does not mean itself", text)
			}
			if c.Match(topic) != NewSet([]*Compiled{c}).Match(topic) {
				t.Fatalf("the set of %q differs about %q", text, topic)
			}
		}
	})
}

func FuzzClaims(f *testing.F) {
	f.Add(`{"mercure":{"publish":["*"],"payload":1}}`)
	f.Add(`{"aud":["a"],"authorization_details":[{"type":"` + DetailType + `","actions":["subscribe"],"topics":[{"match":"a"}],"payload":{}}]}`)
	f.Fuzz(func(t *testing.T, claims string) {
		for _, d := range []Dialect{Draft07, Draft08} {
			c, err := ParseClaims([]byte(claims), d)
			if err != nil {
				continue
			}
			for _, s := range append(c.Publish, c.Subscribe...) {
				if len(s.Text) > MaxSelector {
					t.Fatalf("a selector of %d bytes", len(s.Text))
				}
			}
		}
	})
}

// What a template's literal ends exclude, its regular expression excludes as well.
func TestLiteralEndsChangeNothing(t *testing.T) {
	topics := []string{"", "a", "https://example.com/books/1", "https://example.com/books/", "https://example.com/books/1/é", "x", "books/1x", "/a b", "%20", "a%20b", "https://example.com/b"}
	for _, text := range []string{"{a}", "{a}x", "https://example.com/books/{id}", "https://example.com/{+path}", "é{a}", "a b{c}", "%20{a}", "{a}%20", "{a} b", "{/a}", "{?a}", "{a}{b}/é", "books/{id}x", "ab+{c}", "{c}+ab"} {
		c, err := Compile(Selector{Kind: Template, Text: text}, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range topics {
			want := topic == text || c.template != nil && c.template.MatchString(topic)
			if got := c.Match(topic); got != want {
				t.Errorf("%q and %q: %v, want %v", text, topic, got, want)
			}
		}
	}
}
