// Nethttp pushes order updates from a program on net/http to every open page.
//
//	$ go run ./nethttp
//	open http://127.0.0.1:8080
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
)

const page = `<!doctype html><title>orders</title><h1>Orders</h1><ul id=list></ul>
<script>
  const list = document.getElementById("list")
  new EventSource("/events/sse?channel=orders&lastEventId=0").onmessage = e => {
    const o = JSON.parse(e.data), li = document.createElement("li")
    li.textContent = "order " + o.id + " is " + o.state
    list.prepend(li)
  }
</script>`

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	events, err := hubhttp.New(hubhttp.Config{})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/events/", http.StripPrefix("/events", events))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) })
	srv := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go work(ctx, events)
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	fmt.Println("open http://" + addr)
	ended := make(chan error, 1)
	go func() { ended <- events.Run(ctx) }()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// work is the program's own business: now and then an order changes.
func work(ctx context.Context, events *hubhttp.Handler) {
	states := []string{"received", "packed", "shipped", "delivered"}
	for ctx.Err() == nil {
		time.Sleep(time.Second)
		body := fmt.Appendf(nil, `{"id":%d,"state":%q}`, rand.IntN(1000), states[rand.IntN(len(states))])
		if _, err := events.Publish(ctx, hub.Publication{Channel: "orders", Data: body}); err != nil {
			log.Print("publish: ", err)
		}
	}
}
