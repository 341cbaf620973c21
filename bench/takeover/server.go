package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

const apiKey = "takeover-benchmark-key"

// server is a running server, of which the process changes.
type server struct {
	addr, admin, dir string
	tls              *tls.Config // nil: in the clear
	pid              int
	first            *exec.Cmd
}

// start starts a server whose route leads to a backend.
func start(o *options, secure bool, backend string) (s *server, err error) {
	s = &server{}
	if s.dir, err = os.MkdirTemp("", "weir-takeover"); err != nil {
		return nil, err
	}
	if s.addr, err = program.FreeAddr(); err == nil {
		s.admin, err = program.FreeAddr()
	}
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: %s, nats: {dir: %q}}
eventloop: {engine: %q, loops: %d}
auth: {api_keys: [{name: takeover, key: %s, publish: ["**"]}]}
namespaces: [{name: default, anonymous: true, durability: stored, history_size: 200000}]
shutdown: {drain: 5s}
clusters: [{name: backend, peers: [{address: %q}], pool: {max_per_peer: 65535}}]
routes: [{path: /tunnel, cluster: backend}]
`, s.addr, s.admin, o.broker, filepath.Join(s.dir, "log"), o.engine, o.loops, apiKey, backend)
	if secure {
		certificate, err := s.certify()
		if err != nil {
			return nil, err
		}
		config += certificate
	}
	file := filepath.Join(s.dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s.first = exec.Command(o.weir, "serve", "--config", file)
	log, err := os.Create(filepath.Join(s.dir, "weir.log")) // a file, which the next processes inherit
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	s.first.Stdout, s.first.Stderr = log, log
	if err := s.first.Start(); err != nil {
		return nil, err
	}
	s.pid = s.first.Process.Pid
	for range 400 {
		if _, err := program.Get(context.Background(), "http://"+s.admin+"/readyz"); err == nil {
			return s, nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	said, _ := os.ReadFile(log.Name())
	s.stop()
	return nil, fmt.Errorf("the server does not answer: %s", said)
}

// certify makes a certificate and returns the configuration of it.
func (s *server) certify() (config string, err error) {
	cert, key, err := program.Certificate(s.dir)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(cert)
	s.tls = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	s.tls.RootCAs.AppendCertsFromPEM(text)
	return fmt.Sprintf("tls: {certificates: [{cert_file: %q, key_file: %q}]}\n", cert, key), err
}

// upgrade replaces the process.
func (s *server) upgrade() (u admin.Upgrade, err error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Post("http://"+s.admin+"/api/upgrade", "", http.NoBody)
	if err != nil {
		return u, err
	}
	defer func() { _ = res.Body.Close() }()
	if err = json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&u); err != nil {
		return u, err
	}
	if u.Step != "done" {
		return u, fmt.Errorf("%s: %s", u.Step, u.Error)
	}
	old := s.pid
	s.pid = u.PID
	if s.first != nil {
		_ = s.first.Wait() // it ends because it was replaced
		s.first = nil
		return u, nil
	}
	for range 1200 {
		if syscall.Kill(old, 0) != nil || zombie(old) {
			return u, nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	return u, fmt.Errorf("process %d does not end", old)
}

// zombie reports whether a process has ended and has not been waited for.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

// usage returns the descriptors of the process and its resident memory.
func (s *server) usage() (files, memory int, err error) {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		return 0, 0, err
	}
	resident, err := program.Resident(s.pid)
	return len(list), int(resident), err
}

func (s *server) stop() {
	_ = syscall.Kill(s.pid, syscall.SIGTERM)
	if s.first != nil {
		_ = s.first.Wait()
	}
	for range 400 {
		if syscall.Kill(s.pid, 0) != nil || zombie(s.pid) {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	_ = os.RemoveAll(s.dir)
}
