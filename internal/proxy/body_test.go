package proxy

import "testing"

// What is written behind a body would be the next request to the backend.
func TestABodyEndsWhereItsHeadSays(t *testing.T) {
	f := func(length int64, chunked bool, pieces []string, want bool) {
		t.Helper()
		x := &Exchange{Call: Call{Length: length, Chunked: chunked}}
		defer func() {
			if r := recover(); (r == nil) != want {
				t.Errorf("length %d, chunked %v, %q: recovered %v", length, chunked, pieces, r)
			}
		}()
		for _, p := range pieces {
			x.Body([]byte(p))
		}
	}
	f(3, false, []string{"a", "bc"}, true)
	f(3, false, []string{"a", "bcd"}, false)
	f(0, false, []string{"a"}, false)
	f(-1, false, []string{"a"}, false)
	f(-1, true, []string{"a", "bc"}, true)
	f(-1, false, []string{""}, true)
}
