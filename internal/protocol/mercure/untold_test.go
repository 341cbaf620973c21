package mercure

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
)

func TestChangesWaitInOrderAndWithinABound(t *testing.T) {
	d := &directory{untold: untold{wake: make(chan struct{}, 1)}}
	const each = 1000
	var streams []*tracked
	for !d.untold.full() {
		x := &tracked{in: d, list: make([]protocol.Subscription, each)}
		streams = append(streams, x)
		x.begin() // it does not wait: nothing is published here
		if len(streams) > maxUntold {
			t.Fatal("there is no bound")
		}
	}
	if len(streams) != maxUntold/each {
		t.Errorf("full with %d streams, want %d", len(streams), maxUntold/each)
	}
	streams[0].end()
	(*tracked)(nil).begin()
	for _, x := range streams {
		if c, ok := d.untold.next(); !ok || c.of != x || !c.active {
			t.Fatalf("%+v, %v: want the next that began", c, ok)
		}
	}
	if c, ok := d.untold.next(); !ok || c.of != streams[0] || c.active {
		t.Errorf("%+v, %v: want the end of the first", c, ok)
	}
	if c, ok := d.untold.next(); ok || d.untold.full() || d.untold.size != 0 {
		t.Errorf("%+v, %v, %d: want nothing", c, ok, d.untold.size)
	}
}

func TestUnlistedSubscriptionsAreSaidNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &Server{log: slog.New(slog.NewTextHandler(&out, nil))}
		s.directory.s = s
		f := func(lines, counted int) {
			t.Helper()
			if got := strings.Count(out.String(), "\n"); got != lines || s.counts.unlisted.Load() != uint64(counted) {
				t.Errorf("%d lines, %d counted, want %d and %d: %s", got, s.counts.unlisted.Load(), lines, counted, out.String())
			}
		}
		for range 1000 {
			s.directory.unlisted(errors.New("full"))
		}
		f(1, 1000)
		time.Sleep(unlistedEvery)
		s.directory.unlisted(errors.New("full"))
		s.directory.unlisted(errors.New("full"))
		f(2, 1002)
	})
}
