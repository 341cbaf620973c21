package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// serveHTTP3 serves h until the test ends, and returns the address.
func serveHTTP3(t *testing.T, h http.Handler) string {
	t.Helper()
	cert, key, err := program.Certificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}), Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(udp) }()
	t.Cleanup(func() { _ = srv.Close(); <-served; _ = udp.Close() })
	return udp.LocalAddr().String()
}

// TestSubscribersOverHTTP3CountDeliveries has a server of HTTP/3 send marks over streams of
// two connections.
func TestSubscribersOverHTTP3CountDeliveries(t *testing.T) {
	subscribed, publish := make(chan string, 10), make(chan struct{})
	addr := serveHTTP3(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		subscribed <- r.RemoteAddr + " " + r.RequestURI + " " + r.Header.Get("Accept")
		<-publish
		_, _ = io.WriteString(w, "data: ^"+strings.Repeat("x", 9000)+"\n\ndata: ^\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	s, err := subscribe(t.Context(), addr, way{3, true, 4}, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer s.reset()
	if len(s.conns) != 2 || len(s.conns[0].h3.streams) != 4 || len(s.conns[1].h3.streams) != 1 {
		t.Errorf("5 subscribers with 4 a connection have %d connections", len(s.conns))
	}
	from := map[string]int{}
	for range 5 {
		addr, rest, _ := strings.Cut(<-subscribed, " ")
		if from[addr]++; rest != "/sse?channel=c text/event-stream" {
			t.Errorf("the server got %q", rest)
		}
	}
	if len(from) != 2 {
		t.Errorf("they come from %v, want two addresses", from)
	}
	d := s.deliveries()
	d.want.Store(10)
	close(publish)
	trial.Eventually(t, "all deliveries are counted", func() bool { return d.got.Load() == 10 })
	<-d.all
	s.conns[1].reset()
	if err := <-d.failed; err == nil {
		t.Error("a connection that ended is not an error")
	}
}

func TestRefusedSubscribersOverHTTP3AreAnError(t *testing.T) {
	s, err := subscribe(t.Context(), serveHTTP3(t, http.NotFoundHandler()), way{3, true, 2}, 2)
	defer s.reset()
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want the status", err)
	}
}

// TestHTTP3IsComparedWithinARound computes a table's row from samples: the ratio is that to
// HTTP/1.1 over TLS in the same round, and rounds that others disturbed are left out.
func TestHTTP3IsComparedWithinARound(t *testing.T) {
	scenarios := scenarios(options{idle: 100, subscribers: 100, megabytes: 1})
	for _, name := range []string{"memory", "fanout"} {
		s := scenarios[slices.IndexFunc(scenarios, func(s *scenario) bool { return s.name == name })]
		for _, w := range []way{{3, true, 1}, {3, true, 100}, {2, true, 1}, {2, true, 100}, {1, true, 1}} {
			if !slices.Contains(s.ways, w) {
				t.Errorf("%s is not measured over %s", name, w)
			}
		}
		s.got = make([][]sample, len(s.ways))
		for i, w := range s.ways {
			for round := range 4 {
				cpu := float64(2 * (round + 1))
				if w.version == 3 {
					cpu *= 3 + float64(round)
				}
				m := sample{"cpu": cpu, "rate": 1000, "rss": 100 * cpu, "live": 50, "goroutines": 0.25, "connect": 7}
				if w == (way{3, true, 100}) && round == 3 {
					m["others"] = noisePercent
				}
				s.got[i] = append(s.got[i], m)
			}
		}
		r := &report{}
		r.add(s)
		want := map[string]string{
			"fanout": "| HTTP/3, 100 a connection, TLS | 16.00 | 3.00 / **4.00** / 5.00 | – | – | 1000 | 3/4 |\n",
			"memory": "| HTTP/3, 100 a connection, TLS | 1600 | – | – | 50 | 0.25 | – | – | 7 | 3/4 |\n",
		}[name]
		if !strings.Contains(r.markdown(), want) {
			t.Errorf("%s\nwant in it\n%s", r.markdown(), want)
		}
	}
}
