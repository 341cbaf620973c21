package proxy

import (
	"net/http"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A Sink is who asked: the downstream side of an exchange. Its methods are called
// on the exchange's loop. What they are given is valid until they return. After
// End, Fail or Switch the exchange is over and must not be touched; a sink that
// does not want the rest calls Exchange.Cancel, which any method but those may do.
type Sink interface {
	// Interim gets a 1xx head: 100 if Call.Expect was set, and any other but 101.
	Interim(x *Exchange, res *http1.Response)
	// Head gets the head of the reply, once. res.Body says how the upstream frames
	// the body; BodyNone means that there is none and End follows.
	Head(x *Exchange, res *http1.Response)
	// Body gets a piece of the body, decoded. It returns true when no more should
	// come for now; the sink calls Exchange.Resume when it may.
	Body(x *Exchange, b []byte) (full bool)
	// End reports that the reply is complete. trailer are complete field lines, mostly none.
	End(x *Exchange, trailer []byte)
	// Fail reports that there will be no reply, or after Head not the rest of it.
	Fail(x *Exchange, err *Error)
	// Room reports that the exchange takes more of the request's body, after Full.
	Room(x *Exchange)
	// Switch gets the head of a 101 and returns the connection that from now on
	// carries the other protocol, after having written that head; nil if it is gone.
	// Its handler is the proxy's from then on.
	Switch(x *Exchange, res *http1.Response) *eventloop.Conn
}

// A Cause is why an exchange failed, for counters.
type Cause uint8

// The causes.
const (
	NoPeers        Cause = iota // no peer to ask: none known, all down, or breakers open
	Overloaded                  // every peer has as many requests as it may have
	PendingFull                 // too many wait for a connection already
	PendingTimeout              // no connection became free in time
	ConnectFailed               // refused, unreachable, or out of descriptors
	ConnectTimeout              //
	TLSFailed                   // the TLS handshake failed, or the peer refuses what it was shown
	TLSTimeout                  // it was not over in time
	Reset                       // the connection ended before the head was complete
	BadReply                    // what came is not HTTP, or may be read in two ways
	WriteTimeout                // the peer took nothing of the request
	FirstByte                   // no head in time
	IdleTimeout                 // silence within the reply
	TotalTimeout                // the exchange took too long
	Truncated                   // the connection ended within the body
	Stopped                     // the loop ends
	Interims                    // more than http1.MaxInterim 1xx replies before the final one
	causes
)

var causeNames = [causes]string{"no_peers", "overloaded", "pending_full", "pending_timeout", "connect", "connect_timeout", "tls", "tls_timeout", "reset",
	"bad_reply", "write_timeout", "first_byte_timeout", "idle_timeout", "total_timeout", "truncated", "stopped", "interim_replies"}

// String is the cause's name in metrics.
func (c Cause) String() string { return causeNames[c] }

// An Error is why there is no reply. Its message is for clients and reveals nothing
// about the backends.
type Error struct {
	Cause   Cause
	Status  int
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// The errors are values made once: a backend that fails costs no allocations.
var failures = [causes]*Error{
	NoPeers:        {NoPeers, http.StatusServiceUnavailable, "no backend is available, try again later"},
	Overloaded:     {Overloaded, http.StatusServiceUnavailable, "the backends are overloaded, try again later"},
	PendingFull:    {PendingFull, http.StatusServiceUnavailable, "the backends are overloaded, try again later"},
	PendingTimeout: {PendingTimeout, http.StatusServiceUnavailable, "the backends are overloaded, try again later"},
	ConnectFailed:  {ConnectFailed, http.StatusBadGateway, "the backend cannot be reached"},
	ConnectTimeout: {ConnectTimeout, http.StatusGatewayTimeout, "the backend cannot be reached in time"},
	TLSFailed:      {TLSFailed, http.StatusBadGateway, "the backend cannot be reached securely"},
	TLSTimeout:     {TLSTimeout, http.StatusGatewayTimeout, "the backend cannot be reached securely in time"},
	Reset:          {Reset, http.StatusBadGateway, "the backend closed the connection"},
	BadReply:       {BadReply, http.StatusBadGateway, "the backend's answer is not valid HTTP"},
	WriteTimeout:   {WriteTimeout, http.StatusGatewayTimeout, "the backend does not take the request"},
	FirstByte:      {FirstByte, http.StatusGatewayTimeout, "the backend did not answer in time"},
	IdleTimeout:    {IdleTimeout, http.StatusGatewayTimeout, "the backend stopped answering"},
	TotalTimeout:   {TotalTimeout, http.StatusGatewayTimeout, "the request took too long"},
	Truncated:      {Truncated, http.StatusBadGateway, "the backend's answer is incomplete"},
	Stopped:        {Stopped, http.StatusServiceUnavailable, "the gateway is stopping"},
	Interims:       {Interims, http.StatusBadGateway, "the backend sent too many interim answers"},
}
