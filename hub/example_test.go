package hub_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/weir-gateway/weir/hub"
)

func Example() {
	ctx := context.Background()
	h, err := hub.New(hub.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = h.Close() }()

	for _, text := range []string{"hello", "world"} {
		if _, err := h.Publish(ctx, hub.Publication{Channel: "news", Data: []byte(text)}); err != nil {
			log.Fatal(err)
		}
	}
	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"news"}, All: true}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", m.Channel, m.Data)
		if string(m.Data) == "world" {
			break
		}
	}
	// Output:
	// news: hello
	// news: world
}

// A subscription that was interrupted resumes after the last message it processed. If the
// namespace no longer retains what follows, a GapError says so.
func ExampleHub_Subscribe_resume() {
	ctx := context.Background()
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "orders", HistorySize: 2}}})
	if err != nil {
		log.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = h.Close() }()

	last, err := h.Publish(ctx, hub.Publication{Channel: "orders:42", Data: []byte("created")})
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range []string{"paid", "packed", "shipped"} {
		if _, err := h.Publish(ctx, hub.Publication{Channel: "orders:42", Data: []byte(text)}); err != nil {
			log.Fatal(err)
		}
	}
	for m, err := range h.Subscribe(ctx, hub.SubscribeOptions{Channels: []string{"orders:42"}, Since: last}) {
		if gap := (*hub.GapError)(nil); errors.As(err, &gap) {
			fmt.Println("gap:", gap.Reason)
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Data)
		if string(m.Data) == "shipped" {
			break
		}
	}
	// Output:
	// gap: retention
	// packed
	// shipped
}

func ExampleHub_Join() {
	h, err := hub.New(hub.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := h.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = h.Close() }()

	if err := h.Join("room:1", hub.Member{Client: "c1", User: "anna"}); err != nil {
		log.Fatal(err)
	}
	for _, m := range h.Members("room:1") {
		fmt.Println(m.User)
	}
	// Output: anna
}
