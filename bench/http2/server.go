package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const apiKey = "bench-key-of-this-run"

// A gateway is a running weir.
type gateway struct {
	addr, admin string
	cmd         *exec.Cmd
	log         bytes.Buffer
	done        chan struct{} // closed when it has ended
}

// start runs a fresh gateway on CPU 0. Whatever is not its own goes to backend, if there
// is one.
func (b *bench) start(ctx context.Context, w way, backend string) (*gateway, error) {
	g := &gateway{done: make(chan struct{})}
	var err error
	if g.addr, err = freeAddr(ctx); err != nil {
		return nil, err
	}
	if g.admin, err = freeAddr(ctx); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: memory}
eventloop: {engine: %q}
namespaces: [{name: default, anonymous: true}]
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
log: {level: warn}
`, g.addr, g.admin, b.engine, apiKey)
	if w.tls {
		config += fmt.Sprintf("tls: {certificates: [{cert_file: %q, key_file: %q}]}\n", b.cert, b.key)
	}
	if w.version == 3 {
		config += "downstream: {http3: true}\n"
	}
	if backend != "" {
		config += fmt.Sprintf("routes: [{path: /*, cluster: b, limits: {max_body: -1}}]\nclusters: [{name: b, peers: [{address: %q}]}]\n", backend)
	}
	file := filepath.Join(b.dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	g.cmd = exec.CommandContext(ctx, "taskset", "-c", "0", b.weir, "serve", "--config", file)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = g.cmd.Wait() // its end is all that counts
		close(g.done)
	}()
	for range 1000 {
		if _, err = get(ctx, "http://"+g.admin+"/readyz"); err == nil {
			return g, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	g.stop()
	return nil, fmt.Errorf("the gateway does not answer: %w\n%s", err, g.log.String())
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Kill() // it may have ended
	<-g.done
}

func freeAddr(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // a compressor would be memory of the server's
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(url + ": " + res.Status)
	}
	return body, err
}

// A usage is what the gateway has used so far, and holds now.
type usage struct {
	cpu       time.Duration
	rss, peak float64       // bytes
	core      time.Duration // busy time of CPU 0, of all processes
	at        time.Time
}

func (g *gateway) usage() (u usage, err error) {
	// The process's clock is exact, and has the threads that ended.
	var t syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^g.cmd.Process.Pid<<3|2), uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		return u, fmt.Errorf("the process's clock: %w", e)
	}
	u.cpu, u.at = time.Duration(t.Nano()), time.Now()
	if u.rss, err = g.kilobytes("smaps_rollup", "Rss"); err != nil {
		return u, err
	}
	if u.peak, err = g.kilobytes("status", "VmHWM"); err != nil {
		return u, err
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "cpu0" && len(f) > 7 {
			for _, i := range []int{1, 2, 3, 6, 7} {
				ticks, _ := strconv.Atoi(f[i])
				u.core += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
	}
	return u, nil
}

func (g *gateway) kilobytes(file, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", g.cmd.Process.Pid, file))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("/proc/PID/%s has no %s", file, name)
	}
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	return kb * 1024, err
}

// othersPercent is how much of CPU 0 other processes used between two readings.
func othersPercent(before, after usage) float64 {
	return 100 * ((after.core - before.core) - (after.cpu - before.cpu)).Seconds() / after.at.Sub(before.at).Seconds()
}

// runtimeState collects garbage and returns what the runtime then says of itself.
func (g *gateway) runtimeState(ctx context.Context) (map[string]float64, error) {
	if _, err := get(ctx, "http://"+g.admin+"/debug/pprof/heap?gc=1"); err != nil {
		return nil, err
	}
	text, err := get(ctx, "http://"+g.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				m[name] = v
			}
		}
	}
	return m, nil
}

// certificate writes one for 127.0.0.1 and returns its files.
func certificate(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &private.PublicKey, private)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return cert, key, errors.Join(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
}
