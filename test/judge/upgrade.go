package judge

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin"
)

// Upgrade has the server replaced by a process of its program's file, and returns what it said
// of it. The server is that process from then on, if it says "done".
func (s *Server) Upgrade() admin.Upgrade {
	s.t.Helper()
	adopts(s.t.Fatal)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Post("http://"+s.Admin+"/api/upgrade", "", http.NoBody)
	if err != nil {
		s.t.Fatalf("upgrade: %v\n%s", err, tail(s.Log()))
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	var u admin.Upgrade
	if err == nil {
		err = json.Unmarshal(b, &u)
	}
	if err != nil {
		s.t.Fatalf("upgrade: %v: %s", err, b)
	}
	if u.Step != "done" {
		return u
	}
	old := s.done
	p, err := os.FindProcess(u.PID)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.done, s.killed = &exec.Cmd{Process: p}, make(chan struct{}), false
	select {
	case <-old: // only now is the new process a child of this one
	case <-time.After(30 * time.Second):
		s.t.Fatalf("the old process does not end:\n%s", tail(s.Log()))
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		cmd.ProcessState, _ = cmd.Process.Wait()
		close(done)
	}(s.cmd, s.done)
	return u
}

// Replace puts another file in the place of the server's program, and beside it one that says
// where it dies; empty: nowhere.
func (s *Server) Replace(program, dies string) {
	s.t.Helper()
	b, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(s.binary+".next", b, 0o700)
	}
	if err == nil {
		err = os.Rename(s.binary+".next", s.binary)
	}
	if err == nil && dies != "" {
		err = os.WriteFile(s.binary+".dies", []byte(dies), 0o600)
	} else if err == nil {
		_ = os.Remove(s.binary + ".dies")
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// OwnProgram gives the server, which does not run, a file of its own, which Replace can change.
func (s *Server) OwnProgram() (original string) {
	s.t.Helper()
	original = s.binary
	s.binary = filepath.Join(s.t.TempDir(), "weir")
	s.Replace(original, "")
	return original
}

// adopts makes processes whose parent has ended this one's children.
func adopts(fail func(...any)) {
	const setChildSubreaper = 36
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); e != 0 {
		fail(e)
	}
}
