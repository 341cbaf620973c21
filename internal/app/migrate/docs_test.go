package migrate

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// shown is a translation in a page: a mark, then three blocks: what is translated, and
// what comes out on standard output and on standard error.
var shown = regexp.MustCompile("(?s)<!-- translated: (\\w+) (\\S+) -->\n\n```\\w*\n(.*?)```\n(.*?)\n```yaml\n(.*?)```\n(.*?)\n```text\n(.*?)```\n")

// The translations in the pages are what the command says.
func TestPagesShowWhatTheCommandSays(t *testing.T) {
	for _, page := range []string{"centrifugo", "mercure", "soketi"} {
		name := "../../../docs/howto/moving-from-" + page + ".md"
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		m := shown.FindStringSubmatchIndex(text)
		if m == nil {
			t.Errorf("%s shows no translation", name)
			continue
		}
		part := func(i int) string { return text[m[2*i]:m[2*i+1]] }
		r, err := Translate(Kind(part(1)), part(2), []byte(part(3)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := load(t, r.YAML); err != nil {
			t.Errorf("%s: config check: %v", name, err)
		}
		_, yaml, _ := strings.Cut(string(r.YAML), "\n\n") // without the head
		want := text[:m[10]] + yaml + text[m[11]:m[14]] + r.Report() + text[m[15]:]
		if want == text {
			continue
		}
		if !*update {
			t.Errorf("%s does not show what the command says; run go test ./internal/app/migrate -run %s -update", name, t.Name())
			continue
		}
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
