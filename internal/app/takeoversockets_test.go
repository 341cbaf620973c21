package app

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Two connections with one socket would read each other's bytes: the second one is refused, whichever goroutine reads it.
func TestASocketIsOfOneConnection(t *testing.T) {
	loop, other := &eventloop.Loop{}, &eventloop.Loop{}
	s := &succession{sockets: []socketAhead{{loop: loop, fd: 7}, {loop: other, fd: 8}, {}}}
	f := func(what string, r *recordFiles, n int, want int32) {
		t.Helper()
		fd, err := r.socket(n)
		if fd != want || (want < 0) != errors.Is(err, takeover.ErrState) {
			t.Errorf("%s: descriptor %d, %v; want %d", what, fd, err, want)
		}
	}
	r := &recordFiles{succession: s, loop: loop, left: []int{5}}
	f("one of another loop", r, 2, -1)
	f("one that is not there", r, 3, -1)
	f("more than there are", r, 4, -1)
	f("the record's own", r, 0, 5)
	f("the record has no more", r, 0, -1)
	var accepted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if fd, err := (&recordFiles{succession: s, loop: loop}).socket(1); err == nil && fd == 7 {
				accepted.Add(1)
			}
		})
	}
	all.Wait()
	if n := accepted.Load(); n != 1 {
		t.Errorf("%d connections have the same socket", n)
	}
}
