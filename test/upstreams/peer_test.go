package upstreams

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// peerVariable makes this test's binary a backend: "address name file".
const peerVariable = "UPSTREAMS_PEER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(peerVariable); spec != "" {
		f := strings.Fields(spec)
		if err := bePeer(f[0], f[1], f[2]); err != nil {
			log.Fatal(err)
		}
		return
	}
	// Most tests wait for others' time to pass, so more of them run than there are CPUs; but not so many that two
	// CPUs have no time left: each has a server or more.
	if err := flag.Set("test.parallel", "12"); err != nil {
		log.Fatal(err)
	}
	os.Exit(judge.Main(m))
}

// bePeer serves until SIGTERM, and then to the end of what is under way. The ids of
// posts are appended to file before they are answered, one line each.
func bePeer(address, name, file string) error {
	ids, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if _, err := io.WriteString(ids, r.Header.Get("X-Id")+"\n"); err != nil {
				panic(err)
			}
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("X-Peer", name)
		_, _ = io.WriteString(w, whole)
	})}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		limited, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- srv.Shutdown(limited)
	}()
	fmt.Println("serving")
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-done
}

// whole is the body of every reply.
var whole = strings.Repeat("all of it ", 30)

// A peer is a backend in a process of its own, at an address that it keeps.
type peer struct {
	t       *testing.T
	address string
	ids     string // file

	cmd *exec.Cmd
}

// newPeer starts a backend that writes the ids of posts to a file of dir.
func newPeer(t *testing.T, name, dir string) *peer {
	t.Helper()
	p := &peer{t: t, address: judge.FreeAddr(t), ids: filepath.Join(dir, "posts")}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.signal(syscall.SIGKILL)
			_ = p.cmd.Wait()
		}
	})
	p.start(name)
	return p
}

// start runs it and returns when it listens.
func (p *peer) start(name string) {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", peerVariable, p.address, name, p.ids))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd = cmd
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "serving\n" {
		p.t.Fatalf("a backend says %q: %v", line, err)
	}
}

func (p *peer) signal(sig syscall.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

// end sends sig and waits for the end.
func (p *peer) end(sig syscall.Signal) {
	p.t.Helper()
	p.signal(sig)
	err := p.cmd.Wait()
	if sig == syscall.SIGTERM && err != nil {
		p.t.Errorf("a backend that was asked to stop: %v", err)
	}
	p.cmd = nil
}

// posts counts the arrivals of each id, over all backends that share the file.
func posts(t *testing.T, dir string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "posts"))
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for id := range strings.FieldsSeq(string(text)) {
		n[id]++
	}
	return n
}
