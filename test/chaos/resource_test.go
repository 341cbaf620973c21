package chaos

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(int(q*float64(len(all))), len(all)-1)]
}

// tmpfs is a file system of that size in memory.
func (c *trial) tmpfs(size string) string {
	c.Helper()
	dir := c.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes what is left of dir, and returns what frees it.
func (c *trial) fill(dir string) (empty func()) {
	c.Helper()
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		c.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		c.Fatal(err)
	}
	return func() {
		if err := os.Remove(ballast); err != nil {
			c.Fatal(err)
		}
	}
}

// fullDisk: publications are refused with 507 while the disk is full, and none that was
// acknowledged is lost; with space it continues by itself.
func fullDisk(c *trial) {
	dir := c.tmpfs("64m")
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: map[string]any{"broker": map[string]any{"nats": map[string]any{"dir": dir}}}})
	w := c.under(node, load{subscribers: c.size(200), rate: 100, options: exact})
	sessions := w.fleet.Sessions()
	for range c.times(10) {
		w.fault(false, func() {
			refused := w.pub.Refused(http.StatusInsufficientStorage)
			empty := c.fill(dir)
			judge.Eventually(c, patience, "publications are answered 507", func() bool { return w.pub.Refused(http.StatusInsufficientStorage) > refused })
			judge.Eventually(c, patience, "the node says that it is degraded", func() bool { return node.Series("weir_degraded", `mode="disk-full"`) == 1 })
			empty()
		})
		judge.Eventually(c, patience, "the node says that it is not degraded any more", func() bool { return node.Series("weir_degraded") == 0 })
	}
	for i, m := range w.fleet.Members {
		if m.Ups.Load() != sessions[i] {
			c.Errorf("%s was disconnected", m.Name)
		}
	}
	c.proof = fmt.Sprintf("writes ended in ENOSPC, %d answers 507", w.pub.Refused(http.StatusInsufficientStorage))
	w.finish()
}

// readOnlyDisk: an error of the disk, after which the kernel mounts it read-only. It takes
// no more until it was unmounted and repaired, which needs the process to end.
func readOnlyDisk(c *trial) {
	v := c.volume()
	c.command("umount", v.path)
	v.mount("errors=remount-ro")
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: map[string]any{"broker": map[string]any{"nats": map[string]any{"dir": filepath.Join(v.path, "data")}}}})
	w := c.under(node, load{subscribers: c.size(100), rate: 100, options: exact})
	for range c.times(3) {
		w.more(30) // in this epoch, on all channels; less than a second, so that no mark has them
		w.fault(true, func() {
			refused := w.pub.Refused(http.StatusInsufficientStorage)
			sessions := w.fleet.Sessions()
			device, err := exec.Command("findmnt", "-n", "-o", "SOURCE", v.path).Output()
			if err != nil {
				c.Fatal(err)
			}
			trigger := filepath.Join("/sys/fs/ext4", filepath.Base(strings.TrimSpace(string(device))), "trigger_fs_error")
			if err := os.WriteFile(trigger, []byte("chaos"), 0o200); err != nil {
				c.Fatal(err)
			}
			judge.Eventually(c, patience, "publications are answered 507", func() bool { return w.pub.Refused(http.StatusInsufficientStorage) > refused })
			judge.Eventually(c, patience, "the node says that its disk is read-only", func() bool { return node.Series("weir_degraded", `mode="disk-read-only"`) == 1 })
			if ids, _ := c.replay(node, "0", 5); len(ids) != 5 {
				c.Errorf("%d messages of history from a read-only disk", len(ids))
			}
			for i, m := range w.fleet.Members {
				if m.Ups.Load() != sessions[i] {
					c.Errorf("%s was disconnected", m.Name)
				}
			}
			node.Kill()
			c.command("umount", v.path)
			if out, err := exec.Command("e2fsck", "-f", "-y", v.image).CombinedOutput(); err != nil && !strings.Contains(string(out), "MODIFIED") {
				c.Fatalf("e2fsck: %v: %s", err, out)
			}
			v.mount("errors=remount-ro")
			node.Start()
		})
	}
	c.proof = fmt.Sprintf("an error was injected into ext4, %d answers 507", w.pub.Refused(http.StatusInsufficientStorage))
	w.finish()
}

// blockedLogs: neither a full disk under the log nor a reader of it that stopped blocks
// what clients see.
func blockedLogs(c *trial) {
	dir := c.tmpfs("1m")
	full, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		c.Fatal(err)
	}
	defer full.Close()
	c.fill(dir)
	c.logsTo(full, "the log's disk is full")
	r, blocked, err := os.Pipe()
	if err != nil {
		c.Fatal(err)
	}
	defer r.Close()
	defer blocked.Close()
	c.logsTo(blocked, "the log's pipe is not read")
	// A full pipe may hold less than its 64 KiB: what does not fit into a page starts the next.
	fd := int(blocked.Fd())
	_ = syscall.SetNonblock(fd, true)
	if _, err := syscall.Write(fd, make([]byte, 4096)); !errors.Is(err, syscall.EAGAIN) {
		c.Errorf("the pipe was not full: a page's write ended in %v", err)
	}
	_ = blocked.Close()
	n, _ := io.Copy(io.Discard, r)
	c.proof = fmt.Sprintf("writing to the disk ended in ENOSPC, the pipe held %d KiB", n>>10)
}

func (c *trial) logsTo(f *os.File, what string) {
	c.Helper()
	node := judge.New(c, judge.Options{Build: judge.Plain, Output: f})
	w := c.under(node, load{subscribers: c.size(100), rate: 100, options: exact})
	// At level debug every stream is logged, so that this fills any pipe.
	for i := range 600 {
		resp, err := judge.HTTP.Get("http://" + node.Public + "/sse?channel=c0")
		if err != nil {
			c.Fatalf("%s: stream %d: %v", what, i, err)
		}
		resp.Body.Close()
	}
	w.faults++
	began := time.Now()
	w.more(100)
	w.outages = append(w.outages, w.outage(began))
	w.finish()
	node.Kill() // it may not end in order while its log is blocked
}

// noDescriptors: accepting pauses without spinning, who is there continues, and new ones get
// in when there is room.
func noDescriptors(c *trial) {
	node := judge.New(c, judge.Options{Build: judge.Plain, Files: 512})
	w := c.under(node, load{subscribers: c.size(100), rate: 50, options: exact})
	sessions := w.fleet.Sessions()
	for range c.times(5) {
		w.fault(false, func() {
			var open []net.Conn
			for range 600 {
				conn, err := net.DialTimeout("tcp", node.Public, 5*time.Second)
				if err != nil {
					break
				}
				open = append(open, conn)
			}
			judge.Eventually(c, patience, "there is no room", func() bool {
				return node.Series("weir_accept_pauses_total")+node.Series("weir_connections_refused_total")+node.Series("weir_accept_errors_total") > 0
			})
			cpu, began := node.CPU(), time.Now()
			c.pause(3 * time.Second)
			used := float64(node.CPU()-cpu) / float64(time.Since(began))
			c.note("%.0f %% of a processor while full", 100*used)
			if used > 0.5 {
				c.Errorf("%.0f %% of a processor while nothing can be accepted", 100*used)
			}
			for _, conn := range open {
				_ = conn.Close()
			}
		})
		judge.Eventually(c, patience, "new connections are served", func() bool {
			resp, err := judge.HTTP.Get("http://" + node.Public + "/healthz")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	}
	for i, m := range w.fleet.Members {
		if m.Ups.Load() != sessions[i] {
			c.Errorf("%s was disconnected", m.Name)
		}
	}
	c.proof = "accepting paused, or connections were refused, by the node's own count"
	w.finish()
}

// memoryLimit: a node whose memory is short refuses, is never killed, and serves again.
func memoryLimit(c *trial) {
	node := judge.New(c, judge.Options{
		Build: judge.Plain, Memory: true, Files: 20000, Env: []string{"GOMEMLIMIT=256MiB"},
		Config: map[string]any{
			"namespaces": []any{map[string]any{"name": "default", "anonymous": true, "history_size": 100}},
			"governor":   map[string]any{"memory": map[string]any{"limit": 128 << 20}},
			"eventloop":  map[string]any{"write_stall": "10m", "user_timeout": "10m"},
		},
	})
	if err := limitAddressSpace(node.Pid(), 4<<30); err != nil {
		c.Fatal(err)
	}
	w := c.under(node, load{subscribers: c.size(100), rate: 50, options: exact})
	w.fault(false, func() {
		var open []net.Conn
		body := strings.Repeat("x", 900<<10)
		deadline := time.Now().Add(patience)
		for node.Series("weir_budget_level", `budget="memory"`) < 1 && time.Now().Before(deadline) {
			for range 20 { // each a body that never ends, which the node has to keep
				conn, err := net.DialTimeout("tcp", node.Public, 5*time.Second)
				if err != nil {
					break
				}
				open = append(open, conn)
				_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
				fmt.Fprintf(conn, "POST /api/publish HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", judge.APIKey, len(body)+100, body)
			}
			w.sample()
		}
		level := node.Series("weir_budget_level", `budget="memory"`)
		if level < 1 {
			c.Errorf("%d connections, %d MiB, and nothing was refused", len(open), node.Memory()>>20)
		}
		c.proof = fmt.Sprintf("memory budget at level %.0f with %d open requests", level, len(open))
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	judge.Eventually(c, patience, "there is memory again", func() bool { return node.Series("weir_budget_level", `budget="memory"`) == 0 })
	if !node.Alive() {
		c.Error("the process has ended")
	}
	w.finish()
}

// limitAddressSpace is prlimit --as.
func limitAddressSpace(pid int, bytes uint64) error {
	l := [2]uint64{bytes, bytes}
	return prlimit(pid, syscall.RLIMIT_AS, &l)
}

// certificates: each handshake is answered with one certificate or the other, also while
// the files are broken.
func certificates(c *trial) {
	node := judge.New(c, judge.Options{Build: judge.Plain, TLS: true, Config: map[string]any{"tls": map[string]any{"reload_interval": "50ms"}}})
	dir := c.TempDir()
	cert, key := judge.Certificate(c, dir)
	other := [2][]byte{c.read(cert), c.read(key)}
	keyFile := filepath.Join(filepath.Dir(node.Authority), "key.pem")
	first := [2][]byte{c.read(node.Authority), c.read(keyFile)}
	var shaken, failed atomic.Int64
	var names sync.Map
	stop := make(chan struct{})
	var shaking sync.WaitGroup
	for range 4 {
		shaking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := tls.Dial("tcp", node.Public, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // which one is shown is what is looked at
				if err != nil {
					failed.Add(1)
					c.Logf("handshake: %v", err)
					continue
				}
				shaken.Add(1)
				names.Store(string(conn.ConnectionState().PeerCertificates[0].Raw), true)
				_ = conn.Close()
			}
		})
	}
	broken := 0
	for i := range c.times(200) {
		pair := [][2][]byte{first, other}[i%2]
		if i%10 == 9 {
			pair[0] = []byte("-----BEGIN CERTIFICATE-----\nbroken\n")
			broken++
		}
		c.put(node.Authority, pair[0])
		c.put(keyFile, pair[1])
		c.faults++
		c.pause(120 * time.Millisecond)
	}
	c.put(node.Authority, first[0])
	c.put(keyFile, first[1])
	close(stop)
	shaking.Wait()
	shown := 0
	names.Range(func(_, _ any) bool { shown++; return true })
	if failed.Load() > 0 {
		c.Errorf("%d of %d handshakes failed", failed.Load(), failed.Load()+shaken.Load())
	}
	if shown < 2 && *long {
		c.Errorf("%d certificates were shown", shown)
	}
	errs := node.Series("weir_tls_reloads_total", `outcome="error"`)
	if broken > 0 && errs == 0 {
		c.Error("the broken file was not noticed")
	}
	c.proof = fmt.Sprintf("%d certificates were shown in %d handshakes; %d files were broken, %.0f reloads counted as errors", shown, shaken.Load(), broken, errs)
}

func (c *trial) read(file string) []byte {
	c.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		c.Fatal(err)
	}
	return b
}

// put replaces a file as a whole.
func (c *trial) put(file string, b []byte) {
	c.Helper()
	err := os.WriteFile(file+".new", b, 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		c.Fatal(err)
	}
}

// A behaviour is what a backend does with a connection, and how its client is answered.
type behaviour struct {
	name   string
	serve  func(conn net.Conn)
	status []int
}

var behaviours = []behaviour{
	{"closes at once", func(net.Conn) {}, []int{502}},
	{"resets", func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, []int{502}},
	{"says nothing", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, []int{504}},
	{"garbage", func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n\r\n") }, []int{502}},
	{"two lengths", func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab") }, []int{502}},
	{"length and chunks", func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	}, []int{502}},
	{"endless head", func(c net.Conn) {
		for i := 0; i < 1<<14; i++ {
			if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	}, []int{502}},
	{"100 before the answer", func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}, []int{200}},
	{"trailers", func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n")
	}, []int{200}},
	{"half a head", func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Le") }, []int{502}},
	{"more than its length", func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokGARBAGE") }, []int{200}},
}

// backends: each is answered within limits, and no connection of one that misbehaved is
// used again.
func backends(c *trial) {
	var now atomic.Int64
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				b := behaviours[now.Load()]
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				head := make([]byte, 4096)
				if _, err := conn.Read(head); err == nil {
					b.serve(conn)
				}
			})
		}
	})
	c.Cleanup(func() { _ = ln.Close(); serving.Wait() })
	node := judge.New(c, judge.Options{Build: judge.Plain, Memory: true, Config: map[string]any{
		"clusters": []any{map[string]any{
			"name": "b", "peers": []any{map[string]any{"address": ln.Addr().String()}},
			"timeouts": map[string]any{"first_byte": "1s"}, "outlier": map[string]any{"enabled": false}, "breaker": map[string]any{"enabled": false},
		}},
		"routes": []any{map[string]any{"path": "/b/*", "cluster": "b"}},
	}})
	w := c.under(node, load{subscribers: c.size(100), rate: 50, options: exact})
	base := node.Series("go_goroutines")
	answered := map[string]map[int]int{}
	for range c.times(20) {
		for i, b := range behaviours {
			now.Store(int64(i))
			resp, err := judge.HTTP.Get("http://" + node.Public + "/b/x")
			c.faults++
			if err != nil {
				c.Errorf("%s: %v", b.name, err)
				continue
			}
			var body bytes.Buffer
			_, _ = body.ReadFrom(resp.Body)
			resp.Body.Close()
			if !slices.Contains(b.status, resp.StatusCode) || resp.StatusCode == 200 && body.String() != "ok" {
				c.Errorf("%s: %d %.100q, want %v", b.name, resp.StatusCode, body.String(), b.status)
			}
			if answered[b.name] == nil {
				answered[b.name] = map[int]int{}
			}
			answered[b.name][resp.StatusCode]++
		}
	}
	judge.Eventually(c, patience, "there are no more goroutines than before", func() bool { return node.Series("go_goroutines") <= base+5 })
	c.proof = fmt.Sprintf("%d behaviours, %d requests", len(behaviours), c.faults)
	w.finish()
}
