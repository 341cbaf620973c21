package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A manual is a page of the documentation, whose ports are replaced by free ones.
type manual struct {
	text  string
	ports *strings.Replacer
	// public and application are what the pages call 127.0.0.1:8000 and :3000.
	public, application string
}

func readManual(t *testing.T, elem ...string) *manual {
	t.Helper()
	b, err := os.ReadFile(judge.Path(elem...))
	if err != nil {
		t.Fatal(err)
	}
	m := &manual{text: string(b), public: judge.FreeAddr(t), application: judge.FreeAddr(t)}
	m.ports = strings.NewReplacer("127.0.0.1:8000", m.public, "127.0.0.1:3000", m.application,
		"listen(3000,", "listen("+m.application[strings.LastIndex(m.application, ":")+1:]+",")
	return m
}

// commands are the lines that start with a prompt.
func (m *manual) commands() (lines []string) {
	for line := range strings.Lines(m.text) {
		if c, ok := strings.CutPrefix(line, "    $ "); ok {
			lines = append(lines, m.ports.Replace(strings.TrimSpace(c)))
		}
	}
	return lines
}

// A shell is where commands are typed. Whatever it started ends with the
// test.
type shell struct {
	t   *testing.T
	dir string
	env []string
}

func (x *shell) run(line string) string {
	x.t.Helper()
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir, cmd.Env = x.dir, x.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		x.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// background runs a command that the manual ends with &.
func (x *shell) background(line string) {
	x.t.Helper()
	log, err := os.Create(filepath.Join(x.t.TempDir(), "log"))
	if err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", "exec "+strings.TrimSuffix(line, "&"))
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = x.dir, x.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if b, err := os.ReadFile(log.Name()); x.t.Failed() && err == nil {
			x.t.Logf("%s\n%s", line, b)
		}
	})
}

// serving waits until an address answers with 200.
func serving(t *testing.T, url string) {
	t.Helper()
	judge.Eventually(t, 60*time.Second, url+" answers", func() bool {
		res, err := http.Get(url)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// environment is this process's without what would configure weir.
func environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
	return append(env, more...)
}

// TestReadmeSnippetWorksAsPasted starts the server as README says and runs its two lines
// in pages of another port and of a file.
func TestReadmeSnippetWorksAsPasted(t *testing.T) {
	t.Parallel()
	m := readManual(t, "README.md")
	_, snippet, ok := strings.Cut(m.text, "    const stream = new EventSource(")
	snippet, _, ok2 := strings.Cut("const stream = new EventSource("+snippet, "\n\n")
	publish := regexp.MustCompile(`(?m)^    (curl -H .*/api/publish)$`).FindStringSubmatch(m.text)
	commands := m.commands()
	serve := slices.IndexFunc(commands, func(c string) bool { return strings.HasPrefix(c, "./weir serve") })
	export := slices.IndexFunc(commands, func(c string) bool { return strings.HasPrefix(c, "export WEIR_AUTH_API_KEYS=") })
	if !ok || !ok2 || publish == nil || serve < 0 || export < 0 {
		t.Fatalf("README has another form: %v", commands)
	}
	x := &shell{t, t.TempDir(), environment("WEIR_LISTEN="+m.public, "WEIR_ADMIN_LISTEN="+judge.FreeAddr(t))}
	if err := os.Symlink(judge.Binary(t, judge.Plain), filepath.Join(x.dir, "weir")); err != nil {
		t.Fatal(err)
	}
	x.env = append(x.env, strings.Trim(x.run(commands[export]+"; echo WEIR_AUTH_API_KEYS=\"$WEIR_AUTH_API_KEYS\""), "\n"))
	x.background(commands[serve])
	serving(t, "http://"+m.public+"/readyz")

	page := filepath.Join(x.dir, "page.html")
	if err := os.WriteFile(page, []byte("<!doctype html><title>mine</title>"), 0o600); err != nil {
		t.Fatal(err)
	}
	pages := httptest.NewServer(http.FileServer(http.Dir(x.dir)))
	t.Cleanup(pages.Close)
	b := &tabs{tab: driven(t, "tabs.mjs")}
	urls := map[string]string{
		"another port": pages.URL + "/page.html", "localhost": strings.Replace(pages.URL, "127.0.0.1", "localhost", 1) + "/page.html", "file": "file://" + page,
	}
	for name, url := range urls {
		b.do(t, "open", map[string]string{"name": name, "url": url}, nil)
		// What the snippet logs is kept, and its stream shown.
		code := "window.lines = []; console.log = (...a) => lines.push(a); {" + m.ports.Replace(snippet) + "\nwindow.stream = stream }"
		b.eval(name, code, nil)
		b.wait(name, "stream.readyState === EventSource.OPEN")
	}
	for range 2 {
		x.run(m.ports.Replace(publish[1]))
	}
	for name := range urls {
		b.wait(name, "lines.length === 2")
		var got string
		b.eval(name, "JSON.stringify(lines.map((l) => l[1]))", &got)
		if got != `[{"hello":"world"},{"hello":"world"}]` {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestPushToAPage follows docs/howto/push-to-a-page.md: its files are those of the
// example, its commands are run, its page is opened.
func TestPushToAPage(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm", "chromium")
	m := readManual(t, "docs", "howto", "push-to-a-page.md")
	root := t.TempDir()
	x := &shell{t, filepath.Join(root, "examples", "push-to-a-page"), environment("WEIR_LISTEN="+m.public, "WEIR_ADMIN_LISTEN="+judge.FreeAddr(t))}
	copied := func(from, to string) string {
		b, err := os.ReadFile(judge.Path(strings.Split(from, "/")...))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), []byte(m.ports.Replace(string(b))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, name := range []string{"weir.yaml", "server.mjs", "index.html"} {
		path := "examples/push-to-a-page/" + name
		text := regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(copied(path, path), "    $1")
		if !strings.Contains(m.text, text) {
			t.Errorf("%s is not in the howto as it is", path)
		}
	}
	copied("clients/js/weir.js", "clients/js/weir.js")
	copied("clients/js/worker.js", "clients/js/worker.js")
	if err := os.Symlink(judge.Binary(t, judge.Plain), filepath.Join(x.dir, "weir")); err != nil {
		t.Fatal(err)
	}
	var publish []string
	for _, c := range m.commands() {
		switch {
		case strings.HasPrefix(c, "go build"), strings.HasPrefix(c, "cd "): // done above
		case strings.HasPrefix(c, "curl "):
			publish = append(publish, c)
		case strings.HasSuffix(c, "&"):
			x.background(c)
		default:
			x.run(c)
		}
	}
	serving(t, "http://"+m.public+"/readyz")
	serving(t, "http://"+m.application+"/")
	b := &tabs{tab: driven(t, "tabs.mjs")}
	open := func(name string) {
		b.do(t, "open", map[string]string{"name": name, "url": "http://" + m.application}, nil)
		b.wait(name, "document.getElementById('state').textContent === 'live'")
	}
	open("one")
	open("two")
	for _, c := range publish {
		if out := x.run(c); !strings.Contains(out, `"result"`) {
			t.Fatalf("%s: %s", c, out)
		}
	}
	open("three") // has the history
	for _, name := range []string{"one", "two", "three"} {
		b.wait(name, "document.querySelectorAll('li').length === 2")
		var got string
		b.eval(name, "[...document.querySelectorAll('li')].map((li) => li.textContent).join()", &got)
		if got != "packed,sent" {
			t.Errorf("tab %s shows %q", name, got)
		}
	}
	if n := len(publish); n != 2 {
		t.Errorf("%d publications in the howto", n)
	}
}
