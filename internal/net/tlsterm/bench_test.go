package tlsterm

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// The macro benchmarks run the server as a process of its own: this binary
// again, with benchServer in its environment. It says its address, and at each
// line it reads gives memory back and says what it has used: resident bytes and
// CPU time.
const benchServer = "TLSTERM_BENCH_SERVER"

// answer is what both servers send for a request.
const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

type answers struct{ echo }

func (answers) Data(c *eventloop.Conn, b []byte) int {
	if strings.HasSuffix(string(b), "\r\n\r\n") {
		c.Write([]byte(answer))
		return len(b)
	}
	return 0
}

// runBenchServer is the child: kind, certificate and key.
func runBenchServer(args string) error {
	f := strings.Split(args, "|")
	files := Certificate{CertFile: f[1], KeyFile: f[2]}
	var addr string
	switch f[0] {
	case "nethttp":
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			return err
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
		if err != nil {
			return err
		}
		addr = l.Addr().String()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(l) }()
	default:
		s := serveLoop(&testing.B{}, eventloop.Config{Loops: 2}, Config{Certificates: []Certificate{files}, HandshakeCPUs: 4}, func(*eventloop.Conn) eventloop.Handler { return answers{} })
		addr = s.addr
	}
	fmt.Println(addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		debug.FreeOSMemory()
		debug.FreeOSMemory()
		fmt.Println(resident(), cpuTicks())
	}
	return nil
}

func resident() int {
	b, _ := os.ReadFile("/proc/self/statm")
	n, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return n * os.Getpagesize()
}

// cpuTicks is user and system time in 1/100 s.
func cpuTicks() int {
	b, _ := os.ReadFile("/proc/self/stat")
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return user + system
}

// A child is a server process under measurement.
type child struct {
	b    *testing.B
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	addr string
}

func startChild(b *testing.B, kind string) *child {
	b.Helper()
	files := save(b, b.TempDir(), "a", ca().leaf(b, nil, "localhost"))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+kind+"|"+files.CertFile+"|"+files.KeyFile)
	cmd.Stderr = os.Stderr
	c := &child{b: b, cmd: cmd, in: must(cmd.StdinPipe()), out: bufio.NewReader(must(cmd.StdoutPipe()))}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c.addr = c.line()
	return c
}

func (c *child) line() string {
	c.b.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.b.Fatal(err)
	}
	return strings.TrimSpace(s)
}

// used returns resident bytes and CPU ticks.
func (c *child) used() (rss, ticks int) {
	c.b.Helper()
	_, _ = io.WriteString(c.in, "\n")
	if _, err := fmt.Sscan(c.line(), &rss, &ticks); err != nil {
		c.b.Fatal(err)
	}
	return rss, ticks
}

// visit makes n connections, each with one request and its answer.
func (c *child) visit(n int, cfg *tls.Config) []net.Conn {
	conns := make([]net.Conn, n)
	var done sync.WaitGroup
	const clients = 4
	for k := range clients {
		done.Go(func() {
			for i := k; i < n; i += clients {
				conn, err := tls.Dial("tcp", c.addr, cfg)
				if err != nil {
					c.b.Error(err)
					return
				}
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
				r := bufio.NewReader(conn)
				if res, err := http.ReadResponse(r, nil); err != nil {
					c.b.Error(err)
				} else {
					_, _ = io.Copy(io.Discard, res.Body)
				}
				conns[i] = conn
			}
		})
	}
	done.Wait()
	return conns
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.(*tls.Conn).NetConn().Close()
		}
	}
}

// BenchmarkIdleConnection reports the resident bytes of a connection that has
// had one answer, against net/http in the same run.
func BenchmarkIdleConnection(b *testing.B) {
	const n = 4000
	per := func(kind string) float64 {
		c := startChild(b, kind)
		closeAll(c.visit(200, client(nil)))
		before, _ := c.used()
		conns := c.visit(n, client(nil))
		defer closeAll(conns)
		after, _ := c.used()
		return float64(after-before) / n
	}
	for b.Loop() {
		ours, theirs := per("weir"), per("nethttp")
		b.ReportMetric(ours, "B/conn")
		b.ReportMetric(theirs, "nethttp-B/conn")
		b.ReportMetric(ours/theirs, "ratio")
	}
}

// BenchmarkHandshake reports the CPU time of the server per connection with one
// request, against net/http in the same run.
func BenchmarkHandshake(b *testing.B) {
	const n = 3000
	f := func(name string, version uint16, resume bool) {
		b.Run(name, func(b *testing.B) {
			per := func(kind string) float64 {
				c := startChild(b, kind)
				cfg := client(func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version })
				if resume {
					cfg.ClientSessionCache = tls.NewLRUClientSessionCache(8)
				}
				closeAll(c.visit(50, cfg))
				_, before := c.used()
				closeAll(c.visit(n, cfg))
				_, after := c.used()
				return float64(after-before) * 1e4 / n
			}
			for b.Loop() {
				ours, theirs := per("weir"), per("nethttp")
				b.ReportMetric(ours, "cpu-µs/conn")
				b.ReportMetric(1e6/ours, "conns/s/core")
				b.ReportMetric(theirs, "nethttp-cpu-µs/conn")
				b.ReportMetric(ours/theirs, "ratio")
			}
		})
	}
	f("TLS 1.3 full", tls.VersionTLS13, false)
	f("TLS 1.3 resumed", tls.VersionTLS13, true)
	f("TLS 1.2 full", tls.VersionTLS12, false)
	f("TLS 1.2 resumed", tls.VersionTLS12, true)
}

// BenchmarkSeal is what one delivery of 128 bytes costs more over TLS.
func BenchmarkSeal(b *testing.B) {
	for i, name := range []string{"AES-128", "AES-256", "ChaCha20", "1.2 AES-128"} {
		b.Run(name, func(b *testing.B) {
			a, _ := pair(allSuites[i])
			msg, dst := make([]byte, 128), make([]byte, 0, 1024)
			b.ReportAllocs()
			for b.Loop() {
				dst = a.Seal(dst[:0], msg)
			}
		})
	}
}

// BenchmarkOpen takes a record of 128 bytes apart, with a cipher that is ready
// and with one that has to be made.
func BenchmarkOpen(b *testing.B) {
	for _, cold := range []bool{false, true} {
		b.Run(map[bool]string{false: "ready", true: "cold"}[cold], func(b *testing.B) {
			a, r := pair(allSuites[0])
			rec := a.Seal(nil, make([]byte, 128))
			buf := make([]byte, len(rec))
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, rec)
				r.in.seq = 0
				if cold {
					r.in.aead = nil
				}
				if plain, _, err := r.Open(buf); err != nil || len(plain) != 128 {
					b.Fatal(err)
				}
			}
		})
	}
}
