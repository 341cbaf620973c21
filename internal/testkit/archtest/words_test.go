package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// These words read like a private language: the field's own terms, in CONTRIBUTING.md, replace them. Comments
// and string literals of Go files are counted, and documents. Words that also have an ordinary meaning are in
// privateUses. testdata/words.txt has for each how often it may still occur; the count must not rise, and
// -update-words lowers it.
var privateWords = []string{
	"told", "tell", "tells", "hear", "hears", "heard", "stands", "stood", "nobody", "somebody", "anybody", "whoever", "stranger", "strangers",
	"asks", "goes on", "go on", "goodbye", "sent away", "sends away", "forsake", "forsaken", "foretell", "mood", "unwell", "mended", "errand", "leave away", "vouched",
	"whose turn", "its turn", "in turn", "moment", "believes", "begun", "beat", "lane", "lanes", "judged", "handed over", "hands over",
	"at a time when", "is owed", "owes", "comes home", "is yours",
}

var updateWords = flag.Bool("update-words", false, "lower the counts of testdata/words.txt and testdata/names.txt to those of today")

// fields are names in documents that a wire format has: of a JSON object, or in the reference of one.
var fields = regexp.MustCompile(`(?m)"\w+":|^\s*\w+\??: \w+$`)

// prose returns what of a file is meant for people. Names are not: a literal without a space is one of a metric's
// label, a field or a topic, and the first word of a comment, or one behind a dot, may be that of what is declared.
func prose(name string, text []byte) []byte {
	if filepath.Ext(name) != ".go" {
		return fields.ReplaceAll(text, nil)
	}
	var out bytes.Buffer
	var s scanner.Scanner
	files := token.NewFileSet()
	s.Init(files.AddFile(name, files.Base(), len(text)), text, nil, scanner.ScanComments)
	names, comments := map[string]bool{}, []string{}
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			for _, c := range comments {
				out.WriteString(withoutNames(c, names))
				out.WriteByte('\n')
			}
			return out.Bytes()
		case tok == token.IDENT:
			names[lit] = true
		case tok == token.COMMENT:
			comments = append(comments, lit)
		case tok == token.STRING && strings.ContainsAny(lit, " \n"):
			out.WriteString(lit)
			out.WriteByte('\n')
		}
	}
}

var mayBeName = regexp.MustCompile(`^// \w+|\.\w+|\b[A-Z]\w+`)

// withoutNames returns a comment without the identifiers of its file, where they cannot be common words.
func withoutNames(comment string, names map[string]bool) string {
	return mayBeName.ReplaceAllStringFunc(comment, func(m string) string {
		if names[strings.TrimLeft(m, "/ .")] {
			return " "
		}
		return m
	})
}

// countWords counts them in all files that git knows of, and names the files by word.
func countWords(t *testing.T) (counts map[string]int, where map[string][]string) {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", root(t), "ls-files", "-z", "*.go", "*.md", "*.html", "*.yaml").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	pattern := regexp.MustCompile(`(?i)\b(` + strings.Join(privateWords, "|") + `)\b`)
	counts, where = map[string]int{}, map[string][]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if strings.HasPrefix(name, "internal/testkit/archtest/") || strings.HasPrefix(name, "docs/lab/") || name == "CHANGELOG.md" || strings.HasPrefix(name, "bench/results/") || strings.HasPrefix(name, "docs/acceptance/20") {
			continue // the list itself, and records of what was measured or changed
		}
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			continue // removed, but not yet committed
		}
		add := func(w string, times int) {
			counts[w] += times
			if n := len(where[w]); n == 0 || where[w][n-1] != name {
				where[w] = append(where[w], name)
			}
		}
		text = prose(name, text)
		for _, m := range pattern.FindAll(text, -1) {
			add(strings.ToLower(string(m)), 1)
		}
		for i := range privateUses {
			if u := &privateUses[i]; !u.allowed(name) {
				if n := u.count(text); n > 0 {
					add(u.name, n)
				}
			}
		}
	}
	return counts, where
}

func TestPlainEnglishGainsNoPrivateWords(t *testing.T) {
	counts, where := countWords(t)
	instead := map[string]string{}
	words := slices.Clone(privateWords)
	for _, u := range privateUses {
		words, instead[u.name] = append(words, u.name), u.instead
	}
	compareWithLimits(t, "testdata/words.txt", words, counts, where, instead)
}

// compareWithLimits reports every word that occurs more often than file allows, with where it is and what to write
// instead. -update-words lowers the counts in file.
func compareWithLimits(t *testing.T, file string, words []string, counts map[string]int, where map[string][]string, instead map[string]string) {
	t.Helper()
	limits := map[string]int{}
	text, err := os.ReadFile(file)
	if err != nil && !*updateWords {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		word, n, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if limits[word], err = strconv.Atoi(n); err != nil {
			t.Fatalf("%s: %q: want a word, a tab and a count", file, line)
		}
	}
	for _, w := range words {
		if _, known := limits[w]; *updateWords && (!known || counts[w] < limits[w]) {
			limits[w] = counts[w]
		}
		if counts[w] > limits[w] {
			hint := ""
			if i := instead[w]; i != "" {
				hint = " (" + i + ")"
			}
			t.Errorf("%q occurs %d times, at most %d are left to replace: use the term that the field's standards use%s (CONTRIBUTING.md); it is in %s",
				w, counts[w], limits[w], hint, strings.Join(where[w], ", "))
		}
	}
	if !*updateWords {
		return
	}
	var b bytes.Buffer
	for _, w := range slices.Sorted(maps.Keys(limits)) {
		fmt.Fprintf(&b, "%s\t%d\n", w, limits[w])
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}
