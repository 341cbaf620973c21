package nats

import (
	"hash/fnv"
	"io"
	"log/slog"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nats-io/nats-server/v2/server"
)

// The kernel closes the connections of a process that was killed at once, and the other servers of
// its cluster see that. nats-server does nothing with it: of each group that the dead server led, the
// followers wait until their election times are over (see election.go). So a node watches the
// routes of the server inside it: when the last one to a server has closed, one of the followers of
// each group that it led campaigns at once. A server that only seems dead, because just its connections were cut, is
// deposed by that, as it would be after the election time. docs/chaos.md says what it brings.

// routesEvery is how often the routes are counted.
const routesEvery = 50 * time.Millisecond

// watchRoutes is b's goroutine that does so.
func watchRoutes(b *Broker) {
	t := time.NewTicker(routesEvery)
	defer t.Stop()
	w := routeWatch{log: b.log}
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-t.C:
		}
		if srv := b.server.srv.Load(); srv != nil && !b.suspended.Load() {
			w.look(srv)
		}
	}
}

// A routeWatch is what a server inside this node knows of the routes to the others. One
// goroutine uses it.
type routeWatch struct {
	log   *slog.Logger
	srv   *server.Server  // that was looked at last
	count int             // of routes; each server has several
	names map[string]bool // servers with a route
}

// look compares srv's routes with those before, and campaigns for what servers led that are gone.
func (w *routeWatch) look(srv *server.Server) {
	count := srv.NumRoutes()
	if srv == w.srv && count == w.count {
		return
	}
	names, ok := routed(srv)
	if !ok {
		return
	}
	if srv == w.srv && srv.Running() {
		for name := range w.names {
			if !names[name] {
				n := campaign(srv, name, names)
				w.log.Info("connection to a server of the cluster lost", "server", name, "campaigns", n)
			}
		}
	}
	w.srv, w.count, w.names = srv, count, names
}

// routed returns the names of the servers to which srv has routes.
func routed(srv *server.Server) (names map[string]bool, ok bool) {
	z, err := srv.Routez(nil)
	if err != nil {
		return nil, false
	}
	names = make(map[string]bool, len(z.Routes))
	for _, r := range z.Routes {
		names[r.RemoteName] = true
	}
	return names, true
}

// campaign has srv start elections of the groups that the server called gone leads, as far as srv knows,
// and returns how many. Of the followers, which have routes to each other, one does so, another one in each group. If its
// log is older than another's, that one refuses it and starts an election itself; should
// all this fail, the election times are over sometime.
func campaign(srv *server.Server, gone string, routed map[string]bool) (n int) {
	for _, account := range []string{server.DEFAULT_SYSTEM_ACCOUNT, server.DEFAULT_GLOBAL_ACCOUNT} {
		z := srv.Raftz(&server.RaftzOptions{AccountFilter: account})
		if z == nil {
			continue
		}
		for name, g := range (*z)[account] {
			if g.Peers[g.Leader].Name != gone || !campaigns(srv.Name(), name, &g, routed) {
				continue
			}
			if node := raftNode(srv, name); node != nil && node.Campaign() == nil {
				n++
			}
		}
	}
	return n
}

// campaigns reports whether the server called self is the one to campaign in a group, g, of those that are left of it.
func campaigns(self, group string, g *server.RaftzGroup, routed map[string]bool) bool {
	own, left := rank(group, self), 1
	for _, p := range g.Peers {
		if routed[p.Name] {
			if left++; rank(group, p.Name) < own {
				return false
			}
		}
	}
	return left >= g.QuorumNeeded && !g.Observer
}

// rank orders the servers of a group, in each group in another way.
func rank(group, name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, group+" "+name) // never fails
	return h.Sum64()
}

// raftNode returns srv's member of a group; nil if it has none. An update of nats-server without
// it does not link.
//
//go:linkname raftNode github.com/nats-io/nats-server/v2/server.(*Server).lookupRaftNode
func raftNode(srv *server.Server, group string) server.RaftNode
