package release

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// invocation is weir where a shell takes a command's name, with what follows.
var invocation = regexp.MustCompile(`(?m)(?:^|[|;&(]|\b(?:do|if|until|while)\b)[ \t]*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\./|bin/)?weir((?: [^|;&)#\n]*)?)`)

var flagName = regexp.MustCompile(`(?:^| )(--[a-z][a-z0-9-]*)`)

var commandName = regexp.MustCompile(`^[a-z]+$`) // not an address, which weir bench takes

// usages are the sections of docs/reference/cli.md, which is what --help prints, by command.
func usages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for section := range strings.SplitSeq(string(read(t, "docs/reference/cli.md")), "\n## ") {
		name, text, _ := strings.Cut(section, "\n")
		all[name] = text
	}
	if len(all) < 20 {
		t.Fatalf("%d commands in docs/reference/cli.md", len(all))
	}
	return all
}

// wrongIn are the invocations of a block that name no command, or a flag that their command does not have.
func wrongIn(text string, all map[string]string) (wrong []string, found int) {
	for _, m := range invocation.FindAllStringSubmatch(continued.ReplaceAllString(text, " "), -1) {
		found++
		words, name := strings.Fields(m[1]), "weir"
		for len(words) > 0 && all[name+" "+words[0]] != "" {
			name, words = name+" "+words[0], words[1:]
		}
		group := strings.Contains(all[name], "Available Commands:")
		if group && len(words) > 0 && commandName.MatchString(words[0]) && words[0] != "completion" && words[0] != "help" {
			wrong = append(wrong, name+" has no command "+words[0])
		}
		for _, f := range flagName.FindAllStringSubmatch(m[1], -1) {
			if !regexp.MustCompile(regexp.QuoteMeta(f[1]) + `(?:[^a-z0-9-]|$)`).MatchString(all[name]) {
				wrong = append(wrong, name+" has no flag "+f[1])
			}
		}
	}
	return wrong, found
}

// TestEveryBlockOfCommandsRunsOrSaysWhyNot: one that is not run says what it needs, and its commands of Weir exist
// with their flags.
func TestEveryBlockOfCommandsRunsOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	all := usages(t)
	invocations := 0
	for _, b := range blocks(t) {
		if b.lang == "sh" && !b.run && !b.not {
			t.Errorf("%v is not run: want \"<!-- run -->\" before it, or \"<!-- not run: it needs … -->\"", b)
		}
		if b.lang != "sh" && b.lang != "console" {
			continue
		}
		wrong, found := wrongIn(b.text, all)
		for _, w := range wrong {
			t.Errorf("%v: %s", b, w)
		}
		invocations += found
	}
	if invocations < 50 {
		t.Errorf("%d invocations of weir were found", invocations)
	}
	// It finds what is wrong.
	for text, want := range map[string]string{
		"weir serv a": "weir has no command serv",
		"x=$(weir token --unknown a) | weir sub a":    "weir token has no flag --unknown",
		"A=1 weir config chek && systemctl stop weir": "weir config has no command chek",
	} {
		if wrong, _ := wrongIn(text, all); !slices.Equal(wrong, []string{want}) {
			t.Errorf("%s: %q, want %q", text, wrong, want)
		}
	}
}
