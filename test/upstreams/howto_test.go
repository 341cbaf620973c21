package upstreams

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

var (
	block = regexp.MustCompile("(?ms)^```yaml\n# (\\S+)\n(.*?)^```$")
	fence = regexp.MustCompile("(?m)^```yaml$")
)

// TestTheConfigurationsOfTheHowtosLoad checks every YAML block of docs/howto. Each
// begins with its file's name; weir.yaml is a whole configuration, others stand beside.
func TestTheConfigurationsOfTheHowtosLoad(t *testing.T) {
	t.Parallel()
	binary := judge.Binary(t, judge.Plain) // a process for each, which with the race detector takes ten times as long to start
	pages, err := filepath.Glob(judge.Path("docs", "howto", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("there are no pages: %v", err)
	}
	checked := 0
	for _, page := range pages {
		if strings.HasPrefix(filepath.Base(page), "moving-from-") {
			continue // what `weir config import` printed: internal/app/migrate holds and loads it
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := block.FindAllStringSubmatch(string(text), -1)
		if n := len(fence.FindAll(text, -1)); n != len(blocks) {
			t.Errorf("%s: %d of %d YAML blocks start with a file's name", filepath.Base(page), len(blocks), n)
		}
		dir := t.TempDir()
		for i, b := range blocks {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, b[1])), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, b[1]), []byte(b[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			if b[1] != "weir.yaml" {
				continue
			}
			cmd := exec.Command(binary, "config", "check", "--config", "weir.yaml")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "ok" {
				t.Errorf("%s, block %d: %v\n%s", filepath.Base(page), i+1, err, out)
			}
			checked++
		}
	}
	if checked == 0 {
		t.Error("no configuration was checked")
	}
}
