package accept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/net/poller"
)

// worldWith is a world whose loads are made by processes.
func worldWith(t *testing.T, processes func(context.Context, loadgen.Spec, int, func(context.Context) error) (*loadgen.Result, error)) *world {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := quickPlan()
	p.processes, p.piece = 2, 50*time.Millisecond
	o := &Options{Program: [2]string{exe, "accept-gateway"}, Stderr: io.Discard, Processes: processes}
	return &world{opt: o, plan: p, chain: &chain{dir: t.TempDir()}, ev: &Evidence{Attempt: 1}, known: &knowledge{}, started: time.Now(), dir: t.TempDir(), ind: "test"}
}

func TestLoadsBeginWhenAllAreConnected(t *testing.T) {
	var there, started atomic.Int32
	w := worldWith(t, func(ctx context.Context, s loadgen.Spec, _ int, connected func(context.Context) error) (*loadgen.Result, error) {
		there.Add(1)
		if err := connected(ctx); err != nil {
			return nil, err
		}
		started.Add(1)
		return &loadgen.Result{Spec: s}, nil
	})
	s := loadgen.Spec{Conns: 2000}
	all, err := w.loadThen(t.Context(), "load", func() {
		if n, m := there.Load(), started.Load(); n != 3 || m != 0 {
			t.Errorf("%d loads were connected and %d had started", n, m)
		}
	}, s, s, s)
	if err != nil || len(all) != 3 || started.Load() != 3 {
		t.Errorf("%d results, %d started: %v", len(all), started.Load(), err)
	}
}

// One load that fails ends those that wait for it.
func TestALoadThatCannotConnectEndsTheOthers(t *testing.T) {
	broken := errors.New("no route")
	w := worldWith(t, func(ctx context.Context, s loadgen.Spec, _ int, connected func(context.Context) error) (*loadgen.Result, error) {
		if s.FirstConn == 1 {
			return nil, broken
		}
		return nil, connected(ctx)
	})
	_, err := w.loadThen(t.Context(), "load", func() { t.Error("the load began") }, loadgen.Spec{Conns: 2000}, loadgen.Spec{Conns: 2000, FirstConn: 1})
	if !errors.Is(err, broken) || strings.Count(err.Error(), "no route") != 1 {
		t.Errorf("%v", err)
	}
}

func TestConnectingIsWaitedForWithinABound(t *testing.T) {
	g := newRendezvous(2)
	g.left <- struct{}{}
	if err := g.wait(t.Context(), time.Millisecond); err == nil || !strings.Contains(err.Error(), "1 of 2 loads") {
		t.Errorf("%v", err)
	}
}

// As many subscribers as the gateway takes are all in the gauge, when nothing happens any more; and a pair without
// them does not count.
func TestIdleSubscribersAreAllThere(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			if engine == "io_uring" {
				if err := poller.ProbeUring(); err != nil {
					t.Skip(err)
				}
			}
			w := worldWith(t, nil)
			c, err := w.crowdOf(t.Context(), 375, fmt.Sprintf("eventloop: {engine: %s, loops: 3, max_conns: 400}\n", engine)) // 25 are kept from subscribers
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			if err := c.whole(t.Context()); err != nil {
				t.Error(err)
			}
			c.stop()
			for giveUp := time.Now().Add(20 * time.Second); ; {
				var not *notRunError
				err := c.whole(t.Context())
				if errors.As(err, &not) {
					break
				}
				if time.Now().After(giveUp) {
					t.Fatalf("without its subscribers: %v", err)
				}
			}
		})
	}
}
