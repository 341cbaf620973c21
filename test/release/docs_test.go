package release

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/test/judge"
)

// A block is a fenced block of code of a page.
type block struct {
	page string
	line int    // of its fence
	lang string // what the fence names
	text string
	run  bool // "<!-- run -->" is the line before it
	not  bool // "<!-- not run: … -->" is, with what it needs
}

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// fileName is the name on its first line, as in "# weir.yaml"; empty if there is none.
func (b *block) fileName() string {
	first, _, _ := strings.Cut(b.text, "\n")
	if m := named.FindStringSubmatch(first); m != nil {
		return m[1]
	}
	return ""
}

var unrun = regexp.MustCompile(`^<!-- not run: \S.* -->$`)

var named = regexp.MustCompile(`^(?:#|//) ([\w./-]+\.\w+)$`)

// blocks are those of every page of the documentation.
func blocks(t *testing.T) (list []*block) {
	t.Helper()
	for _, name := range tracked(t, ".md") {
		if strings.Contains(name, "/testdata/") {
			continue
		}
		var open *block
		last := ""
		for i, line := range strings.Split(string(read(t, name)), "\n") {
			text := strings.TrimSpace(line)
			switch {
			case open != nil && text == "```":
				list, open = append(list, open), nil
			case open != nil:
				open.text += line + "\n"
			case strings.HasPrefix(text, "```"):
				open = &block{page: name, line: i + 1, lang: strings.TrimPrefix(text, "```"), run: last == "<!-- run -->", not: unrun.MatchString(last)}
			}
			if text != "" {
				last = text
			}
		}
		if open != nil {
			t.Errorf("%v: the block does not end", open)
		}
	}
	return list
}

// TestBlocksOfTheDocumentationParse: each is of the language that its fence names, as far as
// there is a parser here.
func TestBlocksOfTheDocumentationParse(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm") // with node
	seen := map[string]int{}
	for _, b := range blocks(t) {
		seen[b.lang]++
		if err := parses(t, b); err != nil {
			t.Errorf("%v: %v", b, err)
		}
	}
	for _, lang := range []string{"sh", "yaml", "js", "json", "console", "go"} {
		if seen[lang] == 0 {
			t.Errorf("no block of %s was found", lang)
		}
	}
}

var prompt = regexp.MustCompile(`(?m)^\$ (.*)$`)

func parses(t *testing.T, b *block) error {
	t.Helper()
	shell := func(text string) error {
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	switch b.lang {
	case "sh":
		return shell(b.text)
	case "console":
		var typed strings.Builder
		for _, m := range prompt.FindAllStringSubmatch(b.text, -1) {
			typed.WriteString(m[1] + "\n")
		}
		return shell(typed.String())
	case "yaml", "yml":
		for d := yaml.NewDecoder(strings.NewReader(b.text)); ; {
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	case "json":
		var v any
		return json.Unmarshal([]byte(b.text), &v)
	case "js":
		name := filepath.Join(t.TempDir(), "block.mjs")
		if err := os.WriteFile(name, []byte(b.text), 0o600); err != nil {
			return err
		}
		if out, err := exec.Command("node", "--check", name).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	case "go":
		_, err := parser.ParseFile(token.NewFileSet(), "block.go", b.text, parser.AllErrors)
		return err
	}
	return nil // a language that nothing here parses
}

// TestCommandsOfTheDocumentationRun runs the blocks of sh that are marked with
// "<!-- run -->", each page in a folder with the files that its blocks name, all commands in
// one shell. A command has to succeed; one with the comment "# status 1: text" has to fail
// so. What is printed has to have what follows "# →", where "…" is for anything.
func TestCommandsOfTheDocumentationRun(t *testing.T) {
	judge.Need(t, "npm", "tools") // node, curl
	pages := map[string][]*block{}
	runs := map[string]bool{}
	for _, b := range blocks(t) {
		pages[b.page] = append(pages[b.page], b)
		runs[b.page] = runs[b.page] || b.run
		if b.run && b.lang != "sh" {
			t.Errorf("%v is marked to be run and is of %q: want sh", b, b.lang)
		}
	}
	ran := 0
	for page, list := range pages {
		if !runs[page] {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			runPage(t, list)
		})
	}
	if ran == 0 {
		t.Error("no page has commands that are run")
	}
}

var continued = regexp.MustCompile(`\\\n *`)

var ports = regexp.MustCompile(`\b(8000|8001|9001|9002|9443|3000)\b`)

// commands are the lines of a block of sh; what ends on another line, such as a loop, is one.
func commands(text string) (list []string) {
	command := ""
	for line := range strings.SplitSeq(strings.TrimSpace(continued.ReplaceAllString(text, " ")), "\n") {
		command += line
		check := exec.Command("bash", "-n")
		check.Stdin = strings.NewReader(command + "\n")
		if check.Run() != nil {
			command += "\n"
			continue
		}
		list, command = append(list, command), ""
	}
	if command != "" {
		list = append(list, command)
	}
	return list
}

// A typed command is a line of a block, with what is expected of it.
type typed struct {
	where  string
	status string
	prints []string
}

func runPage(t *testing.T, list []*block) {
	free := map[string]string{}
	port := func(p string) string {
		if free[p] == "" {
			_, free[p], _ = strings.Cut(judge.FreeAddr(t), ":")
		}
		return free[p]
	}
	replaced := func(text string) string { return ports.ReplaceAllStringFunc(text, port) }
	dir, out := t.TempDir(), t.TempDir()
	var script strings.Builder
	var lines []typed
	for _, b := range list {
		if name := b.fileName(); name != "" {
			staged := filepath.Join(out, fmt.Sprintf("file-%d", b.line))
			if err := os.WriteFile(staged, []byte(replaced(b.text)), 0o600); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&script, "mkdir -p \"$(dirname %[2]s)\" && cp %[1]s %[2]s\n", staged, name)
		}
		if !b.run {
			continue
		}
		for i, line := range commands(b.text) {
			c := typed{where: fmt.Sprintf("%s:%d: %s", b.page, b.line+1+i, line), status: "0"}
			if _, comment, ok := strings.Cut(line, "# → "); ok {
				c.prints = strings.Split(replaced(comment), "…")
			} else if _, comment, ok := strings.Cut(line, "# status "); ok {
				var text string
				c.status, text, _ = strings.Cut(comment, ": ")
				c.prints = strings.Split(text, "…")
			}
			n := len(lines)
			fmt.Fprintf(&script, "{ %s\n} >%[2]s/%[3]d.out 2>&1; echo $? >%[2]s/%[3]d.status\n", replaced(line), out, n)
			script.WriteString(awaits(line, port))
			lines = append(lines, c)
		}
	}
	text := runScript(t, dir, script.String(), port)
	for n, c := range lines {
		status, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("%d.status", n)))
		printed, _ := os.ReadFile(filepath.Join(out, fmt.Sprintf("%d.out", n)))
		if err != nil || strings.TrimSpace(string(status)) != c.status {
			t.Fatalf("%s\nstatus %s(%v)\n%s%s", c.where, status, err, printed, text)
		}
		rest := printed
		for _, want := range c.prints {
			_, after, ok := bytes.Cut(rest, []byte(strings.TrimSpace(want)))
			if !ok {
				t.Fatalf("%s\nprinted\n%s", c.where, printed)
			}
			rest = after
		}
	}
}

// awaits is the script that waits until what a line has started in the background serves: Weir,
// or a backend that a page brings along, on the port that the line names or 9001.
func awaits(line string, port func(string) string) string {
	if !strings.HasSuffix(strings.TrimSpace(line), "&") {
		return ""
	}
	switch {
	case strings.Contains(line, "weir serve"):
		return fmt.Sprintf("until curl -fs -o /dev/null http://127.0.0.1:%s/readyz; do kill -0 $! || break; sleep 0.05; done 2>/dev/null\n", port("8000"))
	case strings.HasPrefix(line, "node "), strings.HasPrefix(line, "python3 "), strings.HasPrefix(line, "openssl s_server "):
		at := cmp.Or(ports.FindString(line), "9001")
		return fmt.Sprintf("until (: </dev/tcp/127.0.0.1/%s) 2>/dev/null; do kill -0 $! || break; sleep 0.05; done\n", port(at))
	}
	return ""
}

// environment is this process's, without settings of Weir.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
}

// runScript runs a page's commands and ends what they leave running.
func runScript(t *testing.T, dir, script string, port func(string) string) []byte {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(judge.Binary(t, judge.Plain), filepath.Join(bin, "weir")); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	cmd := exec.Command("bash")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(script)
	cmd.Env = append(environment(), "PATH="+bin+":"+os.Getenv("PATH"), "WEIR_LISTEN=127.0.0.1:"+port("8000"), "WEIR_ADMIN_LISTEN=127.0.0.1:"+port("8001"),
		"WEIR_URL=http://127.0.0.1:"+port("8000"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(bin, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log // a file: what is left running does not block Wait
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	late := time.AfterFunc(2*time.Minute, group)
	err = cmd.Wait()
	late.Stop()
	group()
	if b, readErr := os.ReadFile(log.Name()); readErr == nil {
		text.Write(b)
	}
	if err != nil {
		fmt.Fprintf(&text, "bash: %v\n", err)
	}
	return text.Bytes()
}
