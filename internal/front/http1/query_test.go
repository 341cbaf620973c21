package http1

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// pairs writes down what Query hands out.
func pairs(query string) (s string, err error) {
	for p, err := range Query([]byte(query)) {
		if err != nil {
			return s, err
		}
		s += fmt.Sprintf("%s=%s|", p.Name, p.Value)
	}
	return s, nil
}

func TestQuery(t *testing.T) {
	f := func(query, want string) {
		t.Helper()
		if got, err := pairs(query); got != want || err != nil {
			t.Errorf("Query(%q) = %q, %v, want %q", query, got, err, want)
		}
	}
	f("", "")
	f("a=b", "a=b|")
	f("channel=a&channel=b", "channel=a|channel=b|")
	f("a", "a=|")
	f("a=", "a=|")
	f("=b", "=b|")
	f("=", "=|")
	f("a=b=c", "a=b=c|")
	f("&&a=b&&", "a=b|")
	f("a;b=c", "a;b=c|")
	f("a+b=c+d", "a b=c d|")
	f("%61=%62%2B%26%3d%C3%A9", "a=b+&=é|")

	g := func(query, before string) {
		t.Helper()
		got, err := pairs(query)
		if e, ok := errors.AsType[*Error](err); got != before || !ok || e.Status != 400 {
			t.Errorf("Query(%q) = %q, %v, want an error after %q", query, got, err, before)
		}
	}
	g("%", "")
	g("a=b&c=%", "a=b|")
	g("a=%4", "")
	g("a=%zz&c=d", "")
	g("a%4g=b", "")
	g("a=%-1", "")
}

func TestQueryValue(t *testing.T) {
	f := func(query, name, want string, ok bool) {
		t.Helper()
		got, found := QueryValue([]byte(query), name)
		if string(got) != want || found != ok {
			t.Errorf("QueryValue(%q, %q) = %q, %v", query, name, got, found)
		}
	}
	f("a=b&c=d", "c", "d", true)
	f("a=1&a=2", "a", "1", true)
	f("a=b", "b", "", false)
	f("aa=b", "a", "", false)
	f("a", "a", "", true)
	f("a=", "a", "", true)
	f("a=x%20y+z", "a", "x y z", true)
	f("%61=b", "a", "b", true)
	f("a+b=c", "a b", "c", true)
	f("a=%zz", "a", "", false)
	f("%zz=b&a=c", "a", "c", true)
	f("", "a", "", false)
}

func TestQueryEndsWhenItsReaderDoes(t *testing.T) {
	n := 0
	for range Query([]byte("a=1&b=2&c=%")) {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d pairs", n)
	}
}

// FuzzQuery compares with net/url where the two mean to agree: net/url refuses
// ";" and takes pairs after a bad one.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "a=b&c=d", "a=%41+%c3%a9&&=", "%", "a=%zz", "+=+", "a;b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		want, wantErr := url.ParseQuery(query)
		if strings.Contains(query, ";") {
			return
		}
		got := url.Values{}
		var err error
		for p, e := range Query([]byte(query)) {
			if err = e; e == nil {
				got.Add(string(p.Name), string(p.Value))
			}
		}
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%q: %v, net/url %v", query, err, wantErr)
		}
		if err != nil {
			return
		}
		if got.Encode() != want.Encode() {
			t.Fatalf("%q: %v, net/url %v", query, got, want)
		}
		for name := range want {
			if v, ok := QueryValue([]byte(query), name); !ok || string(v) != want.Get(name) {
				t.Fatalf("QueryValue(%q, %q) = %q, %v, want %q", query, name, v, ok, want.Get(name))
			}
		}
	})
}
