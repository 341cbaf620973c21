package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

const apiKey = "bench-key-of-this-run"

// A server is a running process on CPU 0.
type server struct {
	addr  string
	admin string // empty: none
	cmd   *exec.Cmd
	log   bytes.Buffer
	done  chan struct{} // closed when it has ended
}

func (b *bench) startWeir(ctx context.Context) (*server, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	admin, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return quoted(filepath.Join(b.dir, name)) }
	config := fmt.Sprintf(`listen: %q
admin: {listen: %q}
broker: {kind: memory}
eventloop: {engine: %q}
namespaces: [{name: default, anonymous: true}]
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
log: {level: warn}
tls:
  certificates: [{cert_file: %s, key_file: %s}]
  gm: {certificates: [{sign_cert_file: %s, sign_key_file: %s, enc_cert_file: %s, enc_key_file: %s}]}
`, addr, admin, b.engine, apiKey, file("modern.pem"), file("modern.key"), file("sign.pem"), file("sign.key"), file("enc.pem"), file("enc.key"))
	name := filepath.Join(b.dir, "weir.yaml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s, err := start(ctx, addr, b.weir, "serve", "--config", name)
	if err == nil {
		s.admin = admin
	}
	return s, err
}

func (b *bench) startTongsuo(ctx context.Context, suite *gm.Suite) (*server, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	file := func(name string) string { return filepath.Join(b.dir, name) }
	args := []string{"s_server", "-accept", addr, "-quiet", "-rev"}
	if suite.Version == gm.VersionTLS13 {
		args = append(args, "-tls1_3", "-ciphersuites", suite.Name, "-groups", "curveSM2", "-sigalgs", "sm2sig_sm3", "-enable_sm_tls13_strict",
			"-cert", file("sign.pem"), "-key", file("sign.key"))
	} else {
		args = append(args, "-enable_ntls", "-cipher", "ECC-SM2-SM4-GCM-SM3", "-sign_cert", file("sign.pem"), "-sign_key", file("sign.key"),
			"-enc_cert", file("enc.pem"), "-enc_key", file("enc.key"))
	}
	return start(ctx, addr, b.tongsuo, args...)
}

// start runs a command on CPU 0 and returns when it accepts connections.
func start(ctx context.Context, addr, binary string, args ...string) (*server, error) {
	s := &server{addr: addr, done: make(chan struct{})}
	s.cmd = exec.CommandContext(ctx, "taskset", append([]string{"-c", "0", binary}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // its end is all that counts
		close(s.done)
	}()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if c, err := net.Dial("tcp", addr); err == nil {
			return s, c.Close()
		}
		select {
		case <-s.done:
			return nil, fmt.Errorf("%s ended: %s", binary, s.log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.stop()
	return nil, fmt.Errorf("%s accepts no connection on %s: %s", binary, addr, s.log.String())
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.done
}

// cpu is the processor time that the server has used so far, user and kernel.
func (s *server) cpu() (time.Duration, error) {
	var t syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^s.cmd.Process.Pid<<3|2), uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		return 0, fmt.Errorf("the server's clock: %w", e)
	}
	return time.Duration(t.Nano()), nil
}

func freeAddr(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// writeCertificate writes modern.pem and modern.key, for AES-GCM.
func writeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{"modern.pem": {Type: "CERTIFICATE", Bytes: cert}, "modern.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
