package echo_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/hub/hubhttp/mounttest"
	weirecho "github.com/weir-gateway/weir/integrations/echo"
)

func TestSubscribersLeaveEchoForTheLoops(t *testing.T) {
	mounttest.Run(t, "echo", func(h *hubhttp.Handler) http.Handler {
		r := echo.New()
		weirecho.Mount(r.Group("/events", func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if c.QueryParam("let") != "me" {
					return echo.ErrUnauthorized
				}
				c.Response().Header().Set("X-Program", "echo")
				return next(c)
			}
		}), h)
		return r
	})
}
