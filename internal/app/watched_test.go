package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestHistogramsAreNativeOnRequest(t *testing.T) {
	f := func(native bool) {
		t.Helper()
		g := start(t, func(c *config.Config) { c.Metrics.NativeHistograms = native })
		g.subscribers(t, 1, "")
		trial.Eventually(t, "a delivery is timed", func() bool {
			g.publish(t, "news", "1")
			d := g.watching.probe.Deliveries()
			return d.Total() > 3
		})
		res, body := g.do(t, "GET", "/metrics", "", "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
		found := 0
		dec := expfmt.NewDecoder(bytes.NewReader(body), expfmt.ResponseFormat(res.Header))
		for {
			var m dto.MetricFamily
			if err := dec.Decode(&m); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				break
			}
			for _, name := range []string{"weir_delivery_seconds", "weir_broker_store_seconds", "weir_loop_tick_seconds"} {
				if m.GetName() != name {
					continue
				}
				found++
				h := m.Metric[0].GetHistogram()
				n := h.GetZeroCount()
				at := int64(0)
				for _, d := range h.GetPositiveDelta() {
					at += d
					n += uint64(at)
				}
				if native != (len(h.GetPositiveSpan()) > 0) || native == (len(h.GetBucket()) > 0) || h.GetSampleCount() == 0 || h.GetSampleSum() <= 0 {
					t.Errorf("native %v: %v", native, h)
				}
				if native && n != h.GetSampleCount() {
					t.Errorf("%s: %d in buckets of %d", name, n, h.GetSampleCount())
				}
			}
		}
		if found != 3 {
			t.Errorf("%d histograms", found)
		}
	}
	f(false)
	f(true)
}

func TestTheGovernorSeesWhatHappens(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Governor.Enabled = setting.On
		c.Governor.Evidence = governor.EvidenceConfig{Dir: t.TempDir(), Profile: hub.Duration(100 * time.Millisecond)}
	})
	g.subscribers(t, 10, "")
	var s admin.Snapshot
	trial.Eventually(t, "it has seen connections, deliveries and the broker", func() bool {
		g.publish(t, "news", "1")
		s = get[admin.Snapshot](t, g, "/api/snapshot")
		v := s.Governor
		return v.Enabled && v.Traffic.Connections >= 20 && v.Traffic.Delivered > 0 && v.Delivery.Second.N > 0 && len(v.Loops) == 2 && v.Broker.Store.N > 0
	})
	if len(s.Heat) == 0 {
		t.Error("no heat maps")
	}
	res, body := g.do(t, "POST", "/api/bundles?reason=test", "")
	var b governor.Bundle
	if err := json.Unmarshal(body, &b); err != nil || res.StatusCode != 201 || b.ID == "" {
		t.Fatalf("capture: %d %s", res.StatusCode, body)
	}
	all := get[admin.Bundles](t, g, "/api/bundles")
	if !slices.ContainsFunc(all.Bundles, func(x governor.Bundle) bool { return x.ID == b.ID }) {
		t.Errorf("%v is not among %v", b, all.Bundles)
	}
	res, body = g.do(t, "GET", "/api/bundles/"+b.ID, "")
	if res.StatusCode != 200 || int64(len(body)) != b.Bytes || !bytes.HasPrefix(body, []byte{0x1f, 0x8b}) {
		t.Errorf("download: %d, %d bytes of %d", res.StatusCode, len(body), b.Bytes)
	}
	for _, id := range []string{"nothing", "..%2f..%2fetc%2fpasswd"} {
		if res, _ := g.fetch(t, "/api/bundles/"+id); res.StatusCode != 404 {
			t.Errorf("%s: %d", id, res.StatusCode)
		}
	}
}

// Whatever the engine, the kernel is queried about sockets: a reader that has stopped shows.
func TestAStoppedReaderShows(t *testing.T) {
	g := start(t, func(c *config.Config) {
		small(c)
		c.Governor.Enabled = setting.On
		c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes = 100_000, 64<<20
	})
	slow := g.slowDial(t, "GET /sse?channel=bulk HTTP/1.1\nHost: a\n\n")
	slow.Response()
	id := ""
	trial.Eventually(t, "it waits for its reader's window", func() bool {
		for range 20 {
			g.put(t, "bulk", `"`+strings.Repeat("x", 3000)+`"`)
		}
		all := get[admin.Connections](t, g, "/api/connections?limit=1")
		if len(all.Connections) == 0 {
			return false // it was too slow already
		}
		id = all.Connections[0].ID
		d := get[admin.ConnectionDetail](t, g, "/api/connections/"+id)
		return d.TCP != nil && d.TCP.WindowLimited > 0 && d.Kernel+d.Bytes > 0
	})
	var samples []governor.SocketSample
	samples = g.watching.watch.SocketSamples(samples, 0, 1)
	if !slices.ContainsFunc(samples, func(s governor.SocketSample) bool {
		return fmt.Sprint(s.ID) == id && s.TCP.ReaderLimited > 0
	}) {
		t.Errorf("%+v, want connection %s to wait for its reader", samples, id)
	}
}
