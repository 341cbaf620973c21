// Echo gives every user a channel of their own: the service says who may read
// what, the hub does the rest.
//
//	$ go run ./echo
//	curl -N 'http://127.0.0.1:8080/events/sse?channel=user.ann' -H 'X-User: ann'
//	curl -N 'http://127.0.0.1:8080/events/sse?channel=user.bob' -H 'X-User: ann'   # 403
//	curl 'http://127.0.0.1:8080/greet/ann'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
	weirecho "github.com/weir-gateway/weir/integrations/echo"
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

// grants is where a service would look at its session or token.
func grants(r *http.Request) (*hubhttp.Grants, error) {
	user := r.Header.Get("X-User")
	if user == "" {
		return nil, errors.New("say who you are in X-User")
	}
	return &hubhttp.Grants{Subject: user, Subscribe: []string{"user." + user}}, nil
}

func run(ctx context.Context, addr string) error {
	events, err := hubhttp.New(hubhttp.Config{
		Namespaces: []hub.Namespace{{Name: hub.DefaultNamespace}},
		Authorize:  grants,
	})
	if err != nil {
		return err
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	weirecho.Mount(e.Group("/events"), events)
	e.GET("/greet/:user", func(c echo.Context) error {
		data := fmt.Appendf(nil, `{"hello":%q}`, c.Param("user"))
		at, err := events.Publish(c.Request().Context(), hub.Publication{Channel: "user." + c.Param("user"), Data: data})
		if err != nil {
			return echo.NewHTTPError(http.StatusServiceUnavailable, err.Error())
		}
		return c.JSON(http.StatusOK, map[string]string{"id": string(at)})
	})
	srv := &http.Server{Addr: addr, Handler: e, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	fmt.Printf("curl -N 'http://%s/events/sse?channel=user.ann' -H 'X-User: ann'\n", addr)
	fmt.Printf("curl 'http://%s/greet/ann'\n", addr)
	ended := make(chan error, 1)
	go func() { ended <- events.Run(ctx) }()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}
