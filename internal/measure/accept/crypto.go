package accept

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

func crypto() Indicator {
	return Indicator{
		Name: "crypto", Number: "17", Title: "National cryptography",
		Definition: "Publications at the target rate on connections of TLCP (GB/T 38636) and of TLS_SM4_GCM_SM3 (RFC 8998), and full handshakes of both.",
		Target:     "the gateway uses ≤ 65 % of the processors at the target rate; the cost of 1,000 handshakes is reported",
		Method:     "Processor time of the gateway's process in pieces of an open model, and for handshakes one after the other. The generator is on the same machine.",
		criteria: []criterion{
			{name: "cpu tlcp", what: "processors in use, TLCP", kind: atMost, limit: 0.65, unit: share, timed: true},
			{name: "cpu tls13", what: "processors in use, RFC 8998", kind: atMost, limit: 0.65, unit: share, timed: true},
			{name: "rate", what: "completed of the offered", kind: atLeast, limit: 0.99, unit: share, timed: true},
			{name: "errors", what: "errors", kind: none},
			{name: "handshakes tlcp", what: "processor time of 1,000 full handshakes, TLCP", kind: info, unit: seconds},
			{name: "handshakes tls13", what: "processor time of 1,000 full handshakes, RFC 8998", kind: info, unit: seconds},
		},
		measure: measureCrypto,
	}
}

// A cryptoRun is one measurement of crypto.
type cryptoRun struct{ *world }

func measureCrypto(ctx context.Context, of *world) error {
	w := cryptoRun{of}
	rate, err := w.plainRate(ctx)
	if err != nil {
		return err
	}
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: w.dir, Hosts: []string{"localhost"}, Lifetime: 24 * time.Hour}); err != nil {
		return err
	}
	if err := process.WriteCertificate(w.dir); err != nil {
		return err
	}
	file := func(name string) string { return strconv.Quote(filepath.Join(w.dir, name)) }
	s, err := w.gateway(ctx, plainConfig+fmt.Sprintf(`tls:
  certificates: [{cert_file: %s, key_file: %s}]
  gm: {certificates: [{sign_cert_file: %s, sign_key_file: %s, enc_cert_file: %s, enc_key_file: %s}]}
`, file("modern.pem"), file("modern.key"), file("sign.pem"), file("sign.key"), file("enc.pem"), file("enc.key")))
	if err != nil {
		return err
	}
	defer s.Stop()
	for _, suite := range []struct {
		name string
		*gm.Suite
	}{{"tlcp", gm.SuiteOf(gm.VersionTLCP, gm.ECC_SM4_GCM_SM3)}, {"tls13", gm.SuiteOf(gm.VersionTLS13, gm.TLS_SM4_GCM_SM3)}} {
		for range 3 {
			if err := w.handshakes(ctx, s, suite.name, suite.Suite); err != nil {
				return fmt.Errorf("handshakes, %s: %w", suite.name, err)
			}
		}
		if err := w.encrypted(ctx, s, suite.name, rate); err != nil {
			return fmt.Errorf("%s: %w", suite.name, err)
		}
	}
	return nil
}

// plainRate is the target rate, searched on a gateway without encryption.
func (w cryptoRun) plainRate(ctx context.Context) (float64, error) {
	s, err := w.gateway(ctx, plainConfig)
	if err != nil {
		return 0, err
	}
	defer s.Stop()
	return w.targetRate(ctx, s, fanSpec("http://"+s.Addr))
}

// handshakes measures full ones, one after the other.
func (w cryptoRun) handshakes(ctx context.Context, s *process.Server, name string, suite *gm.Suite) error {
	many := func(n int) error {
		for range n {
			var d net.Dialer
			raw, err := d.DialContext(ctx, "tcp", s.Addr)
			if err != nil {
				return err
			}
			c, err := gm.DialStream(raw, &gm.ClientConfig{Version: suite.Version, Suites: []uint16{suite.ID}, ServerName: "localhost", InsecureSkipVerify: true})
			if err != nil {
				return errors.Join(err, raw.Close())
			}
			_ = c.Close()
		}
		return nil
	}
	if err := many(w.plan.handshakes/10 + 1); err != nil { // warm up
		return err
	}
	before, err := sys.CPUTimeOf(s.PID())
	if err != nil {
		return err
	}
	if err := many(w.plan.handshakes); err != nil {
		return err
	}
	after, err := sys.CPUTimeOf(s.PID())
	w.ev.value("handshakes "+name, (after-before).Seconds()*1000/float64(w.plan.handshakes))
	return err
}

// encrypted measures the gateway's processor time at the rate.
func (w cryptoRun) encrypted(ctx context.Context, s *process.Server, name string, rate float64) error {
	spec := publications("https://"+s.Addr, "a", 64, 128)
	spec.GM, spec.Insecure = name, true
	g, err := loadgen.New(spec, nil)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }() // its connections end either way
	if err := g.Connect(ctx); err != nil {
		return err
	}
	stop := w.watch(ctx, s, 0, time.Duration(w.plan.trials)*w.plan.piece)
	defer stop()
	for range w.plan.trials {
		before, err := sys.CPUTimeOf(s.PID())
		if err != nil {
			return err
		}
		began := time.Now()
		win, err := g.Measure(ctx, loadgen.Load{Rate: rate}, w.plan.piece)
		if err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		after, err := sys.CPUTimeOf(s.PID())
		if err != nil {
			return err
		}
		addLimited(w.world, []loadgen.Window{*win})
		var n uint64
		for _, k := range win.Errors {
			n += k
		}
		w.ev.count("errors", n, win.Offered)
		w.ev.value("rate", float64(win.Completed+win.Drained)/float64(max(win.Offered, 1)))
		w.ev.value("cpu "+name, (after-before).Seconds()/took/float64(runtime.NumCPU()))
	}
	return ctx.Err()
}
