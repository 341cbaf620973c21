package gin_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/hub/hubhttp/mounttest"
	weirgin "github.com/weir-gateway/weir/integrations/gin"
)

func TestSubscribersLeaveGinForTheLoops(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	mounttest.Run(t, "gin", func(h *hubhttp.Handler) http.Handler {
		r := gin.New()
		weirgin.Mount(r.Group("/events", func(c *gin.Context) {
			if c.Query("let") != "me" {
				c.AbortWithStatus(http.StatusUnauthorized)
			}
			c.Header("X-Program", "gin")
		}), h)
		return r
	})
}
