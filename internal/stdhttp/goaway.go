package stdhttp

import (
	"context"
	"net/http"
)

// goAway announces to the clients of all HTTP/2 connections of a server that these accept
// no further request, while the server goes on to serve: what is under way, and new
// connections.
//
// net/http sends GOAWAY to every connection in Shutdown alone, which ends the server too.
// So another server, which has no connection of its own, keeps the list of them: it
// provides the HTTP/2 implementation, and its Shutdown is only the announcement.
type goAway struct{ list *http.Server }

// announceBy returns what announces for s, which has not served yet.
func announceBy(s *http.Server) *goAway {
	g := &goAway{&http.Server{
		Protocols: s.Protocols, IdleTimeout: s.IdleTimeout, HTTP2: s.HTTP2, ErrorLog: s.ErrorLog, ReadHeaderTimeout: s.ReadHeaderTimeout,
	}}
	none := newHandedOver()
	_ = none.Close()
	_ = g.list.Serve(none) // sets up HTTP/2 and returns
	s.TLSNextProto = g.list.TLSNextProto
	return g
}

// announce sends GOAWAY with the last stream that was accepted. Requests past it can be
// sent again elsewhere; a connection is closed with its last stream. Only the first call
// counts.
func (g *goAway) announce() { _ = g.list.Shutdown(context.Background()) } // it has no connection to wait for
