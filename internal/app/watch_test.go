package app

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// do sends one request to the admin listener; fields are "Name: value".
func (g *gateway) do(t *testing.T, method, path, body string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+g.AdminAddr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, b
}

// get decodes what the admin listener answers with 200.
func get[T any](t *testing.T, g *gateway, path string) T {
	t.Helper()
	res, body := g.do(t, http.MethodGet, path, "")
	var v T
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", path, res.StatusCode, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%s: %v in %.200s", path, err, body)
	}
	return v
}

func TestSnapshotShowsWhatHappens(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 3, "")
	get[admin.Snapshot](t, g, "/api/snapshot") // rates are since this one
	for i := range 20 {
		g.publish(t, "news", fmt.Sprint(i))
	}
	trial.Eventually(t, "all have it", func() bool { return g.hub.Stats().Delivered == 120 })
	var s admin.Snapshot
	trial.Eventually(t, "a snapshot shows it", func() bool {
		s = get[admin.Snapshot](t, g, "/api/snapshot")
		return s.Traffic.Delivered == 120
	})
	if s.Process.Version != "test" || s.Process.Ready != "yes" || s.Process.Broker != "memory" || s.Process.Uptime <= 0 {
		t.Errorf("process %+v", s.Process)
	}
	c := s.Connections
	if c.ByProtocol["sse"] != 3 || c.ByProtocol["websocket"] != 3 || c.Open < 6 || c.Max <= 0 {
		t.Errorf("connections %+v", c)
	}
	if len(s.Loops) != 2 {
		t.Fatalf("%d loops", len(s.Loops))
	}
	var open uint64
	for i, l := range s.Loops {
		open += l.Connections
		if l.Loop != i || l.Busy < 0 || l.Busy > 1 {
			t.Errorf("loop %+v", l)
		}
	}
	if open != uint64(c.Open) {
		t.Errorf("%d connections on loops, %d in all", open, c.Open)
	}
	if s.Lag.Subscribers != 6 || len(s.Slowest) != 6 || s.Slowest[0].ID == "" {
		t.Errorf("lag of %d subscribers, %d slowest", s.Lag.Subscribers, len(s.Slowest))
	}
	if s.Channels.Count != 1 || len(s.Channels.Top) != 1 || s.Channels.Top[0].Name != "news" || s.Channels.Top[0].Subscribers != 6 {
		t.Errorf("channels %+v", s.Channels)
	}
	if s.Governor == nil || s.Governor.Enabled {
		t.Errorf("governor %+v", s.Governor)
	}
	var vars struct{ Weir admin.Snapshot }
	_, body := g.fetch(t, "/debug/vars")
	if err := json.Unmarshal(body, &vars); err != nil || vars.Weir.Traffic.Delivered != 120 || !bytes.Contains(body, []byte(`"memstats"`)) {
		t.Errorf("expvar: %v, delivered %d", err, vars.Weir.Traffic.Delivered)
	}
}

func TestRatesAreSinceTheSnapshotBefore(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 1, "")
	first := get[admin.Snapshot](t, g, "/api/snapshot")
	for i := range 50 {
		g.publish(t, "news", fmt.Sprint(i))
	}
	trial.Eventually(t, "delivered", func() bool { return g.hub.Stats().Delivered == 100 })
	var s admin.Snapshot
	trial.Eventually(t, "another snapshot", func() bool {
		s = get[admin.Snapshot](t, g, "/api/snapshot")
		return s.Time.After(first.Time)
	})
	n := s.Traffic.DeliveredRate * s.Interval
	if s.Traffic.Delivered < 100 { // it was made before the last of them
		return
	}
	if n < 99.5 || n > 100.5 || s.Traffic.FanOut < 1.9 || s.Traffic.FanOut > 2.1 {
		t.Errorf("%v delivered in %vs, fan-out %v", n, s.Interval, s.Traffic.FanOut)
	}
	sum := 0.0
	for _, l := range s.Loops {
		sum += l.Messages * s.Interval
		if l.Connections > 0 && (l.Ticks <= 0 || l.TickP99 <= 0 || l.TickP99 < l.TickP50) {
			t.Errorf("loop %+v", l)
		}
	}
	if sum < 99.5 || sum > 100.5 {
		t.Errorf("loops delivered %v", sum)
	}
}

// events reads a stream of the admin listener.
func (g *gateway) events(t *testing.T, path string) *stream {
	t.Helper()
	res, err := http.Get("http://" + g.AdminAddr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %d %s", path, res.StatusCode, res.Header.Get("Content-Type"))
	}
	return &stream{t: t, res: res, r: bufio.NewReader(res.Body)}
}

// data reads the next event with data.
func (s *stream) data() string {
	s.t.Helper()
	for {
		for line := range strings.Lines(s.block()) {
			if d, ok := strings.CutPrefix(line, "data: "); ok {
				return strings.TrimSuffix(d, "\n")
			}
		}
	}
}

func TestLiveDeliversAndStopsWithoutListeners(t *testing.T) {
	t.Parallel() // it mostly waits
	g := start(t, func(c *config.Config) { c.Admin.LiveRate = 4 })
	published := func() uint64 { return g.watching.watch.Sources().Snapshot(t.Context()).Self.Events }
	if n := published(); n != 0 {
		t.Fatalf("%d events before there was a listener", n)
	}
	for range 2 { // who comes later gets them as well
		s := g.events(t, "/api/live")
		var last admin.Snapshot
		for range 3 {
			var v admin.Snapshot
			if err := json.Unmarshal([]byte(s.data()), &v); err != nil {
				t.Fatal(err)
			}
			if !v.Time.After(last.Time) || v.Self.Listeners != 1 || len(v.Loops) != 2 {
				t.Fatalf("%v after %v, %d listeners, %d loops", v.Time, last.Time, v.Self.Listeners, len(v.Loops))
			}
			last = v
		}
		s.res.Body.Close()
		trial.Eventually(t, "no listener is left", func() bool { return g.watching.watch.Listeners() == 0 })
		made, quiet := published(), 0
		tick := time.NewTicker(300 * time.Millisecond) // more than a period
		for range 20 {
			<-tick.C
			if n := published(); n == made {
				if quiet++; quiet == 3 {
					break
				}
			} else {
				made, quiet = n, 0
			}
		}
		tick.Stop()
		if quiet < 3 {
			t.Fatal("snapshots are made without a listener")
		}
	}
}

func TestAConnectionIsDescribedAndDisconnected(t *testing.T) {
	t.Parallel() // it mostly waits
	g := start(t, withSecret)
	token := mint(t, auth.MintClaims{Subject: "ann", Subscribe: []string{"**"}})
	s := g.sse(t, "channel=a&channel=b&token="+token, "")
	s.block()
	w := g.ws(t, "channel=news&token="+token, "")
	trial.Eventually(t, "both are there", func() bool { return g.push.Stats().SSE == 1 && g.push.Stats().WebSocket == 1 })
	all := get[admin.Connections](t, g, "/api/connections")
	if all.Total != 2 {
		t.Fatalf("%+v", all)
	}
	for _, c := range all.Connections {
		d := get[admin.ConnectionDetail](t, g, "/api/connections/"+c.ID)
		if d.ID != c.ID || !strings.HasPrefix(d.Subject, "ann") || d.Peer != c.Peer || d.Open <= 0 || d.Stalled {
			t.Errorf("%+v", d)
		}
		slices.Sort(d.Channels)
		if want := map[string]string{"sse": "a b", "websocket": "news"}[c.Transport]; strings.Join(d.Channels, " ") != want {
			t.Errorf("%s follows %v, want %s", c.Transport, d.Channels, want)
		}
		if d.TCP == nil || d.TCP.Segments == 0 || d.TCP.RTT <= 0 {
			t.Errorf("the kernel says %+v", d.TCP)
		}
		if res, body := g.do(t, "POST", "/api/connections/"+c.ID+"/disconnect", ""); res.StatusCode != 204 {
			t.Errorf("disconnect: %d %s", res.StatusCode, body)
		}
	}
	if b := s.block(); !strings.Contains(b, "event: end") || !strings.Contains(b, `{"code":1012,"reason":"disconnected by the operator"}`) {
		t.Errorf("the stream ends with %q", b)
	}
	if code := w.CloseCode(); code != 1012 {
		t.Errorf("the socket ends with %d", code)
	}
	trial.Eventually(t, "both are gone", func() bool { return g.push.Stats().SSE == 0 && g.push.Stats().WebSocket == 0 })
	if _, body := g.fetch(t, "/metrics"); !bytes.Contains(body, []byte(`weir_subscribers_closed_total{reason="operator"} 2`)) {
		t.Error("it is not counted")
	}
	f := func(method, id string, status int) {
		t.Helper()
		path := "/api/connections/" + id
		if method == "POST" {
			path += "/disconnect"
		}
		if res, body := g.do(t, method, path, ""); res.StatusCode != status {
			t.Errorf("%s %s: %d %s, want %d", method, id, res.StatusCode, body, status)
		}
	}
	for _, method := range []string{"GET", "POST"} {
		f(method, all.Connections[0].ID, 404) // gone
		f(method, "18446744073709551615", 404)
		f(method, "0", 404)
		f(method, "-1", 400)
		f(method, "x", 400)
	}
}

func TestChannelsAreListedWithTheirMessages(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 2, "")
	s := g.sse(t, "channel=orders:eu/1", "")
	s.block()
	for i := range 30 {
		g.publish(t, "orders:eu/1", fmt.Sprintf(`{"n":%d}`, i))
	}
	g.publish(t, "news", `"x"`)
	f := func(query string, want ...string) {
		t.Helper()
		v := get[admin.Channels](t, g, "/api/channels"+query)
		var names []string
		for _, c := range v.Channels {
			names = append(names, c.Name)
		}
		if v.Total != 2 || !slices.Equal(names, want) {
			t.Errorf("%s: %v of %d, want %v", query, names, v.Total, want)
		}
	}
	f("?sort=subscribers", "news", "orders:eu/1")
	f("?sort=messages", "orders:eu/1", "news")
	f("?sort=name&limit=1", "news")
	for _, query := range []string{"?sort=age", "?limit=0", "?limit=x"} {
		if res, _ := g.fetch(t, "/api/channels"+query); res.StatusCode != 400 {
			t.Errorf("%s: %d", query, res.StatusCode)
		}
	}
	m := get[admin.Messages](t, g, "/api/channels/"+url.PathEscape("orders:eu/1")+"/messages?limit=3")
	if m.Channel != "orders:eu/1" || len(m.Messages) != 3 || m.Position == "" {
		t.Fatalf("%+v", m)
	}
	for i, x := range m.Messages {
		var v struct{ N int }
		if err := json.Unmarshal(x.Data, &v); err != nil || v.N != 27+i || x.Payload != "json" || x.ID == "" || x.Size != 8 || x.Time.IsZero() {
			t.Errorf("message %d: %+v %s", i, x, x.Data)
		}
	}
	if m := get[admin.Messages](t, g, "/api/channels/quiet/messages"); len(m.Messages) != 0 {
		t.Errorf("of a quiet channel: %+v", m)
	}
	for path, status := range map[string]int{"nowhere:x": 404, "%00": 400, "news/messages?limit=201&x=": 400} {
		if !strings.Contains(path, "/messages") {
			path += "/messages"
		}
		if res, body := g.fetch(t, "/api/channels/"+path); res.StatusCode != status {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
}

func TestTheOperatorPublishesAndSubscribes(t *testing.T) {
	g := start(t, nil)
	s := g.events(t, "/api/subscribe?channel=private:a&channel=news")
	s.block() // it is open
	res, body := g.do(t, "POST", "/api/publish", `{"channel":"private:a","data":{"a":1}}`)
	if res.StatusCode != 200 || !strings.Contains(string(body), `"offset":1`) {
		t.Fatalf("publish: %d %s", res.StatusCode, body)
	}
	var e struct {
		Channel string
		Data    json.RawMessage
	}
	if err := json.Unmarshal([]byte(s.data()), &e); err != nil || e.Channel != "private:a" || string(e.Data) != `{"a":1}` {
		t.Errorf("%+v %s, %v", e, e.Data, err)
	}
	f := func(method, path, body string, status int) {
		t.Helper()
		if res, b := g.do(t, method, path, body); res.StatusCode != status {
			t.Errorf("%s %s %s: %d %s, want %d", method, path, body, res.StatusCode, b, status)
		}
	}
	f("POST", "/api/publish", `{"channel":"nowhere:a","data":1}`, 404)
	f("POST", "/api/publish", `{"channel":"a"}`, 400)
	f("POST", "/api/publish", `{`, 400)
	f("POST", "/api/publish", strings.Repeat(" ", 3<<20), 413)
	f("GET", "/api/publish", "", 405)
	f("GET", "/api/subscribe", "", 400)
	f("GET", "/api/subscribe?channel=nowhere:a", "", 404)
	s.res.Body.Close()
}

// whole checks that a finished trace is complete and that time never runs back in it.
func whole(t *testing.T, x admin.Trace, loops int, delivered uint64) {
	t.Helper()
	if x.State != admin.TraceDone || x.Position == "" || x.Accepted.IsZero() || x.Bytes == 0 || x.Error != "" {
		t.Errorf("%+v", x)
	}
	if x.Stored <= 0 || x.Delivered <= 0 || x.Queued < x.Delivered || x.Done < x.Queued || x.Done < x.Stored {
		t.Errorf("stored %v, delivered %v, queued %v, done %v", x.Stored, x.Delivered, x.Queued, x.Done)
	}
	if len(x.Shards) != loops {
		t.Errorf("%d loops took part, want %d: %+v", len(x.Shards), loops, x.Shards)
	}
	var n, sends uint64
	for i, s := range x.Shards {
		if i > 0 && s.Loop <= x.Shards[i-1].Loop || s.Written < s.Woken || s.Written < x.Delivered || s.Written > x.Done || s.Sends == 0 || s.Bytes == 0 {
			t.Errorf("%+v", s)
		}
		n += s.Delivered
		sends += s.Sends
	}
	if n != delivered || sends < delivered {
		t.Errorf("%d delivered with %d sends, want %d", n, sends, delivered)
	}
}

func TestAMessageIsTracedToItsSockets(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 20, "")
	loops := 0
	for _, l := range g.loops.Loops() {
		if l.Stats().Open > 0 {
			loops++
		}
	}
	begin := func(body string) admin.Trace {
		t.Helper()
		res, b := g.do(t, "POST", "/api/trace", body)
		var x admin.Trace
		if err := json.Unmarshal(b, &x); err != nil || res.StatusCode != 202 || res.Header.Get("Location") != "/api/trace/"+x.ID {
			t.Fatalf("%d %s", res.StatusCode, b)
		}
		return x
	}
	x := begin(`{"channel":"news","data": {"traced": true} }`)
	whole(t, get[admin.Trace](t, g, "/api/trace/"+x.ID+"?wait=1"), loops, 40)

	x = begin(`{"channel":"news"}`) // follow the next
	if x.State != admin.TraceWaiting {
		t.Errorf("state %s before anything is published", x.State)
	}
	g.publish(t, "orders:other", "1")
	if now := get[admin.Trace](t, g, "/api/trace/"+x.ID); now.State != admin.TraceWaiting {
		t.Errorf("followed another channel: %+v", now)
	}
	g.publish(t, "news", "2")
	whole(t, get[admin.Trace](t, g, "/api/trace/"+x.ID+"?wait=1"), loops, 40)

	x = begin(`{"channel":"orders:silent","timeout_seconds":0.05}`)
	if x = get[admin.Trace](t, g, "/api/trace/"+x.ID+"?wait=1"); x.State != admin.TraceExpired {
		t.Errorf("%+v, want it expired", x)
	}
	x = begin(`{"channel":"orders:empty","data":1}`) // no subscriber: it is done when it is stored
	if x = get[admin.Trace](t, g, "/api/trace/"+x.ID+"?wait=1"); x.State != admin.TraceDone || len(x.Shards) != 0 {
		t.Errorf("%+v, want it done without loops", x)
	}
	x = begin(fmt.Sprintf(`{"channel":"news","data":%q}`, strings.Repeat("x", 100<<10)))
	if x = get[admin.Trace](t, g, "/api/trace/"+x.ID+"?wait=1"); x.State != admin.TraceFailed || !strings.Contains(x.Error, "too large") {
		t.Errorf("%+v, want it failed", x)
	}
	f := func(body string, status int) {
		t.Helper()
		if res, b := g.do(t, "POST", "/api/trace", body); res.StatusCode != status {
			t.Errorf("%s: %d %s, want %d", body, res.StatusCode, b, status)
		}
	}
	f(`{"channel":""}`, 400)
	f(`{"channel":"nowhere:a"}`, 404)
	f(`{"channel":"a","timeout_seconds":61}`, 400)
	f(`{"channel":"a","timeout_seconds":-1}`, 400)
	f(`{"chanel":"a"}`, 400)
	f("{\"channel\":\"a\",\"data\":\"\xff\"}", 400)
	if res, _ := g.fetch(t, "/api/trace/unknown"); res.StatusCode != 404 {
		t.Errorf("an unknown trace: %d", res.StatusCode)
	}
	for range 8 {
		f(`{"channel":"orders:busy"}`, 202)
	}
	f(`{"channel":"orders:busy"}`, 429)
	g.publish(t, "orders:busy", "1") // one of them
}

func TestDeliveriesAreSampled(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 5, "")
	var n uint64
	trial.Eventually(t, "some are followed to the sockets", func() bool {
		g.publish(t, "news", "1")
		d, s := g.watching.probe.Deliveries(), g.watching.probe.Stores()
		n = d.Total()
		return n >= 20 && s.Total() >= 10
	})
	trial.Eventually(t, "nothing is left under way", func() bool { return g.underWay() == 0 })
	if d := g.watching.probe.Deliveries(); d.Quantile(0.5) <= 0 || d.Quantile(0.999) > 30 {
		t.Errorf("median %v s, nearly all below %v s", d.Quantile(0.5), d.Quantile(0.999))
	}
}

func TestManyPublishersAreFollowedWithoutLoss(t *testing.T) {
	g := start(t, nil)
	g.subscribers(t, 5, "")
	var wg sync.WaitGroup
	const each = 300
	for range 4 {
		wg.Go(func() {
			for range each {
				g.put(t, "news", `"same"`) // bytes that cannot be distinguished
			}
		})
	}
	wg.Wait()
	trial.Eventually(t, "all have it", func() bool { return g.hub.Stats().Delivered == 4*each*10 })
	trial.Eventually(t, "nothing is left under way", func() bool {
		if g.underWay() == 0 {
			return true
		}
		g.put(t, "news", `"other"`) // what was mistaken for another is given up while messages come
		return false
	})
	if d := g.watching.probe.Deliveries(); d.Total() == 0 {
		t.Error("none was followed")
	}
}

// The scrapes continue while a thousand clients are written to, and what they say adds up.
func TestScrapesWhileAThousandConnectionsAreBusy(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Governor.Enabled = setting.On })
	streams, sockets := g.subscribers(t, 500, "")
	var readers sync.WaitGroup
	for _, c := range slices.Concat(streams, sockets) {
		readers.Go(func() { _, _ = io.Copy(io.Discard, c.Conn) })
	}
	defer func() {
		for _, c := range slices.Concat(streams, sockets) {
			_ = c.Close()
		}
		readers.Wait()
	}()
	stop := make(chan struct{})
	var publisher sync.WaitGroup
	published := uint64(0)
	publisher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if g.hub.Stats().QueueDepth > 2 { // as fast as they take it
					runtime.Gosched()
					continue
				}
				g.put(t, "news", `"busy"`)
				published++
			}
		}
	})
	last := map[string]float64{}
	for range 6 {
		_, body := g.fetch(t, "/metrics")
		for _, name := range []string{"weir_messages_delivered_total", "weir_sends_total", "weir_delivery_seconds_count", "weir_loop_tick_seconds_count", "weir_loop_busy_seconds_total"} {
			v := value(t, body, name)
			if v < last[name] {
				t.Errorf("%s fell from %v to %v", name, last[name], v)
			}
			last[name] = v
		}
		get[admin.Snapshot](t, g, "/api/snapshot")
	}
	close(stop)
	publisher.Wait()
	trial.Eventually(t, "all have it", func() bool { return g.hub.Stats().Delivered == published*1000 })
	_, body := g.fetch(t, "/metrics")
	if v := value(t, body, "weir_messages_delivered_total"); v != float64(published*1000) {
		t.Errorf("%v delivered of %d to 1,000", v, published)
	}
	if last["weir_delivery_seconds_count"] == 0 {
		t.Error("no delivery was timed")
	}
}

// value reads a series without labels.
func value(t *testing.T, body []byte, name string) float64 {
	t.Helper()
	for line := range strings.Lines(string(body)) {
		if s, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no %s", name)
	return 0
}
