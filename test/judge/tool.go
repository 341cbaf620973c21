package judge

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

var tools sync.Map // package → *tool

type tool struct {
	once sync.Once
	path string
	err  error
}

// Tool builds a Go program of a module below this one, which has its own
// dependencies, once per test process and returns its path.
func Tool(t testing.TB, module, pkg string) string {
	t.Helper()
	entry, _ := tools.LoadOrStore(module+" "+pkg, &tool{})
	b := entry.(*tool)
	b.once.Do(func() {
		b.path = Path(".cache", "bin", fmt.Sprintf("%s-%d", path.Base(pkg), os.Getpid()))
		cmd := exec.Command("go", "build", "-o", b.path, pkg)
		cmd.Dir = filepath.Join(Root(), filepath.FromSlash(module))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}
