package app

import (
	"net/http"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// TestARevocationEndsStreamsOfHTTP3 revokes a subject: its streams end, those at a backend as well, and
// its requests are refused; another client's streams on the same connection stay.
func TestARevocationEndsStreamsOfHTTP3(t *testing.T) {
	b := endless(t)
	g, pool := http3Gateway(t, func(c *config.Config) {
		withProtocols(c)
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{{Path: "/backend/*", Cluster: "endless", Auth: policy.Auth{Required: true}}}
	})
	g.url = g.URL()
	c := overHTTP3(t, pool)
	c.Timeout = 0 // streams do not end
	h := newHolder(t, g)
	h.h1, h.h2 = c, c
	alice, bob := tokenOf(t, "alice", nil), tokenOf(t, "bob", nil)
	kinds := []string{"sse", "mercure", "uni_sse", "proxied"}
	var ends, stays []*held
	for _, kind := range kinds {
		ends = append(ends, h.openRevocable(kind, alice))
		stays = append(stays, h.openRevocable(kind, bob))
	}
	if s := g.http3.Stats(); s.Open != 1 || int(s.OpenStreams) != 2*len(kinds) {
		t.Fatalf("open over HTTP/3: %+v", s)
	}
	h.wantAnswers(alice, http.StatusOK, "")
	g.revoke(t, "subject", "alice", "")
	for _, c := range ends {
		c.wantEnd(t, revocableKinds[c.kind])
	}
	h.wantAnswers(alice, http.StatusUnauthorized, "token revoked")
	h.wantAnswers(bob, http.StatusOK, "")
	for _, c := range stays {
		if !c.open() {
			t.Errorf("%s of another client was closed: %s", c.kind, c.end)
		}
	}
}
