package router

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

func TestNormalize(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		raw := []byte(in)
		out, _, err := Normalize(nil, raw)
		if err != nil || string(out) != want {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, out, err, want)
		}
		if string(raw) != in {
			t.Errorf("Normalize(%q) wrote to its input: %q", in, raw)
		}
		if again, _, err := Normalize(nil, out); err != nil || string(again) != want {
			t.Errorf("Normalize(%q) is not stable: %q, %v", in, again, err)
		}
	}
	f("/", "/")
	f("*", "*")
	f("/a/b", "/a/b")
	f("/%61dmin/%7Ex", "/admin/~x")
	f("/a%2d%2E%5f", "/a-._")
	f("/%c3%a9", "/%C3%A9")
	f("/a%20b", "/a%20b")
	f("/%3a%40", "/%3A%40")
	f("/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,=")
	f(`/a"b<c>d^e`+"`"+`f{g|h}i[j]`, "/a%22b%3Cc%3Ed%5Ee%60f%7Bg%7Ch%7Di%5Bj%5D")
	f("/%22%5b%5D%7b", "/%22%5B%5D%7B")
	f("//admin", "/admin")
	f("///", "/")
	f("/a//b///c//", "/a/b/c/")
	f("/x/../admin", "/admin")
	f("/x/%2e%2E/admin", "/admin")
	f("/x/.%2e/admin", "/admin")
	f("/./a/./b/.", "/a/b/")
	f("/a/..", "/")
	f("/a/b/..", "/a/")
	f("/a/b/../", "/a/")
	f("/a/b/../..", "/")
	f("/a//../b", "/b")
	f("/.hidden/..x/x..", "/.hidden/..x/x..")
	f("/...", "/...")
	f("/%2525", "/%2525")
	f("/%25%36%31", "/%2561") // "%61" once decoded: an encoded percent sign stays one
	f("/%3F%23", "/%3F%23")
	f("/%C1%C1", "/%C1%C1")
	f("/%E0%A0%80", "/%E0%A0%80")
}

func TestWhatHasTwoReadingsIsRefused(t *testing.T) {
	f := func(in, reason string) {
		t.Helper()
		out, _, err := Normalize(nil, []byte(in))
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, out, err, reason)
		}
	}
	f("", "start with a slash")
	f("admin", "start with a slash")
	f("**", "start with a slash")
	f("/..", "above the root")
	f("/../admin", "above the root")
	f("/a/../../admin", "above the root")
	f("/%2e%2e/admin", "above the root")
	f(`/a\b`, "backslash")
	f("/a%5cb", "backslash")
	f("/%00", "control")
	f("/%0d%0a", "control")
	f("/%7f", "control")
	f("/a b\x01", "byte not allowed")
	f("/\xff", "byte not allowed")
	f("/%", "percent-encoding")
	f("/%a", "percent-encoding")
	f("/%ag", "percent-encoding")
	f("/%u0061", "percent-encoding")
	f("/%c0%ae%c0%ae/admin", "overlong")
	f("/%c0%af", "overlong")
	f("/%e0%80%af", "overlong")
	f("/%f0%80%80%af", "overlong")
	f("/x/..;/admin", "hidden")
	f("/x/..;a=b/admin", "hidden")
	f("/x/..%3b/admin", "hidden")
	f("/x/..%2fadmin", "hidden")
	f("/x%2f..%2Fadmin", "hidden")
	f("/x%2f%2e%2e", "hidden")
	f("/x/.;/admin", "hidden")
	f("/a;/../b;/..;c", "hidden")
	f("/"+strings.Repeat("a", maxPath), "too long")
	f("/"+strings.Repeat("^", maxPath/2), "too long")
}

func TestOdditiesAreReported(t *testing.T) {
	r, _ := table(t, "a /v1/a:b/{x}", "b /c")
	f := func(in string, slash, semicolon, ambiguous bool) {
		t.Helper()
		_, odd, err := Normalize(nil, []byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if odd&OddSlash != 0 != slash || odd&OddSemicolon != 0 != semicolon || r.Ambiguous(odd) != ambiguous {
			t.Errorf("%s: odd = %x, ambiguous = %v", in, odd, r.Ambiguous(odd))
		}
	}
	f("/a/b", false, false, false)
	f("/a%2fb", true, false, false)
	f("/a;b", false, true, false)
	f("/a%3Bb", false, true, false)
	f("/a%2F%3B", true, true, false)
	f("/v1/a%3ab/x", false, false, true)
	f("/v1/a%40b/x", false, false, false) // no rule has "@"
}

// The request that an attacker sends, and what must protect it.
func TestNoWayAroundARuleByEncoding(t *testing.T) {
	r, rules := table(t, "admin /admin/*", "all /*")
	for _, in := range []string{
		"/admin", "/admin/x", "/%61dmin/x", "/%61%64%6d%69%6e", "/x/../admin", "//admin", "//admin//x", "/./admin/x",
		"/x/%2e%2e/admin/x", "/x/..//admin", "/admin/./x", "/admin/y/../x", "/x/y/../../admin", "/admin//",
	} {
		if got, _, _ := strings.Cut(match(t, r, rules, "GET h"+in), " "); got != "admin" {
			t.Errorf("%s leads to %s", in, got)
		}
	}
	for _, in := range []string{
		"/../admin", "/x/..;/admin", "/x/..%2fadmin", `/x\..\admin`, "/x/%2e%2e%2fadmin", "/%c0%ae%c0%ae/admin", "/x/..%5cadmin", "/admin%00",
	} {
		if _, _, err := Normalize(nil, []byte(in)); err == nil {
			t.Errorf("%s is not refused", in)
		}
	}
	for _, in := range []string{"/admin;x/y", "/admin%3b/x", "/admin%2fx", "/x%2fadmin"} {
		if _, odd, err := Normalize(nil, []byte(in)); err != nil || odd&(OddSlash|OddSemicolon) == 0 {
			t.Errorf("%s is neither refused nor reported: %v", in, err)
		}
	}
}

// Whatever is accepted is read by a decoding, cleaning backend as we read it.
func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/%61/../b", "//a/./%2e%2e/b", "/a%2fb;c", "/%c3%a9/%E0%A0%80", "/a%5c", "/{x}|^", "/..;/", "/%25%32%65", "/a/..", "/.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out, odd, err := Normalize(make([]byte, 0, 8), []byte(in))
		if err != nil || in == "*" {
			return
		}
		again, odd2, err := Normalize(nil, out)
		if err != nil || string(again) != string(out) || odd2&^odd != 0 { // a segment that went may have been odd
			t.Fatalf("%q → %q → %q, %v (odd %x, %x)", in, out, again, err, odd, odd2)
		}
		u, err := url.ParseRequestURI(string(out))
		if err != nil || u.RawQuery != "" || u.Fragment != "" || u.Host != "" {
			t.Fatalf("%q → %q: net/url reads %+v, %v", in, out, u, err)
		}
		if odd&(OddSlash|OddSemicolon) != 0 {
			return
		}
		clean := path.Clean(u.Path)
		if clean != "/" && strings.HasSuffix(u.Path, "/") {
			clean += "/"
		}
		if clean != u.Path {
			t.Fatalf("%q → %q: cleaned it is %q", in, out, clean)
		}
	})
}

// The tree and a plain search through the rules agree.
func FuzzMatch(f *testing.F) {
	f.Add("/a /a/* /{x}/b /a/b/c /a/{y}/d", "/a/b")
	f.Add("/users/{id}/orders /users/* /users/new /u /{a}/{b}/{c}", "/users/new/orders")
	f.Add("/* / /a /ab /abc/* /ab/{x}/*", "/abc/d/e")
	f.Add("/{a}/* /{a} /{a}/ /x/", "/x/")
	f.Fuzz(func(t *testing.T, patterns, target string) {
		var rules []Rule
		var parsed []pattern
		for _, s := range strings.Fields(patterns) {
			if r := (Rule{Path: s}); len(rules) < 20 {
				if _, err := New(append(rules[:len(rules):len(rules)], r)); err == nil {
					rules = append(rules, r)
					p, _ := parsePattern(s)
					parsed = append(parsed, p)
				}
			}
		}
		r, err := New(rules)
		if err != nil {
			t.Fatal(err)
		}
		norm, _, err := Normalize(nil, []byte(target))
		if err != nil || norm[0] != '/' {
			return
		}
		var p Params
		got, outcome := r.Match(nil, norm, []byte("GET"), &p)
		want := search(parsed, string(norm))
		if outcome == NotFound {
			got = -1
		}
		if got != want {
			t.Fatalf("%q on %v: tree says %d, search says %d", norm, rules, got, want)
		}
	})
}

// search is the order of the package comment, written another way: each rule that fits gets
// a word of ranks, one per segment, and the least word wins.
func search(patterns []pattern, target string) int {
	best, bestRank := -1, ""
	for i, p := range patterns {
		if rank, ok := fits(p.text, target); ok && (best < 0 || rank < bestRank) {
			best, bestRank = i, rank
		}
	}
	return best
}

func fits(pattern, target string) (rank string, ok bool) {
	prefix := strings.HasSuffix(pattern, "/*")
	if prefix {
		pattern = strings.TrimSuffix(pattern, "/*")
	}
	have := strings.Split(target, "/")[1:]
	var want []string
	if pattern != "" {
		want = strings.Split(pattern, "/")[1:]
	}
	if len(have) < len(want) || !prefix && len(have) != len(want) {
		return "", false
	}
	for i, w := range want {
		switch {
		case strings.HasPrefix(w, "{"):
			if have[i] == "" {
				return "", false
			}
			rank += "b"
		default:
			if norm, _, _ := Normalize(nil, []byte("/"+encodeHigh(w))); string(norm[1:]) != have[i] {
				return "", false
			}
			rank += "a"
		}
	}
	if prefix {
		rank += "c"
	}
	return rank, true
}

func encodeHigh(s string) string {
	var out []byte
	for i := range len(s) {
		if s[i] >= 0x80 {
			out = appendEscape(out, s[i])
		} else {
			out = append(out, s[i])
		}
	}
	return string(out)
}
