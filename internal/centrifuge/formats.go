package centrifuge

import "github.com/weir-gateway/weir/hub"

// Formats are the numbers of the protocol's wire forms among the hub's.
type Formats struct {
	frames [2]hub.Format // WebSocket: JSON in a text frame, Protobuf in a binary one
	lines  [2]hub.Format // HTTP stream: a line of JSON, a Protobuf message with its length
	sse    hub.Format
	uni    [3]hub.Format // pushes alone: WebSocket, HTTP stream, SSE
}
