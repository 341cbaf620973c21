package fronts

import (
	"context"
	"net/http"

	"github.com/weir-gateway/weir/websocket"
)

// echoSocket is a backend that sends back each message of a WebSocket.
func echoSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, websocket.AcceptOptions{})
	if err != nil {
		return
	}
	defer c.CloseNow()
	for {
		op, text, err := c.Read(context.Background())
		if err != nil || c.Write(op, text) != nil {
			return
		}
	}
}
