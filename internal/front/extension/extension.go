// Package extension has an operator's own code decide on requests of routes and on clients of
// channels: a function of the embedding program, or a server that the binary calls (package
// callout). Both see the same Event and return the same Verdict.
//
//	x := extension.New(extension.Options{Log: log})
//	c, err := x.Prepare(cfgs, dial)           // a reload: dial opens what is new
//	c.Commit()
//	if x.Handles(extension.Publish, channel) {
//		d := x.Decide(ctx, &extension.Event{Kind: extension.Publish, ...})   // on a goroutine
//	}
//
// Extensions are called in the order of their configuration, each with what those before it
// have changed. The first that refuses ends it.
package extension

import (
	"context"
	"net/netip"
	"time"
)

// A Kind is what an Event is about.
type Kind uint8

// The kinds of events.
const (
	// Request is a request of a route, before it is forwarded or answered.
	Request Kind = iota + 1
	// Response is the head of a backend's response, before the client gets it.
	Response
	// Connect is a client that opens a stream or a WebSocket.
	Connect
	// Subscribe is a client that subscribes to channels.
	Subscribe
	// Publish is a message that comes through the public listener.
	Publish
	// Disconnect is a client that has left. Its verdict is ignored.
	Disconnect
	kinds
)

// names of the kinds, in the configuration and in metrics.
var names = [kinds]string{Request: "request", Response: "response", Connect: "connect", Subscribe: "subscribe", Publish: "publish", Disconnect: "disconnect"}

// String returns the kind's name.
func (k Kind) String() string {
	if k == 0 || k >= kinds {
		return "unknown"
	}
	return names[k]
}

// A Field is a header field.
type Field struct{ Name, Value string }

// An Event is what is decided on. Hooks must not change it.
type Event struct {
	Kind Kind
	// Route is the route's name (Request, Response).
	Route string
	// Protocol is native, centrifuge, mercure or pusher (Connect and later).
	Protocol string
	// Connection is unique among the open connections of the process; a stream of HTTP/2
	// or HTTP/3 is one. 0: not known.
	Connection uint64
	// Client is the client's address; invalid: not known.
	Client netip.Addr
	// User is who the client is as far as Weir knows; empty: anonymous.
	User string
	// Method, Scheme, Host and Path, with its query, are those of the request. Empty where
	// the event is not one of a request.
	Method, Scheme, Host, Path string
	// Headers are the request's fields, of a Response those of the response.
	Headers []Field
	// Status is the response's (Response).
	Status int
	// Channels are those of Subscribe and Publish.
	Channels []string
	// Data is the message (Publish).
	Data []byte
}

// A Verdict is a decision. The zero value allows and changes nothing.
type Verdict struct {
	// Refuse refuses; nil allows.
	Refuse *Refusal
	// Set replaces fields of the request to the backend (Request) or of the response
	// (Response), Remove removes fields.
	Set    []Field
	Remove []string
	// Identity is who the client is from now on (Request, Connect); nil: as before.
	Identity *Identity
	// Data replaces the message (Publish); nil: as it is.
	Data []byte
	// TTL is how long an event that is equal but for its connection is decided alike without a
	// call, at most an hour; 0: not at all.
	TTL time.Duration
}

// A Refusal is what a client that is refused gets.
type Refusal struct {
	// Status is one of HTTP, 400 to 599, for a Request 300 to 599; 0 means 403.
	Status int
	// Reason is shown to the client.
	Reason string
	// Body is an answer's body; nil: JSON with status and reason.
	Body []byte
	// Headers are fields of that answer.
	Headers []Field
}

// An Identity is a client and its rights on channels, patterns as in a token.
type Identity struct {
	User               string
	Subscribe, Publish []string
	// Expires ends streams; zero: never.
	Expires time.Time
}

// A Hook decides. Any goroutine; ctx ends when the client has left or the time is up.
type Hook interface {
	// Decide returns the decision; a nil Verdict allows. An error means that there is none.
	Decide(ctx context.Context, e *Event) (*Verdict, error)
}

// HookFunc is a function as a Hook.
type HookFunc func(ctx context.Context, e *Event) (*Verdict, error)

// Decide implements Hook.
func (f HookFunc) Decide(ctx context.Context, e *Event) (*Verdict, error) { return f(ctx, e) }
