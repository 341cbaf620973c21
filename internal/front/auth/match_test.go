package auth

import (
	"strings"
	"testing"
	"time"
)

// matches reports whether pattern covers channel.
func matches(pattern, channel string) bool {
	p := compile(pattern)
	return p.match(channel)
}

func TestMatch(t *testing.T) {
	f := func(pattern, channel string, want bool) {
		t.Helper()
		if got := matches(pattern, channel); got != want {
			t.Errorf("matches(%q, %q) = %v, want %v", pattern, channel, got, want)
		}
		ps, err := CompilePatterns([]string{"never", pattern})
		if err != nil {
			t.Fatalf("CompilePatterns(%q): %v", pattern, err)
		}
		if got := ps.Match(channel); got != want {
			t.Errorf("Patterns(%q).Match(%q) = %v, want %v", pattern, channel, got, want)
		}
	}
	// Literals.
	f("orders", "orders", true)
	f("orders", "orders2", false)
	f("orders", "order", false)
	// One wildcard, one segment.
	f("orders.*", "orders.42", true)
	f("orders.*", "orders", false)
	f("orders.*", "orders.", false)
	f("orders.*", "orders.42.items", false)
	f("orders.*", "orders.a:b", false)
	f("orders.*", "orders.a/b", false)
	f("*", "news", true)
	f("*", "orders:42", false)
	f("*", "a.b", false)
	f("*.items", "42.items", true)
	f("*.items", ".items", false)
	f("orders:*", "orders:42", true)
	f("orders:*", "orders2:42", false)
	f("a*c", "abc", true)
	f("a*c", "ac", false)
	f("a*a", "a", false)
	f("a*a", "aa", false)
	f("a*a", "aaa", true)
	f("*.*", "a.b", true)
	f("*.*", "a.b.c", false)
	f("user.*.inbox", "user.ada.inbox", true)
	f("user.*.inbox", "user.ada.x.inbox", false)
	f("user.*.inbox", "user..inbox", false)
	// Any bytes.
	f("**", "a", true)
	f("**", "a.b:c/d", true)
	f("orders.**", "orders.42.items", true)
	f("orders.**", "orders.", false)
	f("orders.**", "orders", false)
	f("**.items", "a.b.items", true)
	f("**.items", ".items", false)
	f("a.**.z", "a.b.c.z", true)
	f("a.**.z", "a..z", false)
	f("a.**.z", "a.z", false)
	f("a.**.m.*.z", "a.m.m.m.q.z", true)
	f("a.**.m.*.z", "a.b.m.q.r.z", false)
	// Runs of stars read from the left.
	f("***", "ab", true)
	f("***", "a", false)
	f("***", "a.", false)
	f("***", "..a", true)
	f("****", "..", true)
	f("****", ".", false)
	// Nothing else is special.
	f("a?c", "abc", false)
	f("a?c", "a?c", true)
	f("[ab]", "a", false)
	f("{a,b}", "a", false)
	f(`\*`, "*", false)
	f(`\*`, `\x`, true)
	f("a.b", "axb", false)
	f("^a$", "a", false)
	// A wildcard in the channel is a byte like others and widens nothing.
	f("orders.1", "orders.*", false)
	f("orders.1", "**", false)
	f("orders.*", "orders.*", true)
	f("orders.*", "orders.**", true)
	f("orders.*", "**", false)
	// One spelling only: no case, no encoding, no normalisation.
	f("orders.*", "Orders.1", false)
	f("orders.a", "orders%2ea", false)
	f("orders.*", "orders%2e1", false)
	f("orders:*", "orders%3a1", false)
	f("*", "a%2eb", true) // the bytes as they are; they are not decoded later
	f("orders.1", "orders.1\x00", false)
	f("orders.1", "orders.1\x00.x", false)
	f("orders.*", "orders\x00.1", false)
	f("caf\u00e9", "cafe\u0301", false)
	f("caf\u00e9", "caf\u00e9", true)
	f("orders.*", "orders\uff0e1", false) // full-width stop is no "."
	f("*", "\u00e9", true)
	f("k", "\u212a", false) // Kelvin sign
	// Empty segments and dots are bytes, not a path.
	f("orders.*", "orders..1", false)
	f("orders.**", "orders..1", true)
	f("orders/*", "orders/../admin", false)
	f("orders/*", "orders/..", false)
	f("orders/x", "orders//x", false)
	f("orders.1", " orders.1", false)
	f("orders.1", "", false)
	f("**", "", false)
	f("*", "", false)
}

func TestPatternsRefuseWhatCoversNothing(t *testing.T) {
	f := func(ok bool, list ...string) {
		t.Helper()
		if _, err := CompilePatterns(list); (err == nil) != ok {
			t.Errorf("CompilePatterns(%.60q): %v, want ok %v", list, err, ok)
		}
	}
	f(true)
	f(true, "a", "*", "**")
	f(false, "")
	f(false, "a", "")
	f(false, "a b")
	f(false, "a\x00")
	f(false, "a\n")
	f(true, strings.Repeat("a", 255))
	f(false, strings.Repeat("a", 256))
	f(true, strings.Split(strings.Repeat("a,", 255)+"a", ",")...)
	f(false, strings.Split(strings.Repeat("a,", 256)+"a", ",")...)
}

func TestNoPatternsCoverNothing(t *testing.T) {
	var ps Patterns
	for _, channel := range []string{"", "a", "*", "**"} {
		if ps.Match(channel) {
			t.Errorf("zero Patterns cover %q", channel)
		}
	}
}

// Patterns that make backtracking matchers explode must cost next to nothing.
func TestMatchNeverBacktracks(t *testing.T) {
	evil := []string{
		strings.Repeat("*a", 127),
		strings.Repeat("**a", 85),
		strings.Repeat("*", 255),
		strings.Repeat("**a*a", 51),
	}
	channel := strings.Repeat("a", 254) + "b"
	start := time.Now()
	for _, pattern := range evil {
		for range 20 {
			matches(pattern, channel)
			matches(pattern+"c", channel)
		}
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("160 hard matches took %v", d)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	ps, err := CompilePatterns([]string{"orders.1", "orders.*", "a.**.m.*.z"})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		ps.Match("orders.1")
		ps.Match("a.b.m.q.r.z")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// naiveMatch is the rule as a sentence, with no care for time.
func naiveMatch(pattern, channel string) bool {
	switch {
	case pattern == "":
		return channel == ""
	case strings.HasPrefix(pattern, "**"):
		for i := 1; i <= len(channel); i++ {
			if naiveMatch(pattern[2:], channel[i:]) {
				return true
			}
		}
		return false
	case pattern[0] == '*':
		for i := 1; i <= len(channel) && !strings.ContainsRune(".:/", rune(channel[i-1])); i++ {
			if naiveMatch(pattern[1:], channel[i:]) {
				return true
			}
		}
		return false
	}
	return channel != "" && channel[0] == pattern[0] && naiveMatch(pattern[1:], channel[1:])
}

func FuzzMatch(f *testing.F) {
	for _, s := range [][2]string{
		{"orders.*", "orders.42"}, {"**", "a.b"}, {"a.**.m.*.z", "a.m.m.m.q.z"},
		{"*a*b", "aab"}, {"***", "a.b"}, {"*\x00", "a\x00"}, {"", ""}, {"a*a*a", "aaaa"},
		{"**.*a", "..ba"}, {"*.**.*", "a.b.c"}, {"é*", "éx"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, channel string) {
		if len(pattern) > 14 || len(channel) > 18 {
			matches(pattern, channel) // must end, whatever the size
			return
		}
		if got, want := matches(pattern, channel), naiveMatch(pattern, channel); got != want {
			t.Errorf("matches(%q, %q) = %v, want %v", pattern, channel, got, want)
		}
	})
}

// Every pattern and channel of a small alphabet: what a fuzzer would find, and
// what it would miss.
func TestMatchAgreesWithTheRuleEverywhere(t *testing.T) {
	var words func(alphabet string, n int) []string
	words = func(alphabet string, n int) []string {
		if n == 0 {
			return []string{""}
		}
		shorter := words(alphabet, n-1)
		out := shorter
		for _, w := range shorter {
			if len(w) == n-1 {
				for i := range len(alphabet) {
					out = append(out, w+alphabet[i:i+1])
				}
			}
		}
		return out
	}
	channels := words("ab.", 5)
	for _, pattern := range words("a.*", 6) {
		p := compile(pattern)
		for _, channel := range channels {
			if got, want := p.match(channel), naiveMatch(pattern, channel); got != want {
				t.Fatalf("matches(%q, %q) = %v, want %v", pattern, channel, got, want)
			}
		}
	}
}
