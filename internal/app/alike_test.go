package app

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A played request is asked over all versions of HTTP, and answered alike.
type played struct {
	method, path, fields, body string // fields: "Name: value", one a line
}

// outcome is what a client sees of an answer, and what must be the same.
type outcome struct {
	Status  int
	Headers map[string][]string
	Body    string // of an answer that ends; of a stream its end, if it is closed by the server
}

// differing are header fields in which the versions differ, and those of which
// only the presence is compared.
var (
	differing = []string{"Connection", "Date", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Upgrade", "Alt-Svc"}
	present   = []string{"Retry-After"}
)

func (p played) request(t *testing.T, c *http.Client, url string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, p.method, url+p.path, strings.NewReader(p.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "")
	req.Header.Set("Accept-Encoding", "identity")
	for line := range strings.Lines(p.fields) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		req.Header.Add(name, value)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", p.method, p.path, err)
		return outcome{}
	}
	defer res.Body.Close()
	o := outcome{Status: res.StatusCode, Headers: map[string][]string{}}
	for name, values := range res.Header {
		switch {
		case slices.Contains(differing, name):
		case slices.Contains(present, name):
			o.Headers[name] = []string{"some"}
		default:
			o.Headers[name] = values
		}
	}
	if o.Status == http.StatusOK && strings.HasPrefix(p.path, "/.well-known/") && p.method == "GET" {
		return o // such a stream may start with nothing
	}
	buf := make([]byte, 4<<10)
	for n := 0; n < len(buf); {
		k, err := res.Body.Read(buf[n:])
		n += k
		o.Body = string(buf[:n])
		if strings.Contains(o.Body, "\nid: ") {
			return outcome{o.Status, o.Headers, "a stream"}
		}
		if err != nil {
			break
		}
	}
	o.Body = randomless(o.Body)
	return o
}

// randomless removes from an answer what is another every time.
func randomless(body string) string {
	var kept []string
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "retry: ") && !strings.HasPrefix(line, "id: ") && !strings.Contains(line, `"epoch":`) && !strings.Contains(line, "urn:uuid") {
			kept = append(kept, line)
		}
	}
	return strings.TrimSpace(strings.Join(kept, ""))
}

// counted are the counters of a gateway that all versions share, by name.
func (g *gateway) counted() map[string]uint64 {
	p, f := g.push.Stats(), g.admission.front.Stats()
	all := map[string]uint64{
		"published": p.Published, "publish errors": p.PublishErrors, "overloaded": p.Overloaded,
		"rejected": p.Drained, "limited publish": f.Publish, "limited subscribe": f.Subscribe, "too slow": p.TooSlow,
	}
	for _, s := range g.watching.watch.AdmissionStats() {
		name := s.Class.String()
		all[name+" offered"], all[name+" admitted"], all[name+" refused"], all[name+" expired"] = s.Offered, s.Admitted, s.Refused, s.Expired
		all[name+" conflated"], all[name+" queued"] = s.Conflated, uint64(s.Queued)
	}
	return all
}

func TestAllVersionsAnswerAndCountAlike(t *testing.T) {
	b := backend(t, "b")
	cert, pool := selfSigned(t, t.TempDir(), 1)
	const key = "X-API-Key: " + testKey
	publish := func(channel, more string) played {
		return played{"POST", "/api/publish", key, `{"channel":"` + channel + `","data":1` + more + `}`}
	}
	f := func(what string, change func(*config.Config), ready func(*gateway), requests ...played) {
		t.Run(what, func(t *testing.T) {
			versions := [...]string{"HTTP/1.1", "HTTP/2", "HTTP/3"}
			var answers [len(versions)][]outcome
			var counters [len(versions)]map[string]uint64
			for i := range answers {
				g := start(t, func(c *config.Config) {
					withClasses(c)
					c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure", Anonymous: true, Class: "account"}, hub.Namespace{Name: "closed", Class: "order"})
					c.Mercure.Enabled, c.Mercure.Anonymous = true, true
					c.Clusters = []upstream.Config{b}
					c.Routes = []policy.RouteConfig{{Path: "/trade/*", Cluster: "b", Class: "order"}, {Path: "/late/*", Cluster: "b", Class: "replay"},
						{Path: "/free/*", Cluster: "b"}}
					if i == 2 {
						c.TLS.Certificates, c.Downstream.HTTP3 = []tlsterm.Certificate{cert}, true
					}
					if change != nil {
						change(c)
					}
				})
				if ready != nil {
					ready(g)
				}
				c := &http.Client{Transport: &http.Transport{}, Timeout: trial.Patience}
				switch i {
				case 1:
					c = overHTTP2(t, nil)
				case 2:
					c = overHTTP3(t, pool)
				}
				for _, p := range requests {
					answers[i] = append(answers[i], p.request(t, c, g.URL()))
				}
				c.CloseIdleConnections()
				trial.Eventually(t, "the streams to be gone", func() bool {
					return (&departure{App: g.App}).streams() == 0
				})
				counters[i] = g.counted()
			}
			for i := 1; i < len(versions); i++ {
				for k, p := range requests {
					if a, b := fmt.Sprintf("%+v", answers[0][k]), fmt.Sprintf("%+v", answers[i][k]); a != b {
						t.Errorf("%s %s %.60s\n%s: %s\n%s: %s", p.method, p.path, p.body, versions[0], a, versions[i], b)
					}
				}
				for _, name := range slices.Sorted(maps.Keys(counters[0])) {
					if a, b := counters[0][name], counters[i][name]; a != b {
						t.Errorf("%s: %d over %s, %d over %s", name, a, versions[0], b, versions[i])
					}
				}
			}
			if t.Failed() {
				t.Logf("%v", counters[0])
			}
		})
	}
	sse := func(query, fields string) played { return played{"GET", "/sse?" + query, fields, ""} }
	f("with time for all", nil, nil,
		publish("orders:a", ""), publish("market:a", `,"key":"k"`), publish("history:a", ""), publish("a", ""), publish("nowhere:a", ""), publish("closed:a", ""),
		played{"POST", "/api/broadcast", key, `{"channels":["orders:a","market:a","nowhere:a"],"data":1}`},
		played{"POST", "/api/publish", key, `{"channel":`}, played{"POST", "/api/publish", "", `{"channel":"a","data":1}`}, played{"POST", "/api/publish", "X-API-Key: no", `{}`},
		played{"GET", "/api/publish", key, ""}, played{"OPTIONS", "/api/publish", "Origin: https://a.example\nAccess-Control-Request-Method: POST", ""},
		sse("channel=orders:a", ""), sse("channel=history:a", "Last-Event-ID: 0"), sse("channel=history:a&lastEventId=0", ""), sse("channel=closed:a", ""),
		sse("", ""), sse("channel=nowhere:a", ""), sse("channel=a", "Origin: https://a.example"),
		played{"GET", "/trade/1?x=1", "", ""}, played{"POST", "/trade/1", "", "body"}, played{"GET", "/late/1", "", ""}, played{"GET", "/free/1", "", ""},
		played{"GET", "/.well-known/mercure?topic=a", "", ""}, played{"GET", "/.well-known/mercure?topic=a&lastEventID=earliest", "", ""},
		played{"GET", "/.well-known/mercure", "", ""}, played{"POST", "/.well-known/mercure", "Content-Type: application/x-www-form-urlencoded", "topic=a&data=1"},
		played{"GET", "/healthz", "", ""}, played{"GET", "/readyz", "", ""}, played{"GET", "/none", "", ""}, played{"GET", "/ws?channel=a", "", ""})
	rest := func(g *gateway) {
		g.guard(0.05, true)
	}
	f("while history rests", nil, rest,
		publish("orders:a", ""), publish("market:a", ""), sse("channel=history:a", "Last-Event-ID: 0"), sse("channel=history:a&lastEventId=0", "Origin: https://a.example"),
		sse("channel=history:a", ""), sse("channel=a", "Last-Event-ID: 0"), played{"GET", "/late/1", "", ""}, played{"POST", "/late/1", "", "body"},
		played{"GET", "/late/1", "Origin: https://a.example", ""}, played{"GET", "/trade/1", "", ""}, played{"GET", "/.well-known/mercure?topic=a&lastEventID=earliest", "", ""},
		played{"GET", "/.well-known/mercure?topic=a", "", ""})
	f("with limits by address", func(c *config.Config) {
		c.Limits.PerAddress.PublishRate = limit.Rate{PerSecond: 0.01, Burst: 2}
		c.Limits.PerAddress.SubscribeRate = limit.Rate{PerSecond: 0.01, Burst: 1}
	}, nil, publish("orders:a", ""), publish("a", ""), publish("orders:a", ""), publish("a", ""), sse("channel=a", ""), sse("channel=a", ""), sse("channel=history:a", "Last-Event-ID: 0"))
	f("with limits by identity", func(c *config.Config) {
		c.Limits.PerIdentity.PublishRate = limit.Rate{PerSecond: 0.01, Burst: 1}
	}, nil, publish("orders:a", ""), publish("a", ""))
	f("with too little memory", nil, func(g *gateway) { g.push.Refuse(true) },
		sse("channel=a", ""), sse("channel=history:a", "Last-Event-ID: 0"), publish("orders:a", ""), played{"GET", "/.well-known/mercure?topic=a", "", ""})
}

// TestOverloadOverHTTP2IsAnsweredAndCounted offers more than the queue takes: anyone who is not
// served gets an error, and every counter adds up with the answers.
func TestOverloadOverHTTP2IsAnsweredAndCounted(t *testing.T) {
	g := start(t, func(c *config.Config) {
		withClasses(c)
		c.EventLoop.Loops, c.Admission.Slice, c.Admission.MaxQueued = 1, 1, 4
	})
	c := overHTTP2(t, nil)
	type reported struct {
		status int
		after  string
	}
	answers := make(chan reported)
	const n = 400
	for i := range n {
		go func() {
			body := `{"channel":"orders:a","data":1}`
			if i%2 == 0 {
				body = `{"channel":"market:a","data":1}`
			}
			req, _ := http.NewRequest(http.MethodPost, g.url+"/api/publish", strings.NewReader(body)) //nolint:noctx // bounded by the client
			req.Header.Set("X-API-Key", testKey)
			res, err := c.Do(req)
			if err != nil {
				answers <- reported{}
				return
			}
			_, _ = io.Copy(io.Discard, res.Body) // its status is what counts
			_ = res.Body.Close()
			answers <- reported{res.StatusCode, res.Header.Get("Retry-After")}
		}()
	}
	served, refused := 0, 0
	for range n {
		switch a := <-answers; {
		case a.status == http.StatusOK:
			served++
		case a.status == http.StatusServiceUnavailable && a.after != "":
			refused++
		default:
			t.Errorf("%+v", a)
		}
	}
	var sum limit.ClassStats
	for _, s := range g.watching.watch.AdmissionStats() {
		sum.Offered, sum.Admitted, sum.Refused, sum.Expired = sum.Offered+s.Offered, sum.Admitted+s.Admitted, sum.Refused+s.Refused, sum.Expired+s.Expired
		sum.Queued += s.Queued
	}
	if sum.Offered != n || int(sum.Admitted) != served || int(sum.Refused+sum.Expired) != refused || sum.Queued != 0 {
		t.Errorf("%d served and %d refused, but %+v", served, refused, sum)
	}
	if s := g.push.Stats(); int(s.PublishErrors) != refused || int(s.Published) != served {
		t.Errorf("%d published and %d refused are counted", s.Published, s.PublishErrors)
	}
}
