package websocket_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/weir-gateway/weir/websocket"
)

// An echo server and a client of it.
func Example() {
	server := httptest.NewServer(websocket.Handler(websocket.AcceptOptions{}, func(ctx context.Context, c *websocket.Conn) error {
		for {
			op, message, err := c.Read(ctx)
			if err != nil {
				return err
			}
			if err := c.Write(op, message); err != nil {
				return err
			}
		}
	}))
	defer server.Close()

	ctx := context.Background()
	c, res, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(server.URL, "http"), websocket.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}
	_ = res.Body.Close()
	if err := c.Write(websocket.OpText, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	_, message, err := c.Read(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", message)
	_ = c.Close(websocket.CloseNormal, "")
	// Output: hello
}

// The codec appends to the caller's slice and does no I/O.
func ExampleAppendFrame() {
	fmt.Printf("% x\n", websocket.AppendFrame(nil, websocket.OpText, []byte("hi")))
	// Output: 81 02 68 69
}
