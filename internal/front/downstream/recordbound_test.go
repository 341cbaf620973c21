package downstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func userToken(t *testing.T, sub string) string {
	t.Helper()
	tok, err := auth.Mint(auth.Config{KeySet: auth.KeySet{HMACSecret: testSecret}}, auth.MintClaims{Subject: sub, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + tok
}

func TestRecordingsAreNotSharedBetweenUsers(t *testing.T) {
	route := recorded()
	route.Auth.Required = true
	l, g := tellerAndGateway(t, route)
	ann, bob := userToken(t, "ann"), userToken(t, "bob")
	a := g.request("POST", "/chat", "x", "Authorization", ann)
	l.report(0, 1)
	id := a.wants(0, 1)
	url := a.res.Header.Get("Weir-Recording")
	b := g.request("POST", "/chat", "x", "Authorization", bob)
	b.status(200)
	if n := l.calls.Load(); n != 2 {
		t.Fatalf("%d calls, want one for each user", n)
	}
	f := func(want int, header ...string) *listener {
		t.Helper()
		c := g.request("GET", url, "", header...)
		c.status(want)
		return c
	}
	f(200, "Authorization", ann).wants(0, 1)
	f(200, "Authorization", userToken(t, "ann")).wants(0, 1) // another token of hers
	f(403, "Authorization", bob)
	f(403)
	f(401, "Authorization", "Bearer nonsense")
	g.request("GET", url+"x", "", "Authorization", ann).status(404)
	g.request("GET", "/api/recording?id=llm.x.iy", "", "Authorization", ann).status(404)
	g.request("GET", "/api/recording", "", "Authorization", ann).status(404)
	// A position of hers does not help him.
	g.request("POST", "/chat", "other", "Authorization", bob, "Last-Event-ID", id).status(410)
	// Nor does the channel.
	if res := g.request("GET", "/sse?channel=llm:rec.x", ""); res.res.StatusCode != 401 {
		t.Errorf("status %d for who follows the channel", res.res.StatusCode)
	}
}

func TestUnknownCredentialsDistinguishClients(t *testing.T) {
	route := recorded()
	route.Record.Key = []string{"cookie:sid", "X-Session"}
	l, g := tellerAndGateway(t, route)
	a := g.request("POST", "/chat", "x", "Cookie", "sid=1; theme=dark")
	l.report(0, 1)
	a.wants(0, 1)
	url := a.res.Header.Get("Weir-Recording")
	g.request("POST", "/chat", "x", "Cookie", "theme=light; sid=1").wants(0, 1)
	g.request("GET", url, "", "Cookie", "sid=1").wants(0, 1)
	g.request("GET", url, "", "Cookie", "sid=2").status(403)
	g.request("GET", url, "").status(403)
	g.request("POST", "/chat", "x", "Cookie", "sid=2").status(200)
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestPositionThatIsNotThereIsRefused(t *testing.T) {
	l, g := tellerAndGateway(t)
	f := func(id string) {
		t.Helper()
		g.request("POST", "/chat", "x", "Last-Event-ID", id).status(410)
	}
	f("42")
	f("0")
	f("otherepoch-5")
	if n := l.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestRecordingIsBounded(t *testing.T) {
	f := func(name, cause string, say func(*teller), change func(*policy.Record)) {
		t.Helper()
		route := recorded()
		change(&route.Record)
		l, g := tellerAndGateway(t, route)
		c := g.request("POST", "/chat", "x")
		c.status(200)
		go say(l)
		for {
			got, _ := c.next()
			if strings.HasPrefix(got, "error:") {
				if !strings.Contains(got, cause) {
					t.Errorf("%s: %s", name, got)
				}
				break
			}
		}
		c.ends()
		trial.Eventually(t, name+": the upstream is left", func() bool { return l.gone.Load() == 1 })
	}
	many := func(l *teller) { l.report(0, 30) }
	f("events", "max_events", many, func(r *policy.Record) { r.MaxEvents = 20 })
	f("bytes", "max_bytes", many, func(r *policy.Record) { r.MaxBytes = 600 })
	f("one event", "event_too_large", func(l *teller) {
		for range 3 {
			l.say <- "data: " + strings.Repeat("x", 30<<10) + "\n"
		}
	}, func(*policy.Record) {})
	f("one event, escaped", "event_too_large", func(l *teller) {
		l.say <- "data: " + strings.Repeat("\"", 40<<10) + "\n\n"
	}, func(*policy.Record) {})
}

func TestConcurrentRecordingsAreBounded(t *testing.T) {
	route := recorded()
	route.Record.MaxConcurrent = 2
	l, g := tellerAndGateway(t, route)
	a := g.request("POST", "/chat", "1")
	a.status(200)
	g.request("POST", "/chat", "2").status(200)
	g.request("POST", "/chat", "3").status(503)
	g.request("POST", "/chat", "1").status(200) // attaches
	l.say <- ""
	l.say <- ""
	a.ends()
	trial.Eventually(t, "the places are free", func() bool { return g.recorder.Stats().Running == 0 })
	g.request("POST", "/chat", "3").status(200)
}

func TestSlowClientDoesNotSlowTheRecording(t *testing.T) {
	l, g := tellerAndGateway(t)
	w := g.dial() // reads nothing
	w.Send(wiretest.CRLF("POST /chat HTTP/1.1\nHost: x\nContent-Length: 1\n\nx"))
	payload := strings.Repeat("y", 20<<10)
	go func() {
		for range 200 {
			l.say <- "data: " + payload + "\n\n"
		}
		l.say <- ""
	}()
	trial.Eventually(t, "the recording is complete", func() bool { return g.recorder.Stats().Whole == 1 })
}

func TestRecordNeedsANamespaceThatKeepsSecrets(t *testing.T) {
	_, g := tellerAndGateway(t)
	f := func(rec policy.Record, want string) {
		t.Helper()
		set, err := policy.New([]policy.RouteConfig{{Cluster: "main", Record: rec}}, g.deps)
		if err == nil {
			err = g.front.SetRoutes(set, g.clusters)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", rec, err, want)
		}
	}
	f(policy.Record{Namespace: "nope"}, "unknown namespace")
	f(policy.Record{Namespace: "default"}, "anonymous")
	f(policy.Record{Namespace: "llm", MaxEvents: 400}, "history_size")
	f(policy.Record{Namespace: "llm", MaxBytes: -1}, "negative")
	f(policy.Record{Namespace: "llm", Key: []string{"cookie:"}}, "not a field name")
	f(policy.Record{Outlive: 5}, "name the namespace")
}
