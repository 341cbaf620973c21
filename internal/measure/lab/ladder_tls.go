package lab

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// handshakeRates are how many new connections a second the arms of one experiment have.
var handshakeRates = []int{0, 50, 100, 200}

func tlsAside() Ladder {
	return Ladder{
		Name: "tls", Title: "D, aside. TLS and handshakes against the knee",
		Claim: "handshakes and ALPN against the knee: −18 % at 8,000 connections, −32 % at 16,000",
		Built: "Weir's echo on WebSocket with and without TLS 1.3 (P-256, X25519MLKEM768), with 1,000, 8,000 and 16,000 connections; then with new connections that " +
			"come beside the load. The knee is where a processor has no time left, so what it can do in a second is compared.",
		Experiments: []Experiment{tlsKnee(), tlsHandshakes()},
		Whole:       &Ref{"connections", "tls-16000", "plain-16000", "per_core"},
		Doubts: []Doubt{
			{"D aside", "What moves the knee is handshakes per second, not connections: of a second each takes τ, so capacity is (1 − τR) of what it was.", settleHandshakes},
			{"D aside", "−18 % at 8,000 and −32 % at 16,000 are a line through the number of connections, of which most do nothing.", func(r *Reading) string {
				few, many := r.Value("connections", "tls-1000", "per_core"), r.Value("connections", "plain-1000", "per_core")
				v := r.Ratio("connections", Step{Arm: "tls-16000", Base: "plain-16000", Metric: "per_core"})
				if v.N < 2 || few.N == 0 || many.N == 0 {
					return ""
				}
				return fmt.Sprintf("%s: TLS costs %.0f %% at 1,000 connections and %.0f %% at 16,000; the claim's line has −2 %% and −32 %%", outcome(v.Lo > 0.68*tolerance, v.Hi <= 0.68*tolerance),
					100*(1-few.Point/many.Point), 100*(1-v.Point))
			}},
		},
	}
}

func tlsKnee() Experiment {
	var arms []Arm
	for _, n := range []string{"1000", "8000", "16000"} {
		arms = append(arms, Arm{Name: "plain-" + n, Title: n + " connections, plain", Server: "weir"}, Arm{Name: "tls-" + n, Title: n + " connections, TLS", Server: "weir", TLS: true})
	}
	const why = "A record is encrypted and decrypted with each echo, however many connections there are. What grows with them is memory that no cache holds, and a connection with TLS has more of it: keys and buffers."
	return Experiment{
		Name: "connections", Title: "Echo at 1,000, 8,000 and 16,000 connections, with and without TLS",
		How:  "A closed loop: each connection sends its next message of 128 bytes when the one before has come back. Connections are open before it begins; a quick run has a quarter of them.",
		Arms: arms,
		Metrics: []Metric{
			{Key: "per_core", Name: "Echoes per CPU second", Unit: report.PerSec, More: true}, {Key: "cpu", Name: "Server CPU per echo", Unit: report.Seconds}, rate, memory,
		},
		Steps: []Step{
			{"tls-1000", "plain-1000", "per_core", 0, "", why},
			{"tls-8000", "plain-8000", "per_core", 0.82, "−18 % at 8,000 connections", why},
			{"tls-16000", "plain-16000", "per_core", 0.68, "−32 % at 16,000 connections", why},
		},
		Measure: func(ctx context.Context, b *Bench, a Arm) (Values, error) {
			return loaded(func(b *Bench) loadgen.Spec { return echoes(b.scaled(numberIn(a.Name))) })(ctx, b, a)
		},
		Cost: 8,
	}
}

// echoes is a closed loop of echoes on n connections.
func echoes(n int) loadgen.Spec {
	return loadgen.Spec{Kind: loadgen.Echo, Target: "/echo", Conns: n, Closed: true, Concurrency: n, ConnectRate: 5000}
}

// numberIn is the number behind the last dash of an arm's name.
func numberIn(name string) int {
	for i := len(name) - 1; i >= 0; i-- {
		if name[i] == '-' {
			n, _ := strconv.Atoi(name[i+1:]) // a test reads all names
			return n
		}
	}
	return 0
}

func tlsHandshakes() Experiment {
	var arms []Arm
	var steps []Step
	for _, r := range handshakeRates {
		name := "r-" + strconv.Itoa(r)
		arms = append(arms, Arm{Name: name, Title: fmt.Sprintf("%d new connections a second", r), Server: "weir", TLS: true})
		if r > 0 {
			steps = append(steps, Step{name, "r-0", "per_core", 0, "", "A full handshake is the server's signature and key exchange; while it makes one it makes no echoes."})
		}
	}
	return Experiment{
		Name: "handshakes", Title: "Echo beside new TLS connections",
		How:  "{200} connections with TLS echo in a closed loop; beside them others connect at a rate, make a full handshake and close.",
		Arms: arms,
		Metrics: []Metric{
			{Key: "per_core", Name: "Echoes per CPU second", Unit: report.PerSec, More: true}, {Key: "handshakes", Name: "Handshakes per second", Unit: report.PerSec, Plain: true}, p50,
		},
		Steps: steps, Measure: besideHandshakes, Cost: 0.5,
	}
}

// besideHandshakes measures echoes while new connections come at the rate in the arm's name.
func besideHandshakes(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	var made atomic.Int64
	var took time.Duration
	v, err := b.load(ctx, s, echoes(b.scaled(200)), func(ctx context.Context) {
		began := time.Now()
		connectAtRate(ctx, s.Addr, numberIn(a.Name), &made)
		took = time.Since(began)
	})
	if err == nil {
		v["handshakes"] = float64(made.Load()) / max(took.Seconds(), 1e-9)
	}
	return v, err
}

// connectAtRate makes so many TLS connections a second until ctx ends, and counts them.
func connectAtRate(ctx context.Context, addr string, rate int, made *atomic.Int64) {
	if rate <= 0 {
		<-ctx.Done()
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // its certificate is of today
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		running.Go(func() {
			if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
				made.Add(1)
				_ = c.Close()
			}
		})
	}
}

// settleHandshakes fits τ to what the experiment with handshakes found, and says how far the
// model 1 − τR is from it.
func settleHandshakes(r *Reading) string {
	const fits = 0.1
	type point struct {
		rate float64
		left stat.Interval // of the capacity
	}
	var points []point
	var up, down float64
	for _, n := range handshakeRates[1:] {
		name := "r-" + strconv.Itoa(n)
		v, x := r.Ratio("handshakes", Step{Arm: name, Base: "r-0", Metric: "per_core"}), r.Value("handshakes", name, "handshakes")
		if v.N < 2 || x.N == 0 {
			return ""
		}
		points = append(points, point{x.Point, v})
		up, down = up+x.Point*(1-v.Point), down+x.Point*x.Point
	}
	tau := up / max(down, 1e-12)
	worst, beyond, within := 0.0, false, true
	for _, p := range points {
		model := 1 - tau*p.rate
		worst = max(worst, math.Abs(p.left.Point-model))
		beyond = beyond || away(p.left, model) > fits
		within = within && farthest(p.left, model) <= fits
	}
	return fmt.Sprintf("%s: with τ = %s fitted, 1 − τR is %.0f points off at most; the claim knows no R", outcome(within, beyond), report.Seconds.Format(tau), 100*worst)
}
