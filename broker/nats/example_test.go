package nats_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/hub"
)

// The embedded server keeps messages in a directory: a hub that is opened again has them.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "weir-example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	open := func() *hub.Hub {
		b, err := nats.New(nats.Config{Dir: dir}, nil)
		if err != nil {
			log.Fatal(err)
		}
		h, err := hub.New(hub.Config{Broker: b, Namespaces: []hub.Namespace{{Name: "orders", Durability: hub.Stored}}})
		if err != nil {
			log.Fatal(err)
		}
		if err := h.Start(ctx); err != nil {
			log.Fatal(err)
		}
		return h
	}

	h := open()
	if _, err := h.Publish(ctx, hub.Publication{Channel: "orders:42", Data: []byte("paid")}); err != nil {
		log.Fatal(err)
	}
	if err := h.Close(); err != nil {
		log.Fatal(err)
	}

	h = open()
	defer func() { _ = h.Close() }()
	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"orders:42"}, All: true}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", m.Channel, m.Data)
		break
	}
	// Output: orders:42: paid
}
