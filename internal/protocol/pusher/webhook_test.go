package pusher_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// application is a server that takes webhooks. All methods may be called from any
// goroutine.
type application struct {
	t   *testing.T
	url string

	mu        sync.Mutex
	status    int // answered to the next requests
	requested int
	got       []string
}

func newApplication(t *testing.T) *application {
	a := &application{t: t, status: 200}
	s := httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(s.Close)
	a.url = s.URL + "/hook"
	return a
}

func (a *application) serve(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Pusher-Key") != appKey ||
		!protocol.Equal(r.Header.Get("X-Pusher-Signature"), protocol.Sign(appSecret, string(b))) || r.Header.Get("X-Mine") != "yes" {
		a.t.Errorf("%v %v %s", err, r.Header, b)
	}
	var body struct {
		Time   int64                        `json:"time_ms"`
		Events []map[string]json.RawMessage `json:"events"`
	}
	if err := json.Unmarshal(b, &body); err != nil || time.Since(time.UnixMilli(body.Time)).Abs() > time.Hour || len(body.Events) == 0 {
		a.t.Errorf("%s: %v", b, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requested++
	w.WriteHeader(a.status)
	if a.status != 200 {
		return
	}
	for _, e := range body.Events {
		text, _ := json.Marshal(e)
		a.got = append(a.got, string(text))
	}
}

func (a *application) answer(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

// wait waits for an event and reports what came, in order.
func (a *application) wait(event string) []string {
	a.t.Helper()
	trial.Eventually(a.t, "the webhook of "+event, func() bool { return slices.Contains(a.all(), event) })
	return a.all()
}

func (a *application) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

func (a *application) app(events ...string) pusher.App {
	return pusher.App{ClientEvents: true, Webhooks: []pusher.Webhook{{URL: a.url, Events: events, Headers: map[string]string{"X-Mine": "yes"}}}}
}

// soon makes what waits on purpose wait little.
var soon = pusher.Config{VacatedDelay: hub.Duration(50 * time.Millisecond), CountInterval: hub.Duration(20 * time.Millisecond), WebhookWindow: hub.Duration(5 * time.Millisecond)}

func TestWebhooksReportEvents(t *testing.T) {
	x := newApplication(t)
	n := start(t, settings{app: x.app(), cfg: soon})
	a, b := n.connect(), n.connect()
	a.join("private-a")
	x.wait(`{"channel":"private-a","name":"channel_occupied"}`)
	b.join("private-a")
	b.sendEvent("client-hi", "private-a", map[string]int{"n": 1})
	a.want("client-hi", "private-a", `{"n":1}`)
	x.wait(fmt.Sprintf(`{"channel":"private-a","data":"{\"n\":1}","event":"client-hi","name":"client_event","socket_id":"%s"}`, b.socket))
	a.enter("presence-a", member("1", "A"))
	x.wait(`{"channel":"presence-a","name":"channel_occupied"}`)
	x.wait(`{"channel":"presence-a","name":"member_added","user_id":"1"}`)
	a.sendEvent("client-hi", "presence-a", "words")
	x.wait(fmt.Sprintf(`{"channel":"presence-a","data":"words","event":"client-hi","name":"client_event","socket_id":"%s","user_id":"1"}`, a.socket))
	a.join("cache-a")
	x.wait(`{"channel":"cache-a","name":"cache_miss"}`)
	a.conn.CloseNow()
	x.wait(`{"channel":"presence-a","name":"member_removed","user_id":"1"}`)
	x.wait(`{"channel":"presence-a","name":"channel_vacated"}`)
	b.conn.CloseNow()
	all := x.wait(`{"channel":"private-a","name":"channel_vacated"}`)
	slices.Sort(all)
	if n := len(all); n != len(slices.Compact(all)) {
		t.Errorf("notified twice: %q", all)
	}
}

func TestWebhooksGetWhatTheyWant(t *testing.T) {
	x := newApplication(t)
	app := x.app("subscription_count")
	app.Webhooks[0].ChannelPrefix, app.Webhooks[0].ChannelSuffix = "o", "s"
	n := start(t, settings{app: app, cfg: soon})
	a := n.connect()
	a.join("private-a")
	a.join("others")
	a.join("o")
	x.wait(`{"channel":"others","name":"subscription_count","subscription_count":1}`)
	if all := x.all(); len(all) != 1 {
		t.Errorf("%q", all)
	}
}

func TestAReloadedPageIsNoNews(t *testing.T) {
	x := newApplication(t)
	cfg := soon
	cfg.VacatedDelay = hub.Duration(time.Minute)
	n := start(t, settings{app: x.app(), cfg: cfg})
	a := n.connect()
	a.enter("presence-a", member("1", "A"))
	x.wait(`{"channel":"presence-a","name":"member_added","user_id":"1"}`)
	a.conn.CloseNow()
	trial.Eventually(t, "presence has notified", func() bool { return n.server.Waiting() == 2 })
	b := n.connect()
	b.enter("presence-a", member("1", "A"))
	b.join("c")
	all := x.wait(`{"channel":"c","name":"channel_occupied"}`)
	if len(all) != 3 {
		t.Errorf("%q", all)
	}
	trial.Eventually(t, "nothing waits", func() bool { return n.server.Waiting() == 0 })
}

func TestWebhooksAreTriedAgainInOrder(t *testing.T) {
	x := newApplication(t)
	x.answer(503)
	n := start(t, settings{app: x.app(), cfg: soon})
	a := n.connect()
	a.join("one")
	trial.Eventually(t, "the first try", func() bool { return n.server.Stats().WebhooksRetried > 0 })
	a.join("two")
	x.answer(200)
	all := x.wait(`{"channel":"two","name":"channel_occupied"}`)
	if len(all) != 2 || all[0] != `{"channel":"one","name":"channel_occupied"}` {
		t.Errorf("%q", all)
	}
}

func TestWebhooksAreGivenUpAndBounded(t *testing.T) {
	x := newApplication(t)
	x.answer(500)
	cfg := soon
	cfg.WebhookRetry, cfg.WebhookQueue = hub.Duration(time.Millisecond), 2
	n := start(t, settings{app: x.app(), cfg: cfg})
	a := n.connect()
	a.join("one")
	trial.Eventually(t, "it is given up", func() bool { return n.server.Stats().WebhooksFailed > 0 })
	for i := range 100 {
		a.join(fmt.Sprintf("c%d", i))
	}
	trial.Eventually(t, "events are dropped or sent", func() bool {
		s := n.server.Stats()
		return s.WebhooksDropped > 0 || s.WebhooksFailed > 40
	})
}

func TestOneNodeSendsEachWebhook(t *testing.T) {
	x := newApplication(t)
	n, m := pair(t, settings{app: x.app("channel_occupied", "channel_vacated", "member_added"), cfg: soon})
	var clients []*client
	for i := range 20 {
		a, b := n.connect(), m.connect()
		a.join(fmt.Sprintf("c%d", i))
		b.join(fmt.Sprintf("c%d", i))
		clients = append(clients, a, b)
	}
	for i := range 20 {
		x.wait(fmt.Sprintf(`{"channel":"c%d","name":"channel_occupied"}`, i))
	}
	for _, c := range clients {
		c.conn.CloseNow()
	}
	for i := range 20 {
		x.wait(fmt.Sprintf(`{"channel":"c%d","name":"channel_vacated"}`, i))
	}
	if all := x.all(); len(all) != 40 {
		t.Errorf("%d webhooks, want 40: %q", len(all), all)
	}
}
