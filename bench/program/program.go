// Package program is what the benchmark programs share: the processes that they start, and what
// those use.
package program

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	log  bytes.Buffer  // what it wrote; to be read when done is closed or by Ready's error
	done chan struct{} // closed when it has ended
}

// Options say how a Process is started; the zero value is fine.
type Options struct {
	CPUs   string    // as taskset names them; empty: all
	Env    []string  // added to the environment
	Stderr io.Writer // nil: kept for the error of Ready
}

// Start starts a program, which is killed when ctx is done or this process ends.
func (o Options) Start(ctx context.Context, args ...string) (*Process, error) {
	if o.CPUs != "" {
		args = append([]string{"taskset", "-c", o.CPUs}, args...)
	}
	p := &Process{cmd: exec.CommandContext(ctx, args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), o.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if o.Stderr != nil {
		p.cmd.Stdout, p.cmd.Stderr = nil, o.Stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // its end is all that counts
		close(p.done)
	}()
	return p, nil
}

// Ready waits until check succeeds, at most 30 s. If it does not, the process is ended, and the
// error has what it wrote.
func (p *Process) Ready(check func() error) error {
	err := check()
	for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); err = check() {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", p.cmd, p.log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err == nil {
		return nil
	}
	p.Kill()
	return fmt.Errorf("%s is not ready: %w: %s", p.cmd, err, p.log.String())
}

// Accepts is a check for Ready: a TCP connection.
func Accepts(addr string) func() error {
	return func() error {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// Answers is a check for Ready: a GET that is answered with 200.
func Answers(ctx context.Context, url string) func() error {
	return func() error {
		_, err := Get(ctx, url)
		return err
	}
}

// PID is the process's number, also after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop has the process end and waits for that.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-p.done
}

// Kill ends the process at once.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// CPU is the processor time that a process has used so far, user and kernel, with the threads
// that have ended.
func CPU(pid int) (time.Duration, error) {
	var t syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^pid<<3|2), uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		return 0, fmt.Errorf("the clock of process %d: %w", pid, e)
	}
	return time.Duration(t.Nano()), nil
}

// CPUWithChildren is CPU with that of the process's children that run.
func CPUWithChildren(pid int) (time.Duration, error) {
	sum, err := CPU(pid)
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, child := range strings.Fields(string(children)) {
		n, err := strconv.Atoi(child)
		if err != nil {
			return 0, err
		}
		used, err := CPU(n)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Resident is the resident memory of a process in bytes.
func Resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm is %q", pid, text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// FreeAddr returns an address of loopback that has no listener.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Get returns the body of a 200. Anything else is an error.
func Get(ctx context.Context, url string) ([]byte, error) {
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

// Metrics returns the series of a page of metrics by name and labels, as they are written there.
func Metrics(ctx context.Context, url string) (map[string]float64, error) {
	text, err := Get(ctx, url)
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m, nil
}

// Certificate writes a self-signed certificate for localhost and 127.0.0.1 into dir, and
// returns its files.
func Certificate(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
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

// Median is the middle of the values in order, the upper of two. There must be one.
func Median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
