package e2e

import (
	"fmt"
	"net/http"
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

// A clusterPage is docs/howto/cluster.md with ports that are free here.
type clusterPage struct {
	t        *testing.T
	dir      string
	env      []string
	commands []string // of its sh blocks
}

var (
	shBlock  = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	yamlFile = regexp.MustCompile("(?ms)^```yaml\n# (weir.yaml)\n(.*?)^```$")
	loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// readClusterPage writes the page's configuration into a directory, and finds weir there.
func readClusterPage(t *testing.T) *clusterPage {
	t.Helper()
	text, err := os.ReadFile(judge.Path("docs", "howto", "cluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	free := map[string]string{}
	page := loopback.ReplaceAllStringFunc(string(text), func(addr string) string {
		if free[addr] == "" {
			free[addr] = judge.FreeAddr(t)
		}
		return free[addr]
	})
	p := &clusterPage{t: t, dir: t.TempDir()}
	file := yamlFile.FindStringSubmatch(page)
	if file == nil {
		t.Fatal("the page has no weir.yaml")
	}
	if err := os.WriteFile(filepath.Join(p.dir, file[1]), []byte(file[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(judge.Binary(t, judge.Plain), filepath.Join(p.dir, "weir")); err != nil {
		t.Fatal(err)
	}
	p.env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") || strings.HasPrefix(v, "PATH=") })
	p.env = append(p.env, "PATH="+p.dir+":"+os.Getenv("PATH"))
	for _, b := range shBlock.FindAllStringSubmatch(page, -1) {
		p.commands = append(p.commands, strings.Split(strings.TrimSpace(b[1]), "\n")...)
	}
	return p
}

func (p *clusterPage) command(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", "exec env "+line)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a command to its end.
func (p *clusterPage) run(line string) (string, error) {
	out, err := p.command(line).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// serve starts a node, and returns its address and what kills it.
func (p *clusterPage) serve(line string) (url string, kill func()) {
	p.t.Helper()
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := p.command(line)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	dead := false
	kill = func() {
		if !dead {
			dead = true
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()         // killed
		}
	}
	p.t.Cleanup(kill)
	return "http://" + loopback.FindString(line), kill
}

func (p *clusterPage) ready(urls ...string) {
	p.t.Helper()
	for _, url := range urls {
		judge.Eventually(p.t, time.Minute, url+" is ready", func() bool {
			res, err := judge.HTTP.Get(url + "/readyz")
			if err != nil {
				return false
			}
			res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
	}
}

// TestTheHowtoOfAClusterWorks runs the commands of the page as they are, and has happen
// what its table of failures describes.
func TestTheHowtoOfAClusterWorks(t *testing.T) {
	t.Parallel()
	p := readClusterPage(t)
	if len(p.commands) != 6 {
		t.Fatalf("the page has %d commands, want three nodes, pub, sub and cluster status: %q", len(p.commands), p.commands)
	}
	var urls []string
	var kills []func()
	for _, line := range p.commands[:3] {
		url, kill := p.serve(line)
		urls, kills = append(urls, url), append(kills, kill)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(p.dir, "log")); err == nil && t.Failed() {
			t.Logf("%.6000s", text)
		}
	})
	p.ready(urls...)
	pub, sub, status := p.commands[3], p.commands[4], p.commands[5]
	report := ""
	judge.Eventually(t, time.Minute, status+" succeeds", func() bool {
		var err error
		report, err = p.run(status)
		return err == nil
	})
	if !strings.Contains(report, "3 of 3") {
		t.Errorf("%s: %s", status, report)
	}
	first, err := p.run(pub)
	if err != nil {
		t.Fatalf("%s: %v %s", pub, err, first)
	}
	// The answer and the message each prove the position with a check of their own.
	place := func(at string) string { place, _, _ := strings.Cut(at, "."); return place }
	delivered := func(at string, n int) *regexp.Regexp {
		return regexp.MustCompile(regexp.QuoteMeta(place(at)) + `\.[0-9A-Za-z]+ ` + regexp.QuoteMeta(fmt.Sprintf(`{"n":%d}`, n)))
	}
	if out, err := p.run(sub); err != nil || !delivered(first, 1).MatchString(out) {
		t.Errorf("%s: %v %s", sub, err, out)
	}

	on := func(node, n int, key string) string {
		line := strings.Replace(strings.Replace(pub, urls[1], urls[node], 1), `{"n":1}`, fmt.Sprintf(`{"n":%d}`, n), 1)
		return strings.Replace(line, "--idempotency-key first", "--idempotency-key "+key+" --attempts 30", 1)
	}
	kills[1]() // one node is killed: the others continue, and a retry finds the message
	if again, err := p.run(on(0, 1, "first")); err != nil || place(again) != place(first) {
		t.Errorf("the retry at another node: %v %s, want %s", err, again, first)
	}
	if out, err := p.run(on(2, 9, "first")); err == nil || !strings.Contains(out, "409") {
		t.Errorf("another message under the key: %v %s, want 409", err, out)
	}
	second, err := p.run(on(2, 2, "second"))
	if err != nil {
		t.Fatalf("with two nodes: %v %s", err, second)
	}
	kills[2]() // without a majority nothing is stored
	if out, err := p.run(strings.Replace(on(0, 3, "third"), "--attempts 30", "--attempts 1", 1)); err == nil || !strings.Contains(out, "503") {
		t.Errorf("with one node: %v %s, want 503", err, out)
	}
	_, _ = p.serve(p.commands[1]) // and comes back
	p.ready(urls[0], urls[1])
	third, err := p.run(on(1, 3, "third"))
	if err != nil {
		t.Fatalf("with two nodes again: %v %s", err, third)
	}
	all := strings.Replace(strings.Replace(sub, urls[2], urls[0], 1), "--count 1", "--count 3", 1)
	out, err := p.run(all)
	for i, at := range []string{first, second, third} {
		if err != nil || len(delivered(at, i+1).FindAllString(out, -1)) != 1 {
			t.Errorf("all messages: %v\n%s\nwant %s once", err, out, at)
		}
	}
}
