package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/test/judge"
)

// A new process takes over from one that serves, several times, while messages come: no client
// is disconnected, and nothing is lost, repeated or out of order.
func TestUpgradesDisconnectNoClient(t *testing.T) {
	external := map[string]any{"broker": map[string]any{"kind": "nats", "nats": map[string]any{"url": natstest.Server(t), "dir": nil}}}
	f := func(name string, o judge.Options, engine string) {
		t.Run(name+" "+engine, func(t *testing.T) {
			o.Build = judge.Race
			config := map[string]any{"eventloop": map[string]any{"engine": engine, "loops": 2}}
			maps.Copy(config, o.Config)
			o.Config = config
			upgrades(t, o)
		})
	}
	f("memory", judge.Options{Memory: true}, "io_uring")
	f("memory TLS", judge.Options{Memory: true, TLS: true}, "epoll")
	f("external NATS TLS", judge.Options{TLS: true, Config: external}, "io_uring")
	f("embedded NATS", judge.Options{}, "epoll")
}

func upgrades(t *testing.T, o judge.Options) {
	const times, clients = 3, 60
	s := judge.New(t, o)
	f := judge.NewFleet(t, everything)
	p := &judge.Publisher{Addr: s.Public}
	if o.TLS {
		f.Dial = dialTLS(judge.Trust(t, s.Authority))
		p.Addr = s.Admin
	}
	streams := &nodetest.Bridge{To: s.Public}
	if o.TLS {
		streams.TLS = judge.Trust(t, s.Authority)
	}
	streams.Start(t, t.Cleanup)
	f.Sail(s.Public, clients/3, channels)
	dial := f.Dial
	f.Dial = nil // to the bridge
	f.Sail(streams.Addr, clients/6, channels)
	f.Dial = dial
	stop := publishing(t, p, 300)
	zero := make([]int64, len(f.Members))
	more := func() {
		t.Helper()
		n := len(p.Acked())
		judge.Eventually(t, 30*time.Second, "more messages are published", func() bool { return len(p.Acked()) >= n+60 })
	}
	judge.Eventually(t, 30*time.Second, "every client is connected", func() bool { return f.Connected(zero) == len(f.Members) })
	revoke(t, s)
	for i := range times {
		more()
		u := s.Upgrade()
		if u.Step != "done" {
			t.Fatalf("upgrade %d: %+v", i, u)
		}
		t.Logf("upgrade %d: %+v", i, u)
		if u.Moved == 0 || u.Bytes/clients > 512 {
			t.Errorf("%d connections moved with %d bytes", u.Moved, u.Bytes)
		}
	}
	more()
	stop()
	wantRevoked(t, s)
	acked := p.Acked()
	f.CaughtUp(acked, 30*time.Second)
	servedWithout(t, f)
	if n := streams.Dialed(); n != 1 {
		t.Errorf("%d connections of HTTP/2, want 1", n)
	}
	f.Land()
	f.Judge(acked)
}

// revoke revokes more subjects than the processes exchange at a time.
func revoke(t *testing.T, s *judge.Server) {
	t.Helper()
	for i := range revokedSubjects {
		res, err := http.Post(fmt.Sprintf("http://%s/api/revocations/subject/former-%d", s.Admin, i), "", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if _ = res.Body.Close(); res.StatusCode != http.StatusOK {
			t.Fatalf("revoke: %s", res.Status)
		}
	}
}

const revokedSubjects = 501

// wantRevoked checks that all that were revoked are.
func wantRevoked(t *testing.T, s *judge.Server) {
	t.Helper()
	res, err := http.Get("http://" + s.Admin + "/api/revocations")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var list admin.Revocations
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil || len(list.Revocations) != revokedSubjects {
		t.Errorf("%d of %d subjects are revoked: %v", len(list.Revocations), revokedSubjects, err)
	}
}

// servedWithout checks that no client was disconnected.
func servedWithout(t *testing.T, f *judge.Fleet) {
	t.Helper()
	for i, n := range f.Sessions() {
		if n != 1 {
			t.Errorf("%s: %d sessions, want 1", f.Members[i].Name, n)
		}
	}
}

// dialTLS connects with TLS 1.2 and 1.3 alternately.
func dialTLS(trust *tls.Config) func(context.Context, string) (net.Conn, error) {
	var n atomic.Int64
	return func(ctx context.Context, addr string) (net.Conn, error) {
		cfg := trust.Clone()
		if n.Add(1)%2 == 0 {
			cfg.MaxVersion = tls.VersionTLS12
		}
		return (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	}
}

// dyingSteps are where a new process may die without a client noticing.
var dyingSteps = []string{"start", "hello", "prepared", "log", "connections", "all connections"}

// dieInAnUpgrade makes this test binary a new process that takes over as far as the file
// beside it says, and dies there. Without that file it does nothing.
func dieInAnUpgrade() {
	b, err := os.ReadFile(os.Args[0] + ".dies")
	if err != nil {
		return
	}
	at := func(step string) {
		if string(b) == step {
			p, _ := os.FindProcess(os.Getpid())
			_ = p.Kill()
			select {}
		}
	}
	no := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "the dying process:", err)
			os.Exit(1)
		}
	}
	at("start")
	p, err := takeover.FromEnvironment("dying")
	no(err)
	if string(b) == "refuses" {
		p.Refuse(errors.New("this build is broken"))
		os.Exit(1)
	}
	at("hello")
	no(p.SendPrepared(false, ""))
	at("prepared")
	no(p.ReceiveLog(func(takeover.Type, []byte, []int) error { return nil }))
	at("log")
	for t := takeover.Conns; t == takeover.Conns; {
		t, _, err = p.ReceiveConns()
		no(err)
		at("connections")
	}
	at("all connections")
	no(p.SendReady(nil))
	no(p.AwaitCommit())
	at("commit")
	os.Exit(1)
}

// A new process that dies, refuses or cannot be built changes nothing: the old one serves on
// with every connection, and the next upgrade works.
func TestAFailedUpgradeDisconnectsNoClient(t *testing.T) {
	t.Run("memory", func(t *testing.T) { failedUpgrades(t, judge.Options{Memory: true}, "epoll") })
	t.Run("embedded NATS", func(t *testing.T) { failedUpgrades(t, judge.Options{}, "io_uring") })
}

func failedUpgrades(t *testing.T, o judge.Options, engine string) {
	o.Build, o.Config = judge.Race, map[string]any{"eventloop": map[string]any{"engine": engine, "loops": 2}}
	s := judge.New(t, o)
	s.Terminate()
	original := s.OwnProgram()
	s.Start()
	f := judge.NewFleet(t, everything)
	f.Sail(s.Public, 20, channels)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 200)
	zero := make([]int64, len(f.Members))
	more := func() {
		t.Helper()
		n := len(p.Acked())
		judge.Eventually(t, 30*time.Second, "more messages are published", func() bool { return len(p.Acked()) >= n+30 })
	}
	judge.Eventually(t, 30*time.Second, "every client is connected", func() bool { return f.Connected(zero) == len(f.Members) })
	pid := s.Pid()
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dies := func(step, want string) {
		t.Helper()
		s.Replace(this, step)
		more()
		if u := s.Upgrade(); u.Step != "failed" || !strings.Contains(u.Error, want) || s.Pid() != pid || !s.Alive() {
			t.Errorf("new process that dies at %q: %+v", step, u)
		}
		more()
	}
	for _, step := range dyingSteps {
		dies(step, "")
	}
	dies("refuses", "this build is broken")
	servedWithout(t, f)
	// Past the commit the new process is the server: if it dies there, clients resume.
	dies("commit", "connections are closed")
	s.Replace(original, "")
	if u := s.Upgrade(); u.Step != "done" {
		t.Errorf("after all of that: %+v", u)
	}
	more()
	stop()
	acked := p.Acked()
	f.CaughtUp(acked, 30*time.Second)
	f.Land()
	f.Judge(acked)
}

// onEngines runs f with each engine of the loops, side by side.
func onEngines(t *testing.T, f func(t *testing.T, engine string)) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			f(t, engine)
		})
	}
}
