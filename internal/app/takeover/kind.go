package takeover

// Kinds of handlers that continue in another process, see eventloop.Mover. A number is never
// reused.
const (
	KindSSE       = 1 // push's session
	KindWebSocket = 2 // push's session
	KindHTTP1     = 3 // downstream's, between two requests
	KindHTTP2     = 4 // h2's, with its streams
	KindProtocol  = 5 // push's transport, with a protocol's session
	KindEvents    = 6 // push's session, of a protocol's stream of events
	KindTunnel    = 7 // proxy's, of which the state has the backend's connection
)
