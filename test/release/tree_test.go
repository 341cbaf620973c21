package release

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tracked are the files of the tree whose names end with one of the endings; without
// endings all of them.
func tracked(t *testing.T, endings ...string) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	return slices.DeleteFunc(names, func(name string) bool {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || !info.Mode().IsRegular() {
			return true
		}
		return len(endings) > 0 && !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(name, e) })
	})
}

var (
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	anchor  = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// prose is a page of Markdown without its blocks of code.
func prose(page []byte) []byte {
	var b bytes.Buffer
	fenced := false
	for line := range bytes.Lines(page) {
		if text := bytes.TrimSpace(line); bytes.HasPrefix(text, []byte("```")) || bytes.HasPrefix(text, []byte("~~~")) {
			fenced = !fenced
		} else if !fenced {
			b.Write(line)
		}
	}
	return b.Bytes()
}

// anchors are what a link into a page of Markdown may name, as GitHub makes them.
func anchors(page []byte) map[string]bool {
	set := map[string]bool{}
	for _, m := range heading.FindAllSubmatch(prose(page), -1) {
		text := linked.ReplaceAllString(string(m[1]), "$1")
		slug := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		for name, n := slug, 1; ; n++ {
			if !set[name] {
				set[name] = true
				break
			}
			name = slug + "-" + string(rune('0'+n))
		}
	}
	for _, m := range anchor.FindAllSubmatch(page, -1) {
		set[string(m[1])] = true
	}
	return set
}

// TestLinksOfTheDocumentationLead: every link within the tree names a file that is there,
// and a heading of it.
func TestLinksOfTheDocumentationLead(t *testing.T) {
	links, headings := 0, map[string]map[string]bool{}
	names := func(path string) map[string]bool {
		if headings[path] == nil {
			headings[path] = anchors(read(t, path))
		}
		return headings[path]
	}
	for _, name := range tracked(t, ".md") {
		if strings.Contains(name, "/testdata/") {
			continue // what a command printed
		}
		page := read(t, name)
		for _, m := range link.FindAllSubmatch(code.ReplaceAll(prose(page), nil), -1) {
			target := string(m[1])
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file, fragment, _ := strings.Cut(target, "#")
			path := name
			if file != "" {
				path = filepath.Join(filepath.Dir(name), file)
			}
			info, err := os.Stat(filepath.Join(root, path))
			switch {
			case err != nil:
				t.Errorf("%s: %s: no such file", name, target)
			case fragment != "" && !info.IsDir() && strings.HasSuffix(path, ".md") && !names(path)[fragment]:
				t.Errorf("%s: %s: no such heading", name, target)
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links found: the test does not see them", links)
	}
}

// A secret is what keys or tokens of a service look like; literals are parts of which each
// has one, looked for first as that is much faster.
type secret struct {
	name     string
	literals []string
	pattern  *regexp.Regexp
}

var secrets = []secret{
	{"a private key", []string{"PRIVATE KEY-----"}, regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\s*[A-Za-z0-9+/=]{40}`)},
	{"an access key of AWS", []string{"AKIA", "ASIA"}, regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`)},
	{"a token of GitHub", []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"}, regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})`)},
	{"a token of GitLab", []string{"glpat-"}, regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{20}`)},
	{"a token of Slack", []string{"xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"}, regexp.MustCompile(`\bxox[abprs]-[A-Za-z0-9-]{20}`)},
	{"a key of Google", []string{"AIza"}, regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{35}`)},
	{"a key of an LLM's service", []string{"sk-"}, regexp.MustCompile(`\bsk-(ant-|proj-)?[A-Za-z0-9_-]{32}`)},
	{"a key of Stripe", []string{"k_live_"}, regexp.MustCompile(`\b[rs]k_live_[A-Za-z0-9]{20}`)},
	{"a token of npm", []string{"npm_", "_authToken="}, regexp.MustCompile(`\bnpm_[A-Za-z0-9]{36}|_authToken=[A-Za-z0-9]`)},
	{"a token of PyPI", []string{"pypi-"}, regexp.MustCompile(`\bpypi-AgEI[A-Za-z0-9_-]{50}`)},
}

// find returns what in text looks like the secret.
func (s *secret) find(text []byte) []byte {
	for _, l := range s.literals {
		if bytes.Contains(text, []byte(l)) {
			return s.pattern.Find(text)
		}
	}
	return nil
}

// examples are found and meant: path and why.
var examples = map[string]string{
	"cmd/weir/testdata/script/token.txtar": "made for this test, used nowhere else",
	"test/release/tree_test.go":            "the patterns themselves",
}

// TestNoSecretIsInTheTree looks for what must never be committed.
func TestNoSecretIsInTheTree(t *testing.T) {
	if secrets[0].find([]byte("-----BEGIN EC PRIVATE KEY-----\n"+strings.Repeat("A", 64))) == nil {
		t.Fatal("the test does not find a private key")
	}
	for _, name := range tracked(t) {
		text := read(t, name)
		if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 || examples[name] != "" {
			continue
		}
		for _, s := range secrets {
			if m := s.find(text); m != nil {
				t.Errorf("%s has %s (%.12s…): remove it and revoke it, or add the file to the examples with the reason", name, s.name, m)
			}
		}
	}
}

// TestTheChangelogIsInItsForm: each entry has a mark, and what is not released is first.
func TestTheChangelogIsInItsForm(t *testing.T) {
	entry := regexp.MustCompile(`^- \[(FEATURE|ENHANCEMENT|CHANGE|BUGFIX|SECURITY)\] `)
	section := regexp.MustCompile(`^## (Unreleased|v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?( .*)?)$`)
	sections := 0
	for i, line := range strings.Split(string(read(t, "CHANGELOG.md")), "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			if sections++; !section.MatchString(line) {
				t.Errorf("CHANGELOG.md:%d: %q: want \"## Unreleased\" or \"## 1.2.3\"", i+1, line)
			}
		case strings.HasPrefix(line, "- ") && !entry.MatchString(line):
			t.Errorf("CHANGELOG.md:%d: %.60q: an entry starts with its mark, such as [BUGFIX]", i+1, line)
		}
	}
	if sections == 0 {
		t.Error("CHANGELOG.md has no section")
	}
}
