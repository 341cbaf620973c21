package downstream_test

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A nameserver answers SRV and A questions over UDP and TCP.
type nameserver struct {
	addr string

	mu        sync.Mutex
	records   []dnsmessage.SRVResource
	fails     bool
	requested int
}

func (n *nameserver) set(fails bool, records ...dnsmessage.SRVResource) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails, n.records = fails, records
}

func (n *nameserver) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.requested
}

func serveNames(t *testing.T) *nameserver {
	t.Helper()
	var udp net.PacketConn
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	for range 20 { // until both have the port
		must(t, err)
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			break
		}
		_ = tcp.Close()
		tcp, err = net.Listen("tcp", "127.0.0.1:0")
	}
	must(t, err)
	n := &nameserver{addr: tcp.Addr().String()}
	var done sync.WaitGroup
	done.Go(func() {
		b := make([]byte, 1500)
		for {
			size, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(n.answer(b[:size], 512), from)
		}
	})
	done.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			var head [2]byte
			if _, err := io.ReadFull(c, head[:]); err == nil {
				b := make([]byte, binary.BigEndian.Uint16(head[:]))
				if _, err := io.ReadFull(c, b); err == nil {
					answer := n.answer(b, 1<<16-1)
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
				}
			}
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = udp.Close(); _ = tcp.Close(); done.Wait() })
	return n
}

// answer is truncated beyond limit: the whole comes over TCP then.
func (n *nameserver) answer(query []byte, limit int) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requested++
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true}, Questions: []dnsmessage.Question{q}}
	rr := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, Type: q.Type, TTL: 1}
	switch {
	case n.fails:
		m.RCode = dnsmessage.RCodeServerFailure
	case q.Type == dnsmessage.TypeSRV && q.Name.String() == "_https._tcp.example.internal.":
		for i := range n.records {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: rr, Body: &n.records[i]})
		}
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: rr, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}}}
	case q.Type != dnsmessage.TypeAAAA:
		m.RCode = dnsmessage.RCodeNameError
	}
	b, err := m.Pack()
	if err == nil && len(b) > limit {
		m.Answers, m.Truncated = nil, true
		b, err = m.Pack()
	}
	if err != nil {
		return nil
	}
	return b
}

// Backends over TLS that a DNS server names, with priorities and weights; others after
// it names others; the same as long as it does not answer.
func TestBackendsComeFromSRVRecordsOfARealServer(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	names := serveNames(t)
	var hosts [3]string
	record := func(i int, priority, weight uint16) dnsmessage.SRVResource {
		port := netip.MustParseAddrPort(hosts[i]).Port()
		return dnsmessage.SRVResource{Priority: priority, Weight: weight, Port: port, Target: dnsmessage.MustNewName("node" + strconv.Itoa(i) + ".example.internal.")}
	}
	for i := range hosts {
		hosts[i] = secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "node"+strconv.Itoa(i)+".example.internal")}},
			func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, strconv.Itoa(i)+" "+r.Host) })
	}
	many := []dnsmessage.SRVResource{record(0, 10, 30), record(1, 10, 10), record(2, 20, 100)}
	for i := range 60 { // too many for a datagram
		r := record(2, 30, 0)
		r.Port = uint16(1 + i)
		many = append(many, r)
	}
	names.set(false, many...)
	cluster := quick(upstream.TLSConfig{Enabled: true, CAFiles: []string{a.file}, ServerName: "$target"})
	cluster.Name, cluster.SRV = "main", "_https._tcp.example.internal"
	cluster.DNS = upstream.DNSConfig{Server: names.addr, Interval: hub.Duration(time.Second), Timeout: hub.Duration(5 * time.Second)}
	g := start(t, settings{more: []upstream.Config{cluster}, routes: []policy.RouteConfig{{Cluster: "main", Rewrite: policy.Rewrite{Host: "$upstream"}}}})
	ask := func(n int) map[string]int {
		got := map[string]int{}
		for range n {
			res, err := http.Get(g.url("/"))
			must(t, err)
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != 200 {
				t.Fatalf("%d %q", res.StatusCode, b)
			}
			got[string(b[:1])]++
			if want := "node" + string(b[:1]) + ".example.internal:"; string(b[2:2+len(want)]) != want {
				t.Errorf("the Host is %q", b[2:])
			}
		}
		return got
	}
	if got := ask(80); got["0"] != 60 || got["1"] != 20 {
		t.Errorf("%v, want 60 and 20", got)
	}
	names.set(false, record(2, 0, 0))
	trial.Eventually(t, "the third alone", func() bool { return ask(4)["2"] == 4 })
	names.set(true)
	before := names.questions()
	trial.Eventually(t, "it was queried again in vain", func() bool { return names.questions() > before+4 })
	if got := ask(10); got["2"] != 10 {
		t.Errorf("without an answer: %v", got)
	}
}
