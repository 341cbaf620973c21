package accept

import (
	"context"
	"fmt"

	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// pinFrom is with how many processors the gateway and the load have processors of their own.
const pinFrom = 4

// pin divides the processors for a measurement: the gateways that are started from now on have the first half of
// them, and the load, which is this process, the rest, until undo. Under overload the load takes the more the more
// is refused: on the same processors it would take them from the gateway. With fewer than four, one would be too
// few for the load, and its own delays would be measured: both share them.
func pin(w *world) (undo func()) {
	all, err := sys.CPUs()
	if err != nil || len(all) < pinFrom {
		w.ev.note("The load and the gateway share the processors.")
		return func() {}
	}
	half := len(all) / 2
	if err := sys.BindProcess(all[half:]); err != nil {
		w.ev.note("The load and the gateway share the processors: %v.", err)
		return func() { _ = sys.BindProcess(all) } // what is bound already; it was noted that this does not work
	}
	w.cpus = all[:half]
	w.ev.note("Pinned: the gateway on processors %s, the load on %s.", list(all[:half]), list(all[half:]))
	return func() {
		w.cpus = nil
		if err := sys.BindProcess(all); err != nil {
			w.ev.note("The load is still bound to %s: %v.", list(all[half:]), err)
		}
	}
}

// gateway starts Weir with a configuration, on its processors if those are divided.
func (w *world) gateway(ctx context.Context, config string, args ...string) (s *process.Server, err error) {
	start := func() (err error) {
		s, err = process.StartWeir(ctx, w.opt.Program, w.opt.Stderr, nil, config, append(args, w.opt.set...)...)
		return err
	}
	if len(w.cpus) == 0 {
		err = start()
	} else {
		err = sys.StartOn(w.cpus, start)
	}
	return s, err
}

// list writes processors as the kernel does.
func list(cpus []int) string {
	if n := len(cpus); n > 1 && cpus[n-1]-cpus[0] == n-1 {
		return fmt.Sprintf("%d-%d", cpus[0], cpus[n-1])
	}
	text := ""
	for i, c := range cpus {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(c)
	}
	return text
}
