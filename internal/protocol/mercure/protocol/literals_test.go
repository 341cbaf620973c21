package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestLiteralsOfTemplates(t *testing.T) {
	f := func(template, head, tail string, inner ...string) {
		t.Helper()
		h, in, tl := literals(template)
		if h != head || tl != tail || !slices.Equal(in, inner) {
			t.Errorf("%s: %q %q %q", template, h, in, tl)
		}
	}
	f("https://example.com/{id}/x{y}", "https://example.com/", "", "/x")
	f("{a}", "", "")
	f("{a}{b}", "", "")
	f("a{b}c{d}e{f}g", "a", "g", "c", "e")
	f("a b{c}d e/f{g}h i", "a", "", "e/f")
	f("{+a}/%20/long{?b,c}", "", "", "20/long")
	f("x{/a*}~{&b}", "x", "", "~")
}

// matches is Match by the expression alone.
func (c *Compiled) matches(topic string) bool {
	return topic == c.Text || c.template != nil && c.template.MatchString(topic)
}

// FuzzTemplatesMatchAsTheirExpressions compares what literals distinguish with what the
// expression says.
func FuzzTemplatesMatchAsTheirExpressions(f *testing.F) {
	for _, template := range []string{
		"https://example.com/{id}/x{y}", "{a}", "/{a}/{b}", "a{b}a{c}a", "{+p}/x", "/s{?q,r}", "{/a*}/b{;c}", "{#f}x{.g}y", "{a:3}-{b}", "é{a}~é{b}é", "a b{c}d", "{a}/{a}/{a}",
	} {
		for _, topic := range []string{"https://example.com/1/x2", "/1/2", "aa", "aaa", "a1a2a", "/s?q=1&r=2", "a b1d", "/x/x", "", "//", "é1~é2é", "a%20b1d"} {
			f.Add(template, topic)
		}
	}
	f.Fuzz(func(t *testing.T, template, topic string) {
		c, err := Compile(Selector{Template, template}, "https://hub.example/")
		if err != nil || template == "*" {
			return
		}
		for _, x := range []string{topic, strings.NewReplacer("{", "", "}", "").Replace(template) + topic, template} {
			if got, want := c.Match(x), c.matches(x); got != want {
				t.Errorf("%q with %q: %v, the expression says %v", template, x, got, want)
			}
		}
	})
}

// BenchmarkUniqueTemplates is a publish with so many subscribers of a template each
// that have no literal at their ends.
func BenchmarkUniqueTemplates(b *testing.B) {
	const count = 10_000
	var all []*Compiled
	for i := range count {
		c, err := Compile(Selector{Template, fmt.Sprintf("https://example.com/{id}/x%d{y}", i)}, "")
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, c)
	}
	for name, match := range map[string]func(*Compiled, string) bool{"literals": (*Compiled).Match, "expressions": (*Compiled).matches} {
		b.Run(name, func(b *testing.B) {
			i, found := 0, 0
			for b.Loop() {
				i++
				topic := fmt.Sprintf("https://example.com/%d/x%d", i, i%count)
				for _, c := range all {
					if match(c, topic) {
						found++
					}
				}
			}
			if found == 0 {
				b.Error("nothing matches")
			}
		})
	}
}
