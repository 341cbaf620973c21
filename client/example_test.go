package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/hub/hubhttp"
)

// A client that publishes to a server and reads what it published.
func Example() {
	url, stop := serve()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Publish(ctx, client.Publication{Channel: "news", Data: []byte(`"hello"`)}); err != nil {
		log.Fatal(err)
	}
	stream, err := c.Subscribe(ctx, client.SubscribeOptions{Channels: []string{"news"}, Since: "0"})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	for {
		event, err := stream.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if m, ok := event.(*client.Message); ok {
			fmt.Printf("%s: %s\n", m.Channel, m.Data)
			return
		}
	}
	// Output: news: "hello"
}

// serve runs a server in this process, in place of a gateway.
func serve() (url string, stop func()) {
	h, err := hubhttp.New(hubhttp.Config{Authorize: func(*http.Request) (*hubhttp.Grants, error) {
		return &hubhttp.Grants{Subscribe: []string{"news"}, Publish: []string{"news"}}, nil
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	for h.Hub().Ready() != nil { // as a readiness probe does
		time.Sleep(time.Millisecond)
	}
	server := httptest.NewServer(h)
	return server.URL, func() {
		cancel()
		<-ended
		server.Close()
	}
}
