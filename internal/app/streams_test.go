package app

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// sse2 opens a stream over HTTP/2.
func (g *gateway) sse2(t *testing.T, c *http.Client, query, last string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/sse?"+query, nil)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %d", res.Proto, res.StatusCode)
	}
	return &stream{t, res, bufio.NewReader(res.Body)}
}

func (g *gateway) listed(t *testing.T, query string) *admin.Connections {
	t.Helper()
	res, body := g.fetch(t, "/api/connections"+query)
	v := &admin.Connections{}
	if err := json.Unmarshal(body, v); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", res.StatusCode, body, err)
	}
	return v
}

// guard sets the guard's state in the loops, and waits until they know.
func (g *gateway) guard(scale float64, rest bool) {
	g.push.Guard(scale, rest)
	for _, l := range g.loops.Loops() { // it is set by a post
		done := make(chan struct{})
		l.Post(func() { close(done) })
		<-done
	}
}

func TestStreamsOverHTTP2AreListedAmongTheOthers(t *testing.T) {
	g := start(t, func(c *config.Config) {
		withSecret(c)
		c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes = 100_000, 64<<20
	})
	g.sse(t, "channel=c", "").block()
	c := overHTTP2(t, nil)
	quick := g.sse2(t, c, "channel=b&channel=a", "")
	quick.block()
	slow := g.sse2(t, c, "channel=bulk&token="+mint(t, auth.MintClaims{Subject: "slow", Subscribe: []string{"**"}}), "")
	slow.block()
	for range 2500 { // more than a window of 4 MiB takes
		g.put(t, "bulk", `"`+strings.Repeat("x", 3000)+`"`)
	}
	was := int64(-1)
	trial.Eventually(t, "messages that wait, and no more that go", func() bool {
		time.Sleep(20 * time.Millisecond)
		now := g.push.Stats().Queued
		steady := now > 200 && now == was
		was = now
		return steady
	})
	for _, sort := range []string{"lag", "bytes", "age", "messages"} {
		v := g.listed(t, "?limit=1&sort="+sort)
		if v.Total != 3 || len(v.Connections) != 1 {
			t.Fatalf("%s: %d of %d", sort, len(v.Connections), v.Total)
		}
		w := v.Connections[0]
		if !w.HTTP2 || !strings.HasPrefix(w.Subject, "slow") || w.Transport != "sse" || !slices.Equal(w.Channels, []string{"bulk"}) || w.Messages < 200 || w.Bytes < 200*3000 ||
			w.Age <= 0 || w.Loop < 0 || w.Peer == "" || w.Since.IsZero() || w.ID != strconv.FormatUint(w.Conn, 10) {
			t.Errorf("%s: %+v", sort, w)
		}
	}
	all := g.listed(t, "").Connections
	other := slices.IndexFunc(all, func(x admin.Connection) bool { return x.HTTP2 && x.Messages == 0 })
	if other < 0 || !slices.Equal(all[other].Channels, []string{"b", "a"}) || all[other].Peer != all[0].Peer {
		t.Fatalf("%+v", all)
	}
	res, body := g.fetch(t, "/api/connections/"+all[0].ID)
	var d admin.ConnectionDetail
	if err := json.Unmarshal(body, &d); err != nil || res.StatusCode != http.StatusOK || !strings.HasPrefix(d.Subject, "slow") || !d.HTTP2 || !d.Stalled || d.Open <= 0 {
		t.Errorf("%d %s: %v", res.StatusCode, body, err)
	}
	snap := &admin.Snapshot{}
	if _, body := g.fetch(t, "/api/snapshot"); json.Unmarshal(body, snap) != nil || len(snap.Slowest) != 3 || snap.Slowest[0].ID != all[0].ID || snap.Lag.Subscribers != 3 || snap.Lag.Lagging != 1 {
		t.Errorf("snapshot: %+v, %+v", snap.Slowest, snap.Lag)
	}
	if res, _ := g.fetch(t, "/api/connections/18446744073709551615"); res.StatusCode != http.StatusNotFound {
		t.Errorf("one that is not there: %d", res.StatusCode)
	}
	g.order(t, "/api/connections/"+all[other].ID+"/disconnect", http.StatusNoContent)
	for {
		if b := quick.block(); strings.Contains(b, "event: end") {
			if !strings.Contains(b, `"code":1012`) || !strings.Contains(b, "operator") {
				t.Errorf("it ended with %q", b)
			}
			break
		}
	}
	trial.Eventually(t, "the stream off the list", func() bool { return g.listed(t, "").Total == 2 })
	g.order(t, "/api/connections/"+all[other].ID+"/disconnect", http.StatusNotFound)
}

// order posts to the admin listener.
func (g *gateway) order(t *testing.T, path string, want int) {
	t.Helper()
	res, err := http.Post("http://"+g.AdminAddr().String()+path, "", nil) //nolint:noctx // the process is this one
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != want {
		t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
	}
}

func TestSessionsOfProtocolsOverHTTP2AreListed(t *testing.T) {
	g := speaking(t)
	c := overHTTP2(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/.well-known/mercure?topic=a", nil)
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.StatusCode)
	}
	trial.Eventually(t, "the stream on the list", func() bool { return g.listed(t, "").Total == 1 })
	v := g.listed(t, "").Connections[0]
	if !v.HTTP2 || v.Protocol != "mercure" || len(v.Channels) != 1 {
		t.Errorf("%+v", v)
	}
	cancel()
	trial.Eventually(t, "the stream off the list", func() bool { return g.listed(t, "").Total == 0 })
}

func TestHistoryOverHTTP2PausesWithTheGuard(t *testing.T) {
	g := start(t, func(c *config.Config) {
		withClasses(c)
		c.Namespaces[0].Class, c.Namespaces[0].Durability = "account", hub.Stored
	})
	for range 3 {
		g.publish(t, "a", "1")
	}
	c := overHTTP2(t, nil)
	g.guard(1, true)
	s := g.sse2(t, c, "channel=a", "0")
	if b := s.block(); !strings.Contains(b, "retry:") || !strings.Contains(b, `"code":1013`) {
		t.Fatalf("%q, want a temporary refusal", b)
	}
	g.guard(1, false)
	s = g.sse2(t, c, "channel=a", "0")
	s.block()
	for range 3 {
		if b := s.block(); !strings.Contains(b, "data: 1") {
			t.Errorf("%q", b)
		}
	}
}

func TestConnectionsOfHTTP2CountForTheirAddress(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Limits.PerAddress.Connections = 2 })
	one, two, three := overHTTP2(t, nil), overHTTP2(t, nil), overHTTP2(t, nil)
	get := func(c *http.Client) error {
		res, err := c.Get(g.url + "/healthz") //nolint:noctx // bounded by the client
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	if get(one) != nil || get(two) != nil || get(three) == nil {
		t.Error("want two connections, and no third")
	}
	one.CloseIdleConnections()
	trial.Eventually(t, "room for another", func() bool { return get(three) == nil })
}
