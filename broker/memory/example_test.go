package memory_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
)

// A hub whose messages together take at most 64 MiB.
func Example() {
	ctx := context.Background()
	b, err := memory.New(memory.Config{Bytes: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	h, err := hub.New(hub.Config{Broker: b})
	if err != nil {
		log.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = h.Close() }()

	if _, err := h.Publish(ctx, hub.Publication{Channel: "news", Data: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"news"}, All: true}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Data)
		break
	}
	// Output: hello
}
