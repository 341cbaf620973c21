// Gin pushes notifications from a Gin service, behind the middleware it has
// already: what it lets through leaves Gin and lives on an event loop.
//
//	$ go run ./gin
//	curl -N 'http://127.0.0.1:8080/events/sse?channel=news' -H 'Authorization: Bearer secret'
//	curl http://127.0.0.1:8080/notify -d 'hello everybody'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
	weirgin "github.com/weir-gateway/weir/integrations/gin"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

// authenticated is the service's own middleware.
func authenticated(c *gin.Context) {
	if c.GetHeader("Authorization") != "Bearer secret" {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "send Authorization: Bearer secret"})
	}
}

func run(ctx context.Context, addr string) error {
	events, err := hubhttp.New(hubhttp.Config{})
	if err != nil {
		return err
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	weirgin.Mount(r.Group("/events", authenticated), events)
	r.POST("/notify", func(c *gin.Context) {
		text, err := c.GetRawData()
		if err != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		data, _ := json.Marshal(string(text)) // a string can always be written
		at, err := events.Publish(c.Request.Context(), hub.Publication{Channel: "news", Data: data})
		if err != nil {
			c.Status(http.StatusServiceUnavailable)
			return
		}
		c.JSON(http.StatusOK, gin.H{"id": string(at), "streams": events.Stats().OnLoops})
	})
	srv := &http.Server{Addr: addr, Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	fmt.Printf("curl -N 'http://%s/events/sse?channel=news' -H 'Authorization: Bearer secret'\n", addr)
	fmt.Printf("curl http://%s/notify -d 'hello everybody'\n", addr)
	ended := make(chan error, 1)
	go func() { ended <- events.Run(ctx) }()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
