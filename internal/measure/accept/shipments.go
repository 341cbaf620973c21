package accept

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func shipments() Indicator {
	return Indicator{
		Name: "shipments", Title: "Shipments followed by events, against polling",
		Definition: "Subscribers over SSE, ten to a shipment, each shipment updated every 30 s. Meanwhile up to 1,000 of them are disconnected and come back with their Last-Event-ID. The bytes of the events are compared with those of the same clients if each requests the state every 5 s.",
		Target:     "10,000 for 30 s (quick), 80,000 for 10 minutes (full); every client comes back, nothing lost, repeated or reordered; at most 0.36 of the bytes of polling",
		Method:     "As for the mixed connections. Bytes are those from the server, heads included, as the load generator reads them; a poll is answered by net/http with the same state. The bytes of answers to publishers count as events'.",
		criteria: append(noTrouble(true),
			criterion{name: "away", what: "disconnected clients that did not come back", kind: none},
			criterion{name: "disconnected", what: "clients that were disconnected", kind: some},
			criterion{name: "egress", what: "bytes of events, of those of polling", kind: atMost, limit: 0.36, unit: share},
			criterion{name: "refused", what: "times that a client was refused or closed beside those disconnections", kind: info},
			connectingTook(),
			criterion{name: "connect", what: "P95 of connecting", kind: info, unit: seconds},
			criterion{name: "each", what: "resident memory of the gateway for each connection", kind: info, unit: bytesUnit},
		),
		plots:   []plot{{"Memory", []string{"rss"}, bytesUnit}},
		measure: measureShipments,
	}
}

const (
	shipmentEvery  = 30 * time.Second // between two updates of a shipment
	shipmentPolls  = 5 * time.Second  // between two requests of a client that polls
	shipmentSize   = 256              // of its state, in bytes
	shipmentReader = 10               // subscribers of one
	mostCut        = 1000             // clients that are disconnected
)

func measureShipments(ctx context.Context, w *world) error {
	n := hold(w, w.plan.tracked)
	if w.plan.trackedLess != "" {
		w.ev.Reduced = w.plan.trackedLess
	}
	s, url, err := w.placed(ctx, baseConfig+idleForLong+"namespaces: [{name: default, anonymous: true, durability: stored}]\n"+eventloopFor(n, room()))
	if err != nil {
		return err
	}
	defer s.Stop()
	before, err := s.RSS()
	if err != nil {
		return err
	}
	spec := loadgen.Spec{
		Kind: loadgen.PubSub, Target: url + "/sse?channel=shipment-{channel}", Adapter: "weir", Conns: n, Channels: max(n/shipmentReader, 1), Publishers: 8,
		Rate: max(float64(n)/shipmentReader/shipmentEvery.Seconds(), 20), Payload: shipmentSize, Headers: []string{"X-API-Key: " + apiKey}, ConnectRate: 3000, Timeout: 30 * time.Second, Reconnect: true,
		Warmup: 3 * time.Second, Duration: w.plan.trackedFor, Window: max(time.Second, w.plan.trackedFor/maxPoints),
	}
	if spec, err = spec.WithSourceAddresses(n + spec.Publishers); err != nil {
		return err
	}
	w.progress("%d clients for %v", n, w.plan.trackedFor)
	var cutting sync.WaitGroup
	var cut uint64
	var cutErr error
	loaded, ended := context.WithCancel(ctx)
	defer ended()
	all, err := w.loadWatched(ctx, s, w.plan.trackedFor, func() {
		// After a quarter of the time: there are three left for the clients to come back and catch up.
		cutting.Go(func() { cut, cutErr = cutSome(loaded, s, n, spec.Warmup+w.plan.trackedFor/4) })
	}, spec)
	ended() // there are no clients to disconnect any more
	cutting.Wait()
	if errors.Is(cutErr, context.Canceled) && ctx.Err() == nil {
		cutErr = nil // the load ended first: the count says so
	}
	if err := cmp.Or(err, cutErr); err != nil {
		return err
	}
	t := &all[0].Total
	w.trouble(all[0])
	w.ev.count("disconnected", cut, uint64(n))
	if d := t.Delivery; d != nil {
		closes := uint64(0)
		for _, n := range d.Closes {
			closes += n
		}
		w.ev.value("refused", float64(closes-min(closes, cut)))
		w.ev.count("away", closes-min(d.Reconnects, closes), closes)
	}
	if t.Connect != nil && t.Connect.TotalCount() > 0 {
		w.ev.value("connect", float64(t.Connect.ValueAtPercentile(95))/1e6)
	}
	if v := w.ev.Series["rss"].Y; len(v) > 0 {
		w.ev.value("each", (v[len(v)-1]-before)/float64(n))
	}
	poll, err := pollBytes(ctx, w)
	if err != nil {
		return err
	}
	// As often as each channel was updated in this run, if that was more often than its shipment is.
	events := float64(t.BytesIn) / t.Length.Seconds() * min(1, float64(n)/shipmentReader/shipmentEvery.Seconds()/spec.Rate)
	w.ev.value("egress", events/(float64(n)*poll/shipmentPolls.Seconds()))
	w.ev.note("%.0f bytes a second of events for %d clients; a poll is answered with %.0f bytes", events, n, poll)
	return nil
}

// cutSome disconnects a tenth of the n subscribers, which are all there, after some time.
func cutSome(ctx context.Context, s *process.Server, n int, after time.Duration) (cut uint64, err error) {
	if !sleep(ctx, after) {
		return 0, ctx.Err()
	}
	b, err := get(ctx, fmt.Sprintf("%s/api/connections?sort=age&limit=%d", s.Admin, min(max(n/10, 1), mostCut)))
	if err != nil {
		return 0, err
	}
	var list struct {
		Connections []struct {
			ID string `json:"id"`
		} `json:"connections"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return 0, err
	}
	for _, c := range list.Connections {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Admin+"/api/connections/"+c.ID+"/disconnect", nil)
		if err != nil {
			return cut, err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return cut, err
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusNoContent {
			cut++
		}
	}
	return cut, nil
}

// pollBytes is what the answer to a client that polls has, with its head.
func pollBytes(ctx context.Context, w *world) (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	state := loadgen.PriceText(shipmentSize)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, state) // a client that is gone needs none
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // ends with ErrServerClosed
	defer func() { _ = s.Close(); serving.Wait() }()
	all, err := w.load(ctx, "polls", loadgen.Spec{Kind: loadgen.HTTP, Target: "http://" + l.Addr().String() + "/shipment", Conns: 8, Rate: 200, Warmup: 100 * time.Millisecond, Duration: 2 * time.Second})
	if err != nil {
		return 0, err
	}
	t := &all[0].Total
	if n := t.Completed + t.Drained; n > 0 {
		return float64(t.BytesIn) / float64(n), nil
	}
	return 0, errors.New("no poll was answered")
}
