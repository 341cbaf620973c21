package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// successor is the variable that makes this test binary a new process which takes over, and then fails in a way.
const successor = "WEIR_TEST_SUCCESSOR"

// failures are what a new process does with the first connection that follows. But for the one that dies it stays, and so do the
// sockets that it has received.
var failures = map[string]func(*takeover.Parent) error{
	"reads nothing":                   func(*takeover.Parent) error { return nil },
	"does not answer":                 followed,
	"answers with another frame":      answering(takeover.Serving, nil),
	"answers with an unknown frame":   answering(200, []byte("garbage")),
	"answers with garbage":            answering(takeover.Ready, bytes.Repeat([]byte{0xff}, 1000)),
	"answers, and reads nothing more": answering(takeover.Ready, nil),
	"answers, and closes the link": func(p *takeover.Parent) error {
		defer p.Close()
		return answering(takeover.Ready, nil)(p)
	},
	"answers, and dies": func(p *takeover.Parent) error {
		if err := answering(takeover.Ready, nil)(p); err != nil {
			return err
		}
		os.Exit(0)
		return nil
	},
}

// readsNothing is a new process that is prepared and then reads nothing.
const readsNothing = "is prepared, and reads nothing"

// answering answers the first batch of connections.
func answering(kind takeover.Type, body []byte) func(*takeover.Parent) error {
	return func(p *takeover.Parent) error { return errors.Join(followed(p), p.Send(kind, body)) }
}

// followed receives a batch.
func followed(p *takeover.Parent) error {
	for {
		kind, _, err := p.ReceiveConns()
		if err != nil || kind == takeover.Frozen {
			return err
		}
	}
}

// succeed is the new process.
func succeed(fails func(*takeover.Parent) error) error {
	p, err := takeover.FromEnvironment("failing")
	if err == nil {
		err = p.SendPrepared(false, "memory")
	}
	if os.Getenv(successor) == readsNothing {
		time.Sleep(time.Hour) // it is killed
	}
	var ahead []int
	if err == nil {
		err = p.ReceiveLog(func(_ takeover.Type, _ []byte, files []int) error { ahead = append(ahead, files...); return nil })
	}
	if err == nil {
		err = followed(p)
	}
	if err == nil {
		err = errors.Join(p.SendReady(nil), p.AwaitCommit(), p.Send(takeover.Serving, nil))
	}
	closeFiles(ahead)
	if err == nil {
		err = fails(p)
	}
	time.Sleep(time.Hour) // it is killed
	return err
}

// A new process that fails when connections follow after the commit has them, or they stay here, or they are closed: no client is
// left with a connection that neither process serves, and this process ends.
func TestANewProcessThatFailsLeavesNoConnectionBehind(t *testing.T) {
	for fails := range failures {
		t.Run(fails, func(t *testing.T) {
			if fails == "reads nothing" || fails == "does not answer" {
				trial.Long(t)
			}
			failingSuccessor(t, fails)
		})
	}
}

// While a new process reads none of the sockets that are sent ahead, connections are served, and the upgrade can be ended.
func TestANewProcessThatReadsNothingStopsNoLoop(t *testing.T) {
	t.Setenv(successor, readsNothing)
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := startApp(t, func(c *config.Config) { c.EventLoop.Loops = 1 }, Options{Files: map[string]downstream.Static{"/": {Body: []byte("here")}}, Program: this})
	var clients []*wiretest.Conn
	for range 2*takeover.MaxFiles + 1 {
		clients = append(clients, g.dial(t))
	}
	ask := func(w *wiretest.Conn) {
		t.Helper()
		w.Send(wiretest.CRLF("GET / HTTP/1.1\nHost: a\n\n"))
		if res, body := w.Answer("GET"); res.StatusCode != http.StatusOK || body != "here" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	}
	for _, w := range clients {
		ask(w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := g.Upgrade(ctx)
		failed <- err
	}()
	trial.Eventually(t, "the new process is prepared", func() bool { s := g.UpgradeState(); return s.Step == "preparing" && s.PID != 0 })
	for range 3 {
		for _, w := range clients {
			ask(w)
		}
	}
	cancel()
	if err := <-failed; err == nil {
		t.Error("the upgrade succeeded")
	}
	ask(clients[0])
}

func failingSuccessor(t *testing.T, fails string) {
	t.Setenv(successor, fails)
	started, release := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		fmt.Fprint(w, "done")
	}))
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(slow.Close)
	t.Cleanup(letGo)
	const size = 600 << 10 // more than the link takes, and less than what moves
	files := map[string]downstream.Static{"/big": {ContentType: "text/plain", Body: make([]byte, size)}}
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := startApp(t, func(c *config.Config) {
		c.Shutdown.Drain = hub.Duration(time.Minute)
		c.EventLoop.Sockets.SendBuffer = 4 << 10
		c.Clusters = []upstream.Config{{Name: "slow", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(slow.URL, "http://")}}}}
		c.Routes = []policy.RouteConfig{{Path: "/slow", Cluster: "slow"}}
	}, Options{Files: files, Program: this})
	w := g.dial(t)
	if err := w.Conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if fails == "reads nothing" { // so its state does not fit into the link
		w.Send(wiretest.CRLF("GET /big HTTP/1.1\nHost: a\n\n"))
	}
	w.Send(wiretest.CRLF("GET /slow HTTP/1.1\nHost: a\n\n"))
	<-started
	state, err := g.Upgrade(t.Context())
	t.Cleanup(func() { _ = syscall.Kill(state.PID, syscall.SIGKILL) })
	if err != nil {
		t.Fatal(err)
	}
	letGo()
	if fails != "reads nothing" {
		if res, body := w.Answer("GET"); res.StatusCode != http.StatusOK || body != "done" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
		if !w.Closed() {
			t.Error("the client's connection stays open")
		}
	}
	select {
	case err := <-g.done:
		g.done <- err
	case <-time.After(trial.Patience):
		t.Fatal("the process does not end")
	}
	if _, err := io.Copy(io.Discard, w.R); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the client's connection stays open after the process has ended")
	}
}
