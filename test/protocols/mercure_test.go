package protocols

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

const hubPath = "/.well-known/mercure"

func hour() int64 { return time.Now().Add(time.Hour).Unix() }

// token07 is a token of draft 07.
func token07(publish, subscribe []string) string {
	m := obj{"payload": obj{"who": "me"}}
	if publish != nil {
		m["publish"] = publish
	}
	if subscribe != nil {
		m["subscribe"] = subscribe
	}
	return judge.Token(judge.Claims{"mercure": m, "exp": hour()})
}

// token08 is a token of draft 08 for URL patterns.
func token08(action string, patterns ...string) string {
	var topics []any
	for _, p := range patterns {
		topics = append(topics, obj{"match": p, "match_type": "urlpattern"})
	}
	return judge.Sign(obj{"alg": "HS256", "typ": "at+jwt"}, judge.Claims{
		"iss": "https://issuer.example", "aud": hubURL, "sub": "s", "client_id": "c", "jti": "1", "iat": time.Now().Unix(), "exp": hour(),
		"authorization_details": []any{obj{"type": "https://mercure.rocks/authorization-detail", "actions": []string{action}, "topics": topics}},
	}, judge.HMACKey)
}

// source opens an EventSource on the hub and waits for it. Header is pairs.
func source(a *agent, s *judge.Server, name string, query url.Values, header ...string) {
	a.t.Helper()
	h := obj{}
	for i := 0; i+1 < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	a.make("EventSource", name, "http://"+s.Public+hubPath+"?"+query.Encode(), h, on("addEventListener", "open", "message", "error", "made", "mercure"))
	a.next(name, "open")
}

func form(kv ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		v.Add(kv[i], kv[i+1])
	}
	return v
}

func TestMercure(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	const book = "https://example.com/books/1"
	publishers := map[string]string{"07": token07([]string{"*"}, nil), "08": token08("publish", "https://example.com/*")}
	source(a, s, "open 07", form("topic", "https://example.com/books/{id}"))
	source(a, s, "open 08", form("match_urlpattern", "https://example.com/books/:id"))
	source(a, s, "exact 08", form("match", book))
	source(a, s, "both topics", form("topic", book, "topic", "https://example.com/alternate"))
	source(a, s, "bearer 07", form("topic", book), "Authorization", "Bearer "+token07(nil, []string{book}))
	source(a, s, "cookie 07", form("topic", book), "Cookie", "mercureAuthorization="+token07(nil, []string{"https://example.com/{+any}"}))
	source(a, s, "bearer 08", form("match", book), "Authorization", "Bearer "+token08("subscribe", "https://example.com/books/*"))
	source(a, s, "cookie 08", form("match", book), "Cookie", "__Secure-mercure_access_token="+token08("subscribe", "https://example.com/books/*"))
	open := []string{"open 07", "open 08", "exact 08", "both topics"}
	granted := []string{"bearer 07", "cookie 07", "bearer 08", "cookie 08"}
	for _, draft := range []string{"07", "08"} {
		publisher := publishers[draft]
		id := update(t, s, publisher, form("topic", book, "data", "private "+draft, "private", "on", "id", "urn:private:"+draft))
		expect(t, "id", json.RawMessage(strconv.Quote(id)), "urn:private:"+draft)
		update(t, s, publisher, form("topic", book, "topic", "https://example.com/alternate", "data", "line 1\nline 2", "id", "urn:public:"+draft))
		typed := update(t, s, publisher, form("topic", book, "data", "{}", "type", "made"))
		for _, name := range append(open, granted...) {
			if name[0] == 'b' && name != "both topics" || name[0] == 'c' {
				expect(t, name+" private", a.next(name, "message"), obj{"id": "urn:private:" + draft, "data": "private " + draft})
			}
			expect(t, name, a.next(name, "message"), obj{"id": "urn:public:" + draft, "data": "line 1\nline 2"})
			expect(t, name+" typed", a.next(name, "made"), obj{"id": typed, "data": "{}"})
			a.none(name, "message")
			a.none(name, "error")
		}
	}
	t.Run("refuses", func(t *testing.T) {
		for _, c := range []struct {
			token  string
			status int
		}{{token07([]string{"https://other.example/"}, nil), 401}, {token07(nil, []string{"*"}), 401}, {token08("publish", "https://other.example/*"), 403}, {"nonsense", 401}} {
			status, body := post(t, "http://"+s.Public+hubPath, "application/x-www-form-urlencoded", form("topic", book, "data", "x").Encode(), "Authorization", "Bearer "+c.token)
			if status != c.status {
				t.Errorf("status %d, want %d: %s", status, c.status, body)
			}
		}
	})
	t.Run("resumes", func(t *testing.T) {
		a := a.with(t)
		source(a, s, "later", form("topic", book, "lastEventID", "urn:private:07"), "Authorization", "Bearer "+token07(nil, []string{"*"}))
		expect(t, "first after it", field(t, a.next("later", "message"), "id"), "urn:public:07")
		source(a, s, "all", form("match", book, "last_event_id", "earliest"))
		expect(t, "the first there is", field(t, a.next("all", "message"), "id"), "urn:public:07")
	})
}

func TestMercureSubscriptions(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	const topic = "https://example.com/chat"
	events07 := hubPath + "/subscriptions/" + url.QueryEscape(topic) + "/{subscriber}"
	source(a, s, "watch 07", form("topic", events07), "Authorization", "Bearer "+token07(nil, []string{hubPath + "/subscriptions{/topic}{/subscriber}"}))
	source(a, s, "someone", form("topic", topic), "Authorization", "Bearer "+token07(nil, []string{topic}))
	type subscription struct {
		ID, Type, Topic, Subscriber string
		Active                      bool
		Payload                     json.RawMessage
	}
	reported := func(name string) subscription {
		t.Helper()
		return decode[subscription](t, []byte(text(field(t, a.next(name, "message"), "data"))))
	}
	one := reported("watch 07")
	if !one.Active || one.Topic != topic || one.Type != "Subscription" {
		t.Errorf("subscription: %+v", one)
	}
	expect(t, "payload", one.Payload, obj{"who": "me"})
	list := func(path string) (int, []byte) {
		return send(t, newGet(t, "http://"+s.Public+path), []string{"Authorization", "Bearer " + token07(nil, []string{"*"})})
	}
	status, body := list(hubPath + "/subscriptions/" + url.QueryEscape(topic))
	answer := decode[struct{ Subscriptions []subscription }](t, body)
	if status != 200 || len(answer.Subscriptions) != 1 || answer.Subscriptions[0].ID != one.ID {
		t.Errorf("subscriptions: %d %s", status, body)
	}
	if status, body = list(one.ID); status != 200 {
		t.Errorf("%s: %d %s", one.ID, status, body)
	}
	a.call("someone", "close")
	two := reported("watch 07")
	if two.Active || two.ID != one.ID {
		t.Errorf("subscription that ended: %+v, want %s", two, one.ID)
	}
	judge.Eventually(t, patience, "the list has it no more", func() bool { status, _ := list(one.ID); return status == 404 })
}

// A reader is an EventSource whose updates are numbers, and what it has seen of them.
type reader struct {
	mu    sync.Mutex
	got   []int
	opens int
	wrong []string
}

func (r *reader) on(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Event {
	case "open":
		r.opens++
	case "message":
		var m struct{ ID, Data string }
		_ = json.Unmarshal(e.Data, &m)
		n, err := strconv.Atoi(m.Data[:strings.IndexByte(m.Data+" ", ' ')])
		if err != nil {
			r.wrong = append(r.wrong, string(e.Data[:min(len(e.Data), 200)]))
		}
		r.got = append(r.got, n)
	case "error":
		var m struct{ State int }
		if err := json.Unmarshal(e.Data, &m); err != nil || m.State == 2 {
			r.wrong = append(r.wrong, "gave up: "+string(e.Data))
		}
	}
}

func (r *reader) last() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.got) == 0 {
		return -1
	}
	return r.got[len(r.got)-1]
}

func (r *reader) sessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opens
}

// judge compares with the numbers that were acknowledged: each once, in order.
func (r *reader) judge(t *testing.T, name string, acked []int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	lost, extra, repeated, reordered := 0, 0, 0, 0
	sure, seen := map[int]bool{}, map[int]bool{}
	for _, n := range acked {
		sure[n] = true
	}
	last := -1
	for _, n := range r.got {
		switch {
		case seen[n]:
			repeated++
		case !sure[n]:
			extra++
		case n < last:
			reordered++
		}
		seen[n], last = true, n
	}
	for _, n := range acked {
		if !seen[n] {
			lost++
		}
	}
	t.Logf("%s: %d connections, %d received of %d acknowledged; %d lost, %d repeated, %d reordered, %d not for it", name, r.opens, len(r.got), len(acked), lost, repeated, reordered, extra)
	if lost+repeated+reordered+extra > 0 || len(acked) == 0 || len(r.wrong) > 0 {
		t.Errorf("%s: wrong: %q", name, r.wrong)
	}
}

func TestMercureResumesThroughKills(t *testing.T) {
	s := serve(t)
	a := nodeAgent(t)
	const topic = "https://example.com/n"
	publisher := token07([]string{"*"}, nil)
	queries := map[string][]string{
		"07":         {"topic", topic, "lastEventID", "earliest"},
		"07 private": {"topic", "https://example.com/{x}", "lastEventID", "earliest"},
		"08":         {"match", topic, "last_event_id", "earliest"},
		"08 private": {"match_urlpattern", "https://example.com/*", "last_event_id", "earliest"},
	}
	headers := map[string][]string{
		"07 private": {"Cookie", "mercureAuthorization=" + token07(nil, []string{"*"})},
		"08 private": {"Authorization", "Bearer " + token08("subscribe", "https://example.com/*")},
	}
	readers := map[string]*reader{}
	// The first update of all sets the time to reconnect.
	update(t, s, publisher, form("topic", topic, "data", "0", "retry", "100"))
	for name, q := range queries {
		r := &reader{}
		readers[name] = r
		a.sink(name, r.on)
		h := obj{}
		if p := headers[name]; p != nil {
			h[p[0]] = p[1]
		}
		a.make("EventSource", name, "http://"+s.Public+hubPath+"?"+form(q...).Encode(), h, on("addEventListener", "open", "message", "error"))
	}
	all := func(what string, ok func(r *reader) bool) {
		t.Helper()
		judge.Eventually(t, 2*patience, what, func() bool {
			for _, r := range readers {
				if !ok(r) {
					return false
				}
			}
			return true
		})
	}
	// One at a time, so that the order is known, and none is under way at a kill; the
	// readers are.
	public, private := []int{0}, []int{0}
	const count = 2400
	for n := 1; n < count; n++ {
		switch n {
		case count / 4, count / 2, count * 3 / 4:
			all("every reader is connected and has read since", func(r *reader) bool { return r.last() >= n-count/5 })
			s.Kill()
			s.Start()
		}
		f := form("topic", topic, "data", strconv.Itoa(n))
		if n%2 == 0 {
			f.Set("id", fmt.Sprintf("urn:n:%d", n))
		}
		if n%3 == 0 {
			f.Set("private", "on")
		}
		update(t, s, publisher, f)
		private = append(private, n)
		if n%3 != 0 {
			public = append(public, n)
		}
	}
	newest := map[bool]int{true: private[len(private)-1], false: public[len(public)-1]}
	for name, r := range readers {
		p := strings.HasSuffix(name, "private")
		judge.Eventually(t, 2*patience, name+" has the newest", func() bool { return r.last() >= newest[p] })
		r.judge(t, name, map[bool][]int{true: private, false: public}[p])
		if r.sessions() < 4 {
			t.Errorf("%s: %d connections, though the server was killed three times", name, r.sessions())
		}
	}
}
