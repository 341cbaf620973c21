package mercure_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A client with more patterns than there is room for is refused, and may come when
// others have gone.
func TestPatternsAreBoundedTogether(t *testing.T) {
	const most = 1 << 20
	n := start(t, settings{quiet: true, cfg: mercure.Config{MaxPatternBytes: most}})
	query := func(i int) string { return "topic=" + q(fmt.Sprint("/", i, "/{a}", strings.Repeat("x", 500))) }
	var open []*stream
	away := func() bool {
		resp, err := n.Client.Get("http://" + n.Addr + hubPath + "?" + query(len(open)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, 6)
		_, _ = resp.Body.Read(buf)
		return resp.StatusCode == http.StatusOK && strings.HasPrefix(string(buf), "retry")
	}
	for !away() {
		if open = append(open, n.subscribe(query(len(open)))); len(open) > 20 {
			t.Fatal("no client is refused")
		}
	}
	if used := n.server.Stats().Patterns; used > most || len(open) < 3 {
		t.Errorf("%d bytes are used by %d streams, the bound is %d", used, len(open), most)
	}
	n.subscribe(query(0)) // the same as another's
	n.subscribe("topic=plain")
	for _, st := range open {
		st.Stop()
	}
	trial.Eventually(t, "room again", func() bool { runtime.GC(); return n.server.Stats().Patterns < most/2 && !away() })
}
