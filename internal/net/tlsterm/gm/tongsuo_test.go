//go:build tongsuo

package gm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

// tongsuoEnv names Tongsuo's openssl. `make test-gm` builds it and sets this.
const tongsuoEnv = "WEIR_TONGSUO"

// tongsuo is one test chain in files for Tongsuo's commands.
type tongsuo struct {
	openssl, dir string
	root         *Authority
	pool         *smx509.CertPool
	server       *Pair
	client       *Pair
}

func newTongsuo(t *testing.T) *tongsuo {
	t.Helper()
	openssl := os.Getenv(tongsuoEnv)
	if openssl == "" {
		t.Fatal("WEIR_TONGSUO does not name Tongsuo's openssl: run make test-gm")
	}
	x := &tongsuo{openssl: openssl, dir: t.TempDir(), root: must(NewRoot("root", time.Hour))}
	x.pool = smx509.NewCertPool()
	x.pool.AddCert(x.root.Cert)
	w := &chainWriter{dir: x.dir, below: x.root.Cert}
	w.write("ca.pem", 0o644, "CERTIFICATE", x.root.Cert.Raw)
	w.pair(x.root, "server-", Request{Name: "server", Hosts: []string{"localhost"}, Lifetime: time.Hour})
	w.pair(x.root, "client-", Request{Name: "client", Lifetime: time.Hour})
	must(0, w.err)
	x.server, x.client = x.pair("server-"), x.pair("client-")
	return x
}

func (x *tongsuo) path(name string) string { return filepath.Join(x.dir, name) }

func (x *tongsuo) pair(prefix string) *Pair {
	return must(LoadPair(PairFiles{
		SignCert: x.path(prefix + "sign.pem"), SignKey: x.path(prefix + "sign.key"), EncCert: x.path(prefix + "enc.pem"), EncKey: x.path(prefix + "enc.key"),
	}, time.Now()))
}

// flags are what both of Tongsuo's commands need for a suite.
func (x *tongsuo) flags(s *Suite, prefix string, server bool) []string {
	file := func(name string) string { return x.path(prefix + name) }
	if s.Version == VersionTLS13 {
		args := []string{"-tls1_3", "-ciphersuites", s.Name, "-groups", "curveSM2", "-sigalgs", "sm2sig_sm3", "-enable_sm_tls13_strict"}
		if prefix != "" {
			args = append(args, "-cert", file("sign.pem"), "-key", file("sign.key"))
		}
		return args
	}
	name := strings.NewReplacer("_SM4", "-SM2-SM4", "_", "-").Replace(s.Name)
	args := []string{"-enable_ntls", "-cipher", name}
	if !server {
		args = append(args, "-ntls")
	}
	if prefix != "" {
		args = append(args, "-sign_cert", file("sign.pem"), "-sign_key", file("sign.key"), "-enc_cert", file("enc.pem"), "-enc_key", file("enc.key"))
	}
	return args
}

// A command is one of Tongsuo's, talking over its standard input and output.
type command struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs *bytes.Buffer
}

func (x *tongsuo) start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	c := &command{cmd: exec.CommandContext(ctx, x.openssl, args...), errs: new(bytes.Buffer)}
	c.cmd.Stderr = c.errs
	c.in = must(c.cmd.StdinPipe())
	c.out = bufio.NewReader(must(c.cmd.StdoutPipe()))
	must(0, c.cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(args, " "), c.errs)
		}
	})
	return c
}

// sizes of what is sent each way.
var interopSizes = []int{1, 15, 16, 100, maxPlaintext, maxPlaintext + 1, 1 << 20}

func printable(n int) []byte { return bytes.Repeat([]byte("0123456789abcde\n"), n/16+1)[:n] }

func readFrom(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d of %d bytes arrive: %v", n, len(want), err)
	}
}

func eachInterop(t *testing.T, f func(t *testing.T, s *Suite, certs bool)) {
	for _, s := range Suites {
		for _, certs := range []bool{false, true} {
			if s.ecdhe && !certs {
				continue
			}
			t.Run(fmt.Sprintf("%s/client-certificate=%v", s.Name, certs), func(t *testing.T) { f(t, s, certs) })
		}
	}
}

// Tongsuo's client against this server: a full handshake, then one that resumes.
func TestTongsuoClient(t *testing.T) {
	x := newTongsuo(t)
	eachInterop(t, func(t *testing.T, s *Suite, certs bool) {
		for _, tickets := range []bool{true, false} {
			if s.Version == VersionTLS13 && !tickets {
				continue
			}
			keys := [][32]byte{{1}}
			sc := &ServerConfig{
				Pick: func(string) *Pair { return x.server }, ClientCAs: x.pool, TicketKeys: func() [][32]byte { return keys }, Sessions: NewSessionCache(4),
			}
			if !tickets {
				sc.TicketKeys = nil
			}
			prefix := ""
			if certs {
				sc.ClientAuth, prefix = RequireClientCert, "client-"
			}
			l := must(net.Listen("tcp", "127.0.0.1:0"))
			session := x.path(fmt.Sprintf("%s-%v-%v.session", s.Name, certs, tickets))
			for round := range 2 {
				args := append([]string{"s_client", "-connect", l.Addr().String(), "-servername", "localhost", "-CAfile", x.path("ca.pem"),
					"-verify_return_error", "-quiet"}, x.flags(s, prefix, false)...)
				if round == 0 {
					args = append(args, "-sess_out", session)
				} else {
					args = append(args, "-sess_in", session)
				}
				c := x.start(t, args...)
				_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(30 * time.Second))
				raw := must(l.Accept())
				_ = raw.SetDeadline(time.Now().Add(60 * time.Second))
				state, err := Server(raw, sc, s.Version)
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if state.Suite != s || state.Resumed != (round == 1) || (len(state.Chains) > 0) != certs {
					t.Errorf("round %d: %s, resumed %v, %d chains", round, state.Suite.Name, state.Resumed, len(state.Chains))
				}
				v := NewStream(raw, state)
				for i, n := range interopSizes {
					if s.Version == VersionTLS13 && i > 0 {
						must(0, v.UpdateKey(i%2 == 0))
					}
					var sent sync.WaitGroup
					sent.Go(func() { _, _ = c.in.Write(printable(n)) })
					readFrom(t, v, printable(n))
					sent.Wait()
					sent.Go(func() { _, _ = v.Write(printable(n)) })
					readFrom(t, c.out, printable(n))
					sent.Wait()
				}
				_ = v.CloseWrite()
				_ = c.in.Close()
				if err := c.cmd.Wait(); err != nil && round == 0 {
					t.Logf("s_client: %v", err)
				}
				_ = raw.Close()
			}
			_ = l.Close()
		}
	})
}

// This client against Tongsuo's server.
func TestTongsuoServer(t *testing.T) {
	x := newTongsuo(t)
	eachInterop(t, func(t *testing.T, s *Suite, certs bool) {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		addr := l.Addr().String()
		_ = l.Close()
		args := append([]string{"s_server", "-accept", addr, "-CAfile", x.path("ca.pem"), "-rev"}, x.flags(s, "server-", true)...)
		cc := &ClientConfig{Version: s.Version, Suites: []uint16{s.ID}, ServerName: "localhost", RootCAs: x.pool, Sessions: NewClientSessions(4), SessionKey: "x"}
		if certs {
			args = append(args, "-Verify", "2", "-verify_return_error")
			cc.Pair = x.client
		}
		x.start(t, args...)
		for round := range 2 {
			raw := dialUntil(t, addr)
			v, err := DialStream(raw, cc)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if v.State.Suite != s || v.State.Resumed != (round == 1) {
				t.Errorf("round %d: %s, resumed %v", round, v.State.Suite.Name, v.State.Resumed)
			}
			const line, answer = "0123456789abcde\n", "edcba9876543210\n"
			for _, b := range []byte(line) { // records of one byte
				_, _ = v.Write([]byte{b})
			}
			readFrom(t, v, []byte(answer))
			for i, n := range []int{1, 10, maxPlaintext / len(line), 1<<20/len(line) + 1} {
				if s.Version == VersionTLS13 {
					must(0, v.UpdateKey(i%2 == 0))
				}
				var sent sync.WaitGroup
				sent.Go(func() { _, _ = v.Write([]byte(strings.Repeat(line, n))) })
				readFrom(t, v, []byte(strings.Repeat(answer, n)))
				sent.Wait()
			}
			_ = v.Close()
		}
	})
}

// dialUntil connects to a server that has just been started.
func dialUntil(t *testing.T, addr string) net.Conn {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		raw, err := net.Dial("tcp", addr)
		if err == nil {
			_ = raw.SetDeadline(time.Now().Add(60 * time.Second))
			return raw
		}
		if time.Now().After(end) || errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
