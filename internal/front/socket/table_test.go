package socket

import (
	"strings"
	"testing"
)

// mounted mounts paths, each in the form of its own path.
func mounted(t *testing.T, own string, paths ...string) *Table[string] {
	t.Helper()
	var table Table[string]
	for path := range strings.FieldsSeq(own) {
		table.SetBuiltin(path, "own "+path)
	}
	var all []Endpoint
	for _, path := range paths {
		all = append(all, Endpoint{Path: path, Protocol: "test", Methods: "GET", Serve: func(Request) {}})
	}
	if err := table.Mount(all, func(e *Endpoint) string { return e.Path }); err != nil {
		t.Fatal(err)
	}
	return &table
}

func TestTheWholePathOrTheLongestBeginningServes(t *testing.T) {
	table := mounted(t, "/sse /api/publish", "/a", "/a/*", "/a/b/*", "/a/whole")
	f := func(path, want string) {
		t.Helper()
		got, ok := table.Find([]byte(path))
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", path, got, ok, want)
		}
	}
	f("/sse", "own /sse")
	f("/sse/", "")
	f("/a", "/a")
	f("/a/", "/a/*")
	f("/a/c", "/a/*")
	f("/a/b", "/a/*")
	f("/a/b/", "/a/b/*")
	f("/a/b/c/d", "/a/b/*")
	f("/a/whole", "/a/whole")
	f("/ab", "")
	f("/", "")
	f("", "")
	path := []byte("/a/b/c")
	if n := testing.AllocsPerRun(100, func() { table.Find(path) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	var empty Table[string]
	if _, ok := empty.Find(path); ok {
		t.Error("an empty table serves")
	}
}

func TestOwnPathsReplaceEachOther(t *testing.T) {
	table := mounted(t, "/sse")
	table.SetBuiltin("/sse", "a file")
	if got, _ := table.Find([]byte("/sse")); got != "a file" {
		t.Errorf("got %q", got)
	}
}

func TestPathsThatCannotBeMounted(t *testing.T) {
	table := mounted(t, "/sse /api/publish", "/a", "/b/*", "/api/v2/x")
	f := func(want string, e Endpoint) {
		t.Helper()
		e.Protocol = "test"
		err := table.Mount([]Endpoint{e, {Path: "/beside" + e.Path, Protocol: "test", Methods: "GET", Serve: func(Request) {}}}, func(*Endpoint) string { return "new" })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "endpoint "+e.Path+" (test): ") {
			t.Errorf("%s: %v, want %q", e.Path, err, want)
		}
	}
	serve := func(Request) {}
	f("the path is taken", Endpoint{Path: "/sse", Methods: "GET", Serve: serve})
	f("the path is taken", Endpoint{Path: "/a", Methods: "GET", Serve: serve, Replaces: true}) // of another protocol
	f("the path is taken", Endpoint{Path: "/a", Methods: "GET", Serve: serve})
	f("the path is taken", Endpoint{Path: "/b/*", Methods: "GET", Serve: serve})
	f("/api/publish is below it", Endpoint{Path: "/api/*", Methods: "GET", Serve: serve})
	f("a path is", Endpoint{Path: "c", Methods: "GET", Serve: serve})
	f("a path is", Endpoint{Path: "/c*", Methods: "GET", Serve: serve})
	f("a path is", Endpoint{Path: "/c/*/d", Methods: "GET", Serve: serve})
	f("a path is", Endpoint{Path: "/c?", Methods: "GET", Serve: serve})
	f("no method", Endpoint{Path: "/c", Serve: serve})
	f("no method", Endpoint{Path: "/c", Methods: "GET"})
	f("not within 0..", Endpoint{Path: "/c", Methods: "GET", Serve: serve, MaxBody: -1})
	f("not within 0..", Endpoint{Path: "/c", Methods: "GET", Serve: serve, MaxBody: 64<<20 + 1})
	if got, ok := table.Find([]byte("/beside/a")); !ok || got != "new" {
		t.Error("an endpoint beside a bad one is not mounted")
	}
}

func TestUnreachableRoutesAreNamed(t *testing.T) {
	table := mounted(t, "/sse", "/a", "/b/*")
	f := func(path string, hidden bool) {
		t.Helper()
		err := table.Hides("r", path)
		if (err != nil) != hidden || err != nil && !strings.Contains(err.Error(), `route "r": `+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	f("/a", true)
	f("/b/*", true)
	f("/a/*", false)
	f("/b", false)
	f("/b/c", false)
	f("/sse", false) // Weir's own win, and always did
	f("/*", false)
}

func TestBuiltinHosts(t *testing.T) {
	f := func(want bool, host string, hosts ...string) {
		t.Helper()
		if got := BuiltinHost(hosts, []byte(host)); got != want {
			t.Errorf("%q among %q: %v", host, hosts, got)
		}
	}
	f(true, "x.example")
	f(true, "")
	f(true, "a.example", "b.example", "a.example")
	f(true, "A.Example:8000", "a.example")
	f(true, "[::1]:80", "[::1]")
	f(true, "[::1]", "[::1]")
	f(false, "b.example", "a.example")
	f(false, "a.example.", "a.example")
	f(false, "", "a.example")
}
