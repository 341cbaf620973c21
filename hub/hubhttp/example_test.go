package hubhttp_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
)

// A program of its own that serves events beside its other pages. A browser reads them with
// new EventSource("/events/sse?channel=news").
func Example() {
	h, err := hubhttp.New(hubhttp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()

	mux := http.NewServeMux()
	mux.Handle("/events/", http.StripPrefix("/events", h))
	server := httptest.NewServer(mux)
	defer server.Close()

	for h.Hub().Ready() != nil { // as a readiness probe does
		time.Sleep(time.Millisecond)
	}
	if _, err := h.Publish(ctx, hub.Publication{Channel: "news", Data: []byte(`"hello"`)}); err != nil {
		log.Fatal(err)
	}
	res, err := http.Get(server.URL + "/events/sse?channel=news&since=0") //nolint:noctx // an example
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(data, "hello") {
			fmt.Println("received")
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: received
}
