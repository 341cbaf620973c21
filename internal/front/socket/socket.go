// Package socket is what a protocol needs of a client's connection, whatever
// carries it: a socket of its own or a stream of HTTP/2. A protocol is written once,
// against these interfaces; internal/push implements them.
package socket

import (
	"context"
	"net/netip"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A Transport is a client's connection that stays open: a WebSocket, or the body of
// a reply that continues (SSE, a stream of lines). It has one owner, a goroutine that
// may own many; all methods are for the owner, except where they say otherwise.
// After Close or the client's end they do nothing, but for Unsubscribe and Post.
//
// A transport watches whether the client takes what waits for it, and closes it when
// it does not (eventloop.write_stall), or when more waits than it may. Whether a
// WebSocket client that has nothing to take is still there is for the protocol to
// find out: with Ping or a message of its own, SetTimer and LastRead.
//
// What a namespace specifies about slow subscribers (policy, max_rate) goes for
// Request.Subscribe. A session that is sent more than its client takes finds that by
// Stalled and Unsent, and chooses; if it does not, the transport's bound ends the client.
type Transport interface {
	// Send sends b: for a WebSocket complete frames, otherwise bytes of the body. b is
	// kept, not copied, for as long as the client does not take it: it must never change.
	Send(b []byte)
	// Write is Send for bytes that the caller will use again. What is written while the
	// owner works leaves together, when it is done with that.
	Write(b []byte)
	// Deliver sends what b holds in format f, in bytes that all clients of the format
	// share. It is for a call of hub.Sink.Deliver.
	Deliver(b *hub.Batch, f hub.Format)
	// Ping sends a WebSocket ping. The answer counts for LastRead and calls
	// Session.Pong. For a stream it does nothing.
	Ping()
	// LastRead is when a WebSocket client last sent anything, on the clock of Now; for a
	// stream when it began. It may be up to 20 ms late, so that an answer is never taken
	// for older than the question.
	LastRead() int64
	// Stalled reports whether the client takes less than it is sent.
	Stalled() bool
	// Unsent is how many bytes wait for it in this process.
	Unsent() int
	// Close sends a close frame with code and reason (WebSocket; for a stream just the
	// end of the body), after what was sent, and closes. Session.Closed comes then, never
	// before the call of the session is over that this one was made in; no other call
	// comes in between.
	Close(code int, reason string)
	// Cut closes at once: what was not sent is lost, and there is no close frame.
	// Session.Closed comes as after Close.
	Cut()
	// SetTimer has Session.Timer called once after d, instead of what was set before;
	// 0 clears it. It is exact to 100 ms, never early.
	SetTimer(d time.Duration)
	// Now is a monotonic clock in nanoseconds.
	Now() int64
	// Subscribe starts a subscription of the hub; sink is called by the owner, maybe
	// before it returns, and not any more once the transport is closed. An error means
	// that nothing was started. A subscription ends with its transport, if not before.
	Subscribe(s *hub.Subscriber, sink hub.Sink, opt hub.SubscribeOptions) error
	// Unsubscribe ends it: the sink is not called any more. This and Subscribe may be
	// called from a sink, for any subscriber of the owner's.
	Unsubscribe(s *hub.Subscriber)
	// Publish publishes p and has done called by the owner, before or after it returns,
	// unless the client has gone.
	Publish(p hub.Publication, done func(hub.Position, error))
	// Do runs work, which may block, on a goroutine of a bounded number, and then
	// then by the owner, unless the client has gone. ctx ends with the process. It
	// reports false when there are too many at work: nothing is done then.
	Do(work func(ctx context.Context), then func()) bool
	// Post has f run by the owner, also after the client has gone. Any goroutine.
	Post(f func())
	// Peer is the client's address. Any goroutine.
	Peer() netip.AddrPort
	// ID is unique among the open connections of the process. Any goroutine.
	ID() uint64
}

// A Session is what a protocol makes of a Transport. The owner calls it. A panic in one
// of its calls, or of its sinks', ends this one client (code 1011) and is counted.
type Session interface {
	// Message is a complete message of a WebSocket client; b is valid until it returns.
	// Streams never call it.
	Message(b []byte, binary bool)
	// Pong reports that a WebSocket client has answered a ping.
	Pong()
	// Drained reports that all that waited was taken by the client's socket.
	Drained()
	// Timer is the end of SetTimer.
	Timer()
	// Drain requests that the session drain its client: it closes as its protocol
	// says. The fronts spread these calls over the time of a drain.
	Drain()
	// Closed is the last call: the client is gone, or Close has done its work. Its
	// subscriptions have ended.
	Closed()
}

// Refused is the Session of a client that is closed at once.
type Refused struct{}

var _ Session = Refused{}

// Message implements Session.
func (Refused) Message([]byte, bool) {}

// Pong implements Session.
func (Refused) Pong() {}

// Drained implements Session.
func (Refused) Drained() {}

// Timer implements Session.
func (Refused) Timer() {}

// Drain implements Session.
func (Refused) Drain() {}

// Closed implements Session.
func (Refused) Closed() {}

// Identified is a Session that knows who its client is, for the admin API. The owner
// calls it.
type Identified interface{ Subject() string }

// A Handler serves the requests of a path. It must answer, or take the connection,
// once: in the call or later (Request.Do).
type Handler func(Request)

// A Request is a client's request for a path that a protocol serves. Its methods
// are for the owner, and their results are valid until it is answered or taken.
type Request interface {
	// Method is "GET", "POST", ...
	Method() string
	// Path is the path as the client sent it, its escapes included: decode it part by
	// part. That is what endpoints are matched by, as Weir's own are.
	Path() string
	// Query is what follows "?", as it came.
	Query() string
	// Header returns a field's value, several lines joined by ", "; "" if there is none.
	Header(name string) string
	// Body is the whole body, within Endpoint.MaxBody.
	Body() []byte
	// Secure reports whether the client came over TLS.
	Secure() bool
	// Host is the authority that the client requested.
	Host() string
	// Origin is the page's origin as the client said it ("" for none), and what auth
	// thinks of it.
	Origin() (string, auth.Access)
	// AdmitPage reports whether a page of that origin may connect at all. If not, that is
	// logged, with the line of the configuration that would allow it.
	AdmitPage() bool
	// LogRefusedOrigin logs that a rule of the protocol's refused the page's origin; hint
	// names what to configure.
	LogRefusedOrigin(hint string)
	// Peer is the client's address.
	Peer() netip.AddrPort
	// HeartbeatInterval returns how often something is to pass that would otherwise every so often: less, if
	// the client says that its longest back-off is short (push.Config.HeartbeatInterval).
	HeartbeatInterval(every time.Duration) time.Duration
	// Identify authenticates the client, by Weir's own rules (API key, bearer token, cookie,
	// query), and continues with then; a bad token is answered without it. An anonymous client is
	// auth.Anonymous.
	Identify(then func(*auth.Identity))
	// Do runs work, which may block, on a goroutine, and then then by the owner, unless
	// the client has gone. With too many at work the client gets a 503.
	Do(work func(ctx context.Context), then func())
	// Publish publishes p and has done called by the owner, before or after it returns,
	// unless the client has gone.
	Publish(p hub.Publication, done func(hub.Position, error))
	// PublishTopics is Publish for hub.Hub.PublishTopics.
	PublishTopics(topics []string, p hub.Publication, done func(hub.Position, error))
	// Answer is a complete answer. Content-Length, Date and, for pages of other
	// origins, CORS fields are added. contentType "" means none.
	Answer(status int, contentType string, body []byte, fields ...Field)
	// Fail answers with an error in Weir's own form.
	Fail(e *wire.Error)
	// WebSocket completes a handshake and makes the connection speak what open returns.
	// Messages of the client come after open has returned. What is not a handshake, or
	// comes from a page that may not, is refused without open.
	WebSocket(o WebSocketOptions, open func(Transport) Session)
	// Stream answers 200 with a body that stays open.
	Stream(o StreamOptions, open func(Transport) Session)
	// Subscribe answers as GET /sse does, with a stream of events that belongs to the
	// hub's own sessions, compression, slow-reader policies and metrics included.
	Subscribe(s *Subscription)
	// Away answers a client that is to come back later: an SSE client in a way
	// that keeps a browser's EventSource trying, others with 503.
	Away(stream bool)
}

// A Field is a header field.
type Field struct{ Name, Value string }

// WebSocketOptions are how Request.WebSocket answers.
type WebSocketOptions struct {
	// Subprotocols are those that the server speaks; the client's order of preference
	// counts. If it offers some and none fits, it is answered without one.
	Subprotocols []string
	// Chosen gets the one agreed on, "" for none; nil: not reported.
	Chosen *string
	// Identity gets who the client is if an extension has decided so, before open; nil: not
	// wanted.
	Identity **auth.Identity
	// MaxMessage bounds what the client may send at a time; 0 means push.max_client_message.
	MaxMessage int
	// AnyOrigin lets pages of every origin connect: the protocol has no credentials
	// that a browser sends by itself.
	AnyOrigin bool
	// DrainCode and DrainReason are what a client is notified that is to come back later, for
	// the process is draining or short of something: the handshake is completed and the
	// connection closed with them, without open. It is for clients to which a handshake
	// that fails says nothing. Code 0: it is answered 503.
	DrainCode   int
	DrainReason string
	// RefusedCode is what a client is closed with that an extension refuses, after the
	// handshake; 0: the handshake is answered with the extension's status.
	RefusedCode int
}

// StreamOptions are how Request.Stream answers.
type StreamOptions struct {
	ContentType string
	Fields      []Field
	// Identity is WebSocketOptions'.
	Identity **auth.Identity
}

// A Subscription is what Request.Subscribe serves.
type Subscription struct {
	// Options are for the hub.
	Options hub.SubscribeOptions
	// Format is an SSE format of wire.
	Format hub.Format
	// Identity is who subscribes: the stream ends when it expires.
	Identity *auth.Identity
	// Select checks each message for this subscriber; nil means that all are wanted.
	// It must be pure and quick. It is put into Options.
	Select func(*hub.Message) bool
	// Fields are added to the head.
	Fields []Field
	// Preamble is sent right after the head instead of a retry and an id line.
	Preamble []byte
	// Gap writes what the client receives about missing messages; what is nil then says
	// nothing. A nil Gap means Weir's own event.
	Gap func(hub.Gap) []byte
	// Heartbeat is how often a comment is sent in silence; 0 means push.heartbeat, less
	// means never.
	Heartbeat time.Duration
	// Life ends the stream in order after that long; 0 means never. There is no event of
	// Weir's at any end: a client that is to wait longer gets a retry field.
	Life time.Duration
	// Review is access.Reviewed's for the stream; the identity has been looked at before.
	// nil: nothing else can be taken away.
	Review func(*access.Review) bool
	// AppendState appends what the protocol needs to make this Subscription in another process,
	// where the position is kept by others; ok is false if it cannot move. Moved is called in
	// place of Ended when it has. nil: the stream does not move. See Mover.
	AppendState func(dst takeover.State) (state takeover.State, ok bool)
	Moved       func()
	// Began is called when the subscription is open, Ended when the client has gone and
	// only then; nil: not called.
	Began, Ended func()
}

// An Endpoint is a path, or several, that a protocol serves.
type Endpoint struct {
	// Path is what is matched: whole, or with "/*" at its end for everything below; the
	// longest match wins.
	Path string
	// Protocol is a word for what is spoken here, "centrifuge": it names the endpoint's
	// connections in metrics and in the admin API.
	Protocol string
	// Methods are those that are served, "GET, POST"; others are answered 405.
	// OPTIONS is answered by the front.
	Methods string
	// MaxBody bounds a body in bytes; 0: a body is not wanted.
	MaxBody int
	// Stream reports that its clients give up for good after a status other than 200.
	Stream bool
	// Replaces lets it take the place of one of Weir's own endpoints at Path; false: a
	// path of Weir's own is an error.
	Replaces bool
	Serve    Handler
}
