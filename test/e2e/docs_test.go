package e2e

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

// TestTheDocumentationLoadsFromFiles opens the pages of the documentation's site from
// file:// on a phone's screen, and searches it on a wide one.
func TestTheDocumentationLoadsFromFiles(t *testing.T) {
	t.Parallel()
	p := newTab(t)
	out := t.TempDir()
	cmd := exec.Command("go", "run", ".", "-root", judge.Root(), "-out", out)
	cmd.Dir = judge.Path("docs", "site")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	index := "file://" + filepath.Join(out, "index.html")
	p.do(t, "open", map[string]any{"url": index, "width": 390, "height": 844, "live": false}, nil)
	pages := 0
	err := filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".html") {
			return err
		}
		// Pages of one kind look alike.
		if strings.Contains(name, "/runbooks/") && d.Name() != "index.html" && d.Name() != "WeirLatency.html" {
			return nil
		}
		pages++
		p.do(t, "goto", "file://"+name, nil)
		var state struct {
			Title string
			Wide  int
		}
		p.do(t, "evaluate", "({Title: document.querySelector('article h1').innerText, Wide: document.documentElement.scrollWidth - innerWidth})", &state)
		if state.Title == "" || state.Wide > 0 {
			t.Errorf("%s: title %q, wider than the screen by %d pixels", name, state.Title, state.Wide)
		}
		return nil
	})
	if err != nil || pages < 80 {
		t.Fatalf("%d pages: %v", pages, err)
	}
	var requests []string
	p.do(t, "requests", nil, &requests)
	for _, r := range requests {
		if !strings.HasPrefix(r, "file://") && !strings.HasPrefix(r, "data:") {
			t.Errorf("a page loads %s", r)
		}
	}
	p.clean(t)

	p.do(t, "open", map[string]any{"url": index, "width": 1280, "height": 900, "scheme": "light", "live": false}, nil)
	const ground = "getComputedStyle(document.body).backgroundColor"
	var light, dark string
	p.do(t, "evaluate", ground, &light)
	p.do(t, "click", "#site-theme", nil)
	p.do(t, "evaluate", ground, &dark)
	if light == dark {
		t.Errorf("the ground is %s in both themes", light)
	}
	p.do(t, "fill", map[string]string{"selector": "#site-query", "text": "push.heartbeat"}, nil)
	p.has(t, "#site-results", "push.heartbeat")
	p.do(t, "press", "Enter", nil)
	p.has(t, "h1", "Configuration")
	p.do(t, "fill", map[string]string{"selector": "#site-query", "text": "no-such-word-anywhere"}, nil)
	p.has(t, "#site-results", "Nothing has all of these words")
	p.clean(t)
}
