package app

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// lateNames is a DNS server that knows 127.0.0.1 by all names but "silent.internal.", of which it answers nothing before its
// end, and needs a while for that.
func lateNames(t *testing.T) (addr string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving, answering sync.WaitGroup
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		serving.Wait()
		close(ended)
		answering.Wait()
		_ = c.Close()
	})
	answer := func(query []byte) (b []byte, known bool) {
		var p dnsmessage.Parser
		h, err := p.Start(query)
		if err != nil {
			return nil, false
		}
		q, err := p.Question()
		if err != nil {
			return nil, false
		}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true}, Questions: []dnsmessage.Question{q}}
		if known = q.Name.String() != "silent.internal."; !known {
			m.RCode = dnsmessage.RCodeNameError
		} else if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, Type: q.Type, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		b, err = m.Pack()
		if err != nil {
			t.Error(err)
		}
		return b, known
	}
	serving.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			a, known := answer(b[:n])
			answering.Go(func() {
				if known {
					time.Sleep(300 * time.Millisecond) // longer than a start takes otherwise
				} else {
					<-ended
				}
				_, _ = c.WriteTo(a, from)
			})
		}
	})
	return c.LocalAddr().String()
}

// A process that starts serves when the host names of its backends are known: the first request is answered by one. A name that
// does not resolve is logged, and holds the start up for a bounded time.
func TestAStartWaitsForTheNamesOfBackends(t *testing.T) {
	trial.Long(t)
	t.Parallel() // it mostly waits
	server := lateNames(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }))
	t.Cleanup(backend.Close)
	_, port, err := net.SplitHostPort(backend.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	f := func(hosts ...string) {
		t.Helper()
		var text loggedText
		g := startApp(t, func(c *config.Config) {
			for _, host := range hosts {
				c.Clusters = append(c.Clusters, upstream.Config{
					Name: host, Peers: []upstream.PeerConfig{{Address: host + ":" + port}},
					DNS: upstream.DNSConfig{Server: server, Timeout: hub.Duration(time.Minute)},
				})
				c.Routes = append(c.Routes, policy.RouteConfig{Path: "/" + host + "/*", Cluster: host})
			}
		}, Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
		for _, host := range hosts {
			want, silent := http.StatusOK, host == "silent.internal"
			if silent {
				want = http.StatusServiceUnavailable
			}
			res, err := http.Get(g.url + "/" + host + "/x")
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%s: %s", host, res.Status)
			}
			if named := strings.Contains(text.String(), "names=["+host+"]"); named != silent {
				t.Errorf("the log names %s: %v\n%s", host, named, text.String())
			}
		}
	}
	f("backend.internal")
	f("backend.internal", "silent.internal")
}
