package loadgen_test

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// serve starts a server of the handler and returns its URL.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// generator makes a generator and closes it with the test.
func generator(t *testing.T, spec loadgen.Spec) *loadgen.Generator {
	t.Helper()
	if spec.Warmup == 0 && spec.Requests == 0 {
		spec.Warmup = time.Millisecond
	}
	g, err := loadgen.New(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// measure makes one window, and closes the generator.
func measure(t *testing.T, spec loadgen.Spec, load loadgen.Load, d time.Duration) *loadgen.Window {
	t.Helper()
	g := generator(t, spec)
	w, err := g.Measure(context.Background(), load, d)
	if err != nil {
		t.Fatal(err)
	}
	_ = g.Close()
	return w
}

func failures(w *loadgen.Window) (n uint64) {
	for why, k := range w.Errors {
		if !strings.HasPrefix(why, "connect") && !strings.HasPrefix(why, "disconnect") {
			n += k
		}
	}
	return n
}

// addsUp checks that every arrival is accounted for.
func addsUp(t *testing.T, w *loadgen.Window) {
	t.Helper()
	if w.Offered != w.Sent+w.Dropped {
		t.Errorf("offered %d, but sent %d and dropped %d", w.Offered, w.Sent, w.Dropped)
	}
	if w.Sent != w.Completed+w.Drained+failures(w) {
		t.Errorf("sent %d, but completed %d, drained %d and errors %v", w.Sent, w.Completed, w.Drained, w.Errors)
	}
}

// faultless checks that everything offered was answered in order.
func faultless(t *testing.T, w *loadgen.Window, offered uint64) {
	t.Helper()
	addsUp(t, w)
	if w.Offered != offered || len(w.Errors) > 0 || w.Dropped > 0 {
		t.Errorf("offered %d, errors %v, dropped %d; want %d and nothing", w.Offered, w.Errors, w.Dropped, offered)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }

func TestEveryArrivalIsAccountedFor(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Millisecond) }) // the service itself
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 40, Arrival: loadgen.Uniform}, loadgen.Load{Rate: 500}, time.Second)
	faultless(t, w, 500)
	if n := w.Response.TotalCount(); n != 500 {
		t.Errorf("%d response times, want 500", n)
	}
	if w.Connect == nil || w.Connect.TotalCount() != 40 || w.BytesIn == 0 || w.BytesOut == 0 || w.Conns < 35 {
		t.Errorf("connect %v, bytes %d and %d, conns %v", w.Connect, w.BytesIn, w.BytesOut, w.Conns)
	}
	// Little's law: what is under way is the rate times the time.
	if l, xr := w.InFlight, w.Response.Mean()/1e6*500/w.Length.Seconds(); l < 0.7*xr || l > 1.3*xr {
		t.Errorf("%.4f in flight, but rate times response is %.4f", l, xr)
	}
}

func TestSeveralLoopsShareTheLoad(t *testing.T) {
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Conns: 9, Loops: 3, Arrival: loadgen.Burst, Burst: 20},
		loadgen.Load{Rate: 400}, time.Second)
	faultless(t, w, 400)
}

func TestErrorsHaveTheirReason(t *testing.T) {
	var n atomic.Int64
	f := func(want string, count uint64, h http.HandlerFunc) {
		t.Helper()
		n.Store(0)
		w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, h), Conns: 2, Arrival: loadgen.Uniform, Timeout: 300 * time.Millisecond},
			loadgen.Load{Rate: 50}, 400*time.Millisecond)
		addsUp(t, w)
		if w.Offered != 20 || w.Errors[want] != count {
			t.Errorf("%d offered, errors %v; want 20, and %d of %q", w.Offered, w.Errors, count, want)
		}
	}
	f("status 503", 4, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%5 == 0 {
			w.WriteHeader(503)
		}
	})
	f("closed by the server", 4, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%5 == 0 {
			panic(http.ErrAbortHandler)
		}
	})
	f("timeout", 1, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 7 {
			<-r.Context().Done()
		}
	})
	f("status 404", 20, http.NotFound)
	f("closed by the server", 0, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close") })
}

func TestReconnectsAreCounted(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close") })
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 2, Arrival: loadgen.Uniform}, loadgen.Load{Rate: 40}, 500*time.Millisecond)
	faultless(t, w, 20)
	if w.Reconnects < 15 || w.Reconnects > 20 {
		t.Errorf("%d reconnects for 20 responses that each end their connection", w.Reconnects)
	}
}

// respond is a server that answers each request with the next of the texts, cut
// into pieces.
func respond(t *testing.T, piece int, texts ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.(*net.TCPConn).SetNoDelay(true)
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					text := texts[int(n.Add(1)-1)%len(texts)]
					for rest := text; len(rest) > 0; {
						k := min(piece, len(rest))
						if _, err := io.WriteString(c, rest[:k]); err != nil {
							return
						}
						rest = rest[k:]
					}
					if strings.Contains(text, "close") {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func TestResponsesMayComeInAnyPieces(t *testing.T) {
	texts := []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
	}
	for _, piece := range []int{1, 2, 3, 7, 20, 1000} {
		w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: respond(t, piece, texts...), Arrival: loadgen.Uniform},
			loadgen.Load{Rate: 100}, 210*time.Millisecond)
		addsUp(t, w)
		if w.Completed+w.Drained != 18 || w.Errors["status 404"] != 3 || len(w.Errors) != 1 {
			t.Errorf("pieces of %d: %d right answers and %v, want 18 and 3 of status 404", piece, w.Completed+w.Drained, w.Errors)
		}
	}
}

func TestBadResponsesAreErrors(t *testing.T) {
	f := func(want, text string) {
		t.Helper()
		w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: respond(t, 1000, text), Arrival: loadgen.Uniform}, loadgen.Load{Rate: 10}, 200*time.Millisecond)
		addsUp(t, w)
		if failures(w) != 2 {
			t.Errorf("%q: errors %v, want 2", text, w.Errors)
		}
		for why := range w.Errors {
			if !strings.HasPrefix(why, want) {
				t.Errorf("%q: %q, want %q", text, why, want)
			}
		}
	}
	f("bad response: ", "nonsense\r\n\r\n")
	f("bad response: ", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	f("closed by the server", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nshort")
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Pipeline: 400, Arrival: loadgen.Burst, Burst: 16},
		loadgen.Load{Rate: 1600}, 500*time.Millisecond)
	faultless(t, w, 800)
	if w.Waited != 0 {
		t.Errorf("%d arrivals waited though 400 may be outstanding", w.Waited)
	}
}

func TestBodyAndHeadersAreSent(t *testing.T) {
	var bad atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method != "POST" || string(b) != "the body" || r.Header.Get("X-Test") != "yes" || r.Host != "other.example" || r.URL.Path != "/n/0" {
			bad.Add(1)
		}
	})
	faultless(t, measure(t, loadgen.Spec{
		Kind: loadgen.HTTP, Target: url + "/n/{n}", Body: "the body", Headers: []string{"X-Test: yes", "Host: other.example"}, Arrival: loadgen.Uniform,
	}, loadgen.Load{Rate: 100}, 100*time.Millisecond), 10)
	if bad.Load() > 0 {
		t.Errorf("%d requests were not as requested", bad.Load())
	}
}

func TestAStallShowsInResponseAndNotInService(t *testing.T) {
	var n atomic.Int64
	gate := make(chan struct{}, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		gate <- struct{}{} // one at a time
		if n.Add(1) == 300 {
			time.Sleep(200 * time.Millisecond) // the stall itself
		}
		<-gate
	})
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 1, Arrival: loadgen.Uniform}, loadgen.Load{Rate: 1000}, time.Second)
	faultless(t, w, 1000)
	// About 200 arrivals were intended during the stall: far more than 1 %. Only one
	// request was really blocked.
	if p := w.Response.ValueAtPercentile(95); p < 100_000 {
		t.Errorf("response P95 is %d µs: the stall was omitted", p)
	}
	if slow := above(w, 150_000); slow.response < 30 || slow.service*5 > slow.response {
		t.Errorf("%d responses and %d services of 150 ms; one request was stalled, and some fifty arrivals waited as long", slow.response, slow.service)
	}
	if w.Service.Max() < 190_000 {
		t.Errorf("the longest service is %d µs, want the stall of 200 ms", w.Service.Max())
	}
	if w.Waited < 150 {
		t.Errorf("%d arrivals waited for the connection, want some 200", w.Waited)
	}
}

type counted struct{ response, service int64 }

// above counts what took longer than us microseconds.
func above(w *loadgen.Window, us int64) (n counted) {
	for _, b := range w.Response.Distribution() {
		if b.From >= us {
			n.response += b.Count
		}
	}
	for _, b := range w.Service.Distribution() {
		if b.From >= us {
			n.service += b.Count
		}
	}
	return n
}

func TestArrivalsBeyondTheCapAreDropped(t *testing.T) {
	release := make(chan struct{})
	url := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	time.AfterFunc(800*time.Millisecond, func() { close(release) })
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 5, MaxInFlight: 12, Arrival: loadgen.Uniform},
		loadgen.Load{Rate: 1000}, 200*time.Millisecond)
	addsUp(t, w)
	if w.Offered != 200 || w.Dropped != 188 || w.Sent != 12 || w.Drained != 12 || w.Waited != 7 {
		t.Errorf("offered %d, dropped %d, sent %d, drained %d, waited %d; want 200, 188, 12, 12, 7", w.Offered, w.Dropped, w.Sent, w.Drained, w.Waited)
	}
}

func TestAServerThatIsGoneIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	err = generator(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url}).Connect(context.Background())
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v, want the address and that it refused", err)
	}
}

func TestClosedLoopKeepsItsConcurrency(t *testing.T) {
	var now, most atomic.Int64
	url := serve(t, func(http.ResponseWriter, *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(5 * time.Millisecond) // the service itself
		now.Add(-1)
	})
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: 20}, loadgen.Load{Concurrency: 7}, 500*time.Millisecond)
	addsUp(t, w)
	if most.Load() != 7 || w.InFlight < 5.5 || w.InFlight > 7.1 {
		t.Errorf("at most %d at a time, %.2f in the mean; want 7", most.Load(), w.InFlight)
	}
	if w.Offered < 50 || w.Dropped > 0 || len(w.Errors) > 0 {
		t.Errorf("%+v", w)
	}
}

func TestTLSTarget(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(hello))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	spec := loadgen.Spec{Kind: loadgen.HTTP, Target: s.URL, Conns: 3, Arrival: loadgen.Uniform}
	if err := generator(t, spec).Connect(context.Background()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
	spec.Insecure = true
	w := measure(t, spec, loadgen.Load{Rate: 200}, 500*time.Millisecond)
	faultless(t, w, 100)
	if w.BytesIn == 0 || w.BytesOut == 0 {
		t.Error("no bytes were counted")
	}
}

func TestHTTP2HasExactlyItsStreams(t *testing.T) {
	f := func(secure bool) {
		t.Helper()
		var now, most, conns atomic.Int64
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				w.WriteHeader(505)
			}
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(10 * time.Millisecond) // the service itself
			now.Add(-1)
		}))
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP2(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
			if st == http.StateNew {
				conns.Add(1)
			}
		}
		s.EnableHTTP2 = true
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: s.URL, Version: "2", Insecure: true, Conns: 2, Pipeline: 5},
			loadgen.Load{Concurrency: 10}, 500*time.Millisecond)
		addsUp(t, w)
		if most.Load() != 10 || conns.Load() != 2 || len(w.Errors) > 0 || w.Completed < 50 {
			t.Errorf("%d streams on %d connections, completed %d, errors %v; want 10 on 2", most.Load(), conns.Load(), w.Completed, w.Errors)
		}
	}
	f(false)
	f(true)
}

// A connection that the server ends while it is idle, with GOAWAY and a second later the TCP connection, is made
// again; a request on it meanwhile has failed.
func TestIdleHTTP2ConnectionsThatEndAreMadeAgain(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.IdleTimeout = 50 * time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	w := measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: s.URL, Version: "2", Conns: 2, Arrival: loadgen.Uniform}, loadgen.Load{Rate: 5}, 2*time.Second)
	addsUp(t, w)
	if w.Offered != 10 || w.Reconnects < 4 {
		t.Errorf("%d connections were made again: %v", w.Reconnects, w.Errors)
	}
}

// TestTLSCarriesEverything runs each kind over TLS.
func TestTLSCarriesEverything(t *testing.T) {
	w := newWorld(t, nil)
	s := httptest.NewTLSServer(http.HandlerFunc(w.serve))
	t.Cleanup(func() {
		w.kick()
		s.CloseClientConnections()
		s.Close()
	})
	for _, transport := range []string{"ws", "sse"} {
		spec := plain(w, transport, 5)
		spec.Target, spec.Publish, spec.Insecure = s.URL+"/sub/room", s.URL+"/pub/room", true
		whole(t, transport, measure(t, spec, loadgen.Load{Rate: 100}, 300*time.Millisecond), 30, 150)
	}
	win := measure(t, loadgen.Spec{Kind: loadgen.Echo, Target: s.URL + "/echo?channel=x", Insecure: true, Conns: 3, Arrival: loadgen.Uniform},
		loadgen.Load{Rate: 200}, 300*time.Millisecond)
	faultless(t, win, 60)
}

func TestEitherEngineMakesTheLoad(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} { // which falls back where there is none
		faultless(t, measure(t, loadgen.Spec{Kind: loadgen.HTTP, Target: serve(t, hello), Conns: 4, Engine: engine, Arrival: loadgen.Uniform},
			loadgen.Load{Rate: 300}, 300*time.Millisecond), 90)
		w := newWorld(t, nil)
		spec := plain(w, "ws", 5)
		spec.Engine = engine
		whole(t, engine, measure(t, spec, loadgen.Load{Rate: 100}, 300*time.Millisecond), 30, 150)
	}
}
