package app

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// The DSCPs of the tests.
const (
	orderDSCP  = 46
	marketDSCP = 8
)

// withMarks gives classes to namespaces of every protocol, and marks to the classes.
func withMarks(c *config.Config) {
	c.Namespaces = []hub.Namespace{{Name: "plain", Anonymous: true}}
	for _, name := range []string{"default", "orders", "shop", "mercure"} {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: name, Anonymous: true, Class: "order"})
	}
	c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "market", Anonymous: true, Class: "market"})
	c.Admission.Marks.Order = limit.Mark{DSCP: orderDSCP, Priority: 6}
	c.Admission.Marks.Market = limit.Mark{DSCP: marketDSCP, Priority: 2}
	c.Mercure.Enabled, c.Mercure.Anonymous = true, true
	c.Centrifuge.Enabled, c.Centrifuge.Insecure = true, true
	c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop"}}
}

// marked counts the open connections that the kernel sends for the gateway by their DSCP, without
// those that have none.
func (g *gateway) marked(t *testing.T) map[int]int {
	t.Helper()
	c, err := netlink.Dial(syscall.NETLINK_INET_DIAG, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const (
		byFamily, established, tos = 20, 1, 5 // SOCK_DIAG_BY_FAMILY, TCP_ESTABLISHED, INET_DIAG_TOS
		head                       = 4 + 48 + 20
	)
	question := make([]byte, 8+48) // inet_diag_req_v2
	question[0], question[1], question[2] = syscall.AF_INET, syscall.IPPROTO_TCP, 1<<(tos-1)
	binary.NativeEndian.PutUint32(question[4:], 1<<established)
	replies, err := c.Execute(netlink.Message{Header: netlink.Header{Type: byFamily, Flags: netlink.Request | netlink.Dump}, Data: question})
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]int{}
	for _, r := range replies {
		if len(r.Data) < head || binary.BigEndian.Uint16(r.Data[4:]) != g.Addr().Port() {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(r.Data[head:])
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attributes {
			if a.Type == tos && len(a.Data) == 1 && a.Data[0] != 0 {
				all[int(a.Data[0]>>2)]++
			}
		}
	}
	return all
}

func (g *gateway) wantMarked(t *testing.T, what string, want map[int]int) {
	t.Helper()
	var got map[int]int
	trial.Eventually(t, fmt.Sprintf("%s: connections by DSCP %v", what, want), func() bool {
		got = g.marked(t)
		return maps.Equal(got, want)
	})
}

func TestConnectionsHaveTheMarkOfTheirClass(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			g := start(t, func(c *config.Config) { withMarks(c); c.EventLoop.Engine = engine })
			for i, kind := range heldKinds {
				newHolder(t, g).open(kind, "orders", "")
				g.wantMarked(t, kind, map[int]int{orderDSCP: i + 1})
			}
			if s, ok := g.push.MarkStats(); !ok || s.Failed != 0 || s.Marked[limit.Order] != uint64(len(heldKinds)) {
				t.Errorf("%+v %v", s, ok)
			}
		})
	}
}

// A connection has one mark: that of the least important of its subscriptions.
func TestAMarkFollowsTheSubscriptions(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			g := start(t, func(c *config.Config) { withMarks(c); c.EventLoop.Engine = engine })
			g.sse(t, "channel=orders:a&channel=market:a", "")
			g.wantMarked(t, "a stream of both", map[int]int{marketDSCP: 1})
			g.sse(t, "channel=orders:a&channel=plain:a", "")
			g.sse(t, "channel=plain:a", "")
			w := dialCentrifuge(t, g)
			w.send(`{"id":2,"subscribe":{"channel":"orders:a"}}`, `"id":2`)
			g.wantMarked(t, "without a class there is no mark", map[int]int{marketDSCP: 1, orderDSCP: 1})
			w.send(`{"id":3,"subscribe":{"channel":"market:a"}}`, `"id":3`)
			g.wantMarked(t, "market beside orders", map[int]int{marketDSCP: 2})
			w.send(`{"id":4,"unsubscribe":{"channel":"market:a"}}`, `"id":4`)
			g.wantMarked(t, "orders alone again", map[int]int{marketDSCP: 1, orderDSCP: 1})
			w.send(`{"id":5,"subscribe":{"channel":"plain:a"}}`, `"id":5`)
			g.wantMarked(t, "something without a class", map[int]int{marketDSCP: 1})

			h2 := overHTTP2(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			open := func(ctx context.Context, channel string) {
				t.Helper()
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/sse?channel="+channel, nil)
				res, err := h2.Do(req)
				if err != nil || res.ProtoMajor != 2 || res.StatusCode != 200 {
					t.Fatalf("%s: %v %v", channel, res, err)
				}
				t.Cleanup(func() { res.Body.Close() })
			}
			open(t.Context(), "orders:a")
			g.wantMarked(t, "a stream of HTTP/2", map[int]int{marketDSCP: 1, orderDSCP: 1})
			open(ctx, "market:a")
			g.wantMarked(t, "two streams of HTTP/2", map[int]int{marketDSCP: 2})
			cancel()
			g.wantMarked(t, "the stream of the market has ended", map[int]int{marketDSCP: 1, orderDSCP: 1})
		})
	}
}

// centrifugeClient is one that is connected.
type centrifugeClient struct {
	t    *testing.T
	conn *websocket.Conn
}

func dialCentrifuge(t *testing.T, g *gateway) *centrifugeClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(g.url, "http", "ws", 1)+"/connection/websocket", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.CloseNow)
	c := &centrifugeClient{t, conn}
	c.send(`{"id":1,"connect":{}}`, `"id":1`)
	return c
}

// send sends text and waits for an answer that has words in it.
func (c *centrifugeClient) send(text, words string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	defer cancel()
	if err := c.conn.Write(websocket.OpText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
	for {
		_, b, err := c.conn.Read(ctx)
		if err != nil {
			c.t.Fatalf("%s: %v", text, err)
		}
		if strings.Contains(string(b), words) {
			if strings.Contains(string(b), `"error"`) {
				c.t.Fatalf("%s: %s", text, b)
			}
			return
		}
	}
}

// tosReader is a client's UDP socket that remembers the type of service of what came last.
type tosReader struct {
	net.PacketConn
	udp  *net.UDPConn
	last atomic.Int32
}

func (r *tosReader) ReadFrom(b []byte) (int, net.Addr, error) {
	oob := make([]byte, 128)
	n, oobn, _, from, err := r.udp.ReadMsgUDP(b, oob)
	if err != nil {
		return n, nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		if m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_TOS {
			r.last.Store(int32(m.Data[0]))
		}
	}
	return n, from, err
}

func TestHTTP3PacketsHaveTheDSCPOfTheirClass(t *testing.T) {
	g, pool := http3Gateway(t, withMarks)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	raw, err := udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1) }); err != nil {
		t.Fatal(err)
	}
	r := &tosReader{PacketConn: udp, udp: udp}
	q := &quic.Transport{Conn: struct{ net.PacketConn }{r}}
	defer q.Close()
	tr := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool},
		Dial: func(ctx context.Context, addr string, tlsCfg *tls.Config, cfg *quic.Config) (*quic.Conn, error) {
			at, err := net.ResolveUDPAddr("udp4", addr)
			if err != nil {
				return nil, err
			}
			return q.Dial(ctx, at, tlsCfg, cfg)
		},
	}
	defer tr.Close()
	client := &http.Client{Transport: tr, Timeout: trial.Patience}
	dscp := func(what string, want int32) {
		t.Helper()
		trial.Eventually(t, fmt.Sprintf("%s: DSCP %d", what, want), func() bool {
			send(t, client, http.MethodPost, g.URL()+"/api/publish", `{"channel":"orders:a","data":1}`)
			return r.last.Load()>>2 == want
		})
	}
	dscp("before there is a subscription", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+"/sse?channel=orders:a", nil)
	res, err := client.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	defer res.Body.Close()
	dscp("a stream of orders", orderDSCP)
	cancel()
	dscp("after it", 0)
}
