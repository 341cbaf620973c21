package nats

import (
	"fmt"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

// A bystander is a program on NATS without Weir, to compare with: a publisher that tries again
// until it is answered, and a subscriber to what the log republishes. It shares a replicated
// log of their own with the other ones, whose leader is that of the world's log.
type bystander struct {
	mu     sync.Mutex
	silent time.Duration // the longest time without a message
	came   time.Time
	waited time.Duration // the longest that a publish waited for its answer
}

const plainLog = "plain"

// startBystanders starts one at each server. They publish until stop is closed.
func (w *world) startBystanders() []*bystander {
	w.t.Helper()
	var all []*bystander
	for i := range w.servers {
		nc, err := natsgo.Connect(w.url(i), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(100*time.Millisecond),
			natsgo.PingInterval(time.Second), natsgo.MaxPingsOutstanding(2), natsgo.Timeout(time.Second))
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(nc.Close)
		js, err := nc.JetStream()
		if err != nil {
			w.t.Fatal(err)
		}
		if i == 0 {
			w.makePlainLog(js, nc)
		}
		p := &bystander{came: time.Now()}
		if _, err := nc.Subscribe("plain.out.>", p.receive); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, p)
		w.wg.Go(func() { p.publish(w, js, fmt.Sprint(i)) })
	}
	return all
}

// makePlainLog makes the log and gives it the leader of the world's.
func (w *world) makePlainLog(js natsgo.JetStreamContext, nc *natsgo.Conn) {
	w.t.Helper()
	_, err := js.AddStream(&natsgo.StreamConfig{Name: plainLog, Subjects: []string{"plain.in.>"}, Replicas: 3,
		RePublish: &natsgo.RePublish{Source: "plain.in.>", Destination: "plain.out.>"}})
	if err != nil {
		w.t.Fatal(err)
	}
	want := w.servers[w.leader()].Name
	hubtest.Until(w.t, patience, "the leader of the plain log to be "+want, func() bool {
		in, err := js.StreamInfo(plainLog)
		if err != nil || in.Cluster == nil || in.Cluster.Leader == want {
			return err == nil && in.Cluster != nil
		}
		_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+plainLog, []byte(`{"placement":{"preferred":"`+want+`"}}`), time.Second)
		return false
	})
}

func (p *bystander) receive(*natsgo.Msg) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent, p.came = max(p.silent, now.Sub(p.came)), now
}

func (p *bystander) publish(w *world, js natsgo.JetStreamContext, name string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		began := time.Now()
		for {
			_, err := js.Publish("plain.in."+name, []byte("x"), natsgo.MsgId(fmt.Sprint(name, " ", n)), natsgo.AckWait(250*time.Millisecond))
			if err == nil || time.Since(began) > patience {
				break
			}
			select {
			case <-w.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		p.mu.Lock()
		p.waited = max(p.waited, time.Since(began))
		p.mu.Unlock()
	}
}

// logBystanders logs what all met.
func logBystanders(t *testing.T, all []*bystander) {
	waited, silent := "", ""
	for _, p := range all {
		p.mu.Lock()
		waited += fmt.Sprintf("%.1fs ", p.waited.Seconds())
		silent += fmt.Sprintf("%.1fs ", p.silent.Seconds())
		p.mu.Unlock()
	}
	t.Logf("plain clients: longest without an answer %ssilent %s", waited, silent)
}
