package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/observe/asynclog"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestLogHidesSecrets(t *testing.T) {
	f := func(format, want string) {
		t.Helper()
		var b bytes.Buffer
		log, _ := newLog(&b, config.Log{Format: format})
		log.Info("connected", "url", "nats://user:hunter2@host:4222", "token", "hunter2", "n", 1)
		if got := b.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, want) {
			t.Errorf("format %q: %s", format, got)
		}
	}
	f("", "token=[redacted] n=1")
	f("text", "token=[redacted] n=1")
	f("json", `"token":"[redacted]","n":1`)
}

// A node whose log goes to a pipe that is full and not read keeps serving, and ends when
// it is asked to. Once the pipe is read, the log says how many lines are missing.
func TestUnreadLogDoesNotStopTheNode(t *testing.T) {
	t.Parallel()
	for _, read := range []bool{true, false} {
		t.Run(fmt.Sprintf("read afterwards %t", read), func(t *testing.T) { serveUnread(t, read) })
	}
}

func serveUnread(t *testing.T, read bool) {
	t.Helper()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Broker.Kind = "127.0.0.1:0", "127.0.0.1:0", config.BrokerMemory
	cfg.Log.Level = "debug"
	log := asynclog.New(pipe, 16<<10, func(lines uint64) []byte { return droppedNotice(cfg.Log, lines) })
	started, announce := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- serve(ctx, cfg, app.Options{}, announce, log)
		_ = announce.Close()
	}()
	line := make([]byte, 200)
	n, err := started.Read(line)
	if err != nil {
		t.Fatalf("not started: %v, %v", err, <-served)
	}
	urls := regexp.MustCompile(`http://([0-9.:]+)`).FindAllStringSubmatch(string(line[:n]), -1)
	if len(urls) != 2 {
		t.Fatalf("%q does not have both addresses", line[:n])
	}
	public, admin := urls[0][1], urls[1][1]

	trial.Eventually(t, "lines of the log are dropped", func() bool {
		for range 100 {
			sendMalformed(t, public) // its event loop logs it
		}
		return log.Dropped() > 0
	})
	for range 20 { // no loop is blocked
		sendMalformed(t, public)
	}
	if n := seriesOf(t, admin, "weir_log_dropped_total"); n <= 0 {
		t.Errorf("weir_log_dropped_total %v", n)
	}

	var text []byte
	whole := make(chan struct{})
	if read {
		go func() {
			defer close(whole)
			text, _ = io.ReadAll(r)
		}()
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	log.Close()
	_ = pipe.Close()
	if !read {
		return // Close gave up
	}
	<-whole
	reported := uint64(0)
	for _, m := range regexp.MustCompile(`msg="log lines dropped" lines=(\d+)\n`).FindAllSubmatch(text, -1) {
		n, _ := strconv.ParseUint(string(m[1]), 10, 64)
		reported += n
	}
	if reported == 0 || reported != log.Dropped() {
		t.Errorf("%d lines reported as dropped, want %d", reported, log.Dropped())
	}
}

// sendMalformed sends what is not HTTP and expects the answer.
func sendMalformed(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // a blocked loop does not answer
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nno header\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Fatalf("%q, %v", answer, err)
	}
}

// seriesOf is a series without labels of the admin listener's metrics, -1 without it.
func seriesOf(t *testing.T, admin, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
