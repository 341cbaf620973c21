package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/wire"
)

const (
	// prepareTime bounds how long the new process may take to build everything.
	prepareTime = time.Minute
	// pauseTime bounds how long the loops may be paused, settleTime the part of it that
	// waits for publishes under way.
	pauseTime  = 10 * time.Second
	settleTime = time.Second
	// firstTurn is how long the new process alone has the processors after its first "serving": it
	// sends what clients waited for, and what is left to do here can wait.
	firstTurn = 20 * time.Millisecond
	// arrivalTurn is how long the new process collects no garbage after its "serving", and does not watch itself.
	arrivalTurn = 100 * time.Millisecond
	// followEvery is how often connections that were busy are looked at, followTime how long
	// subscribers may be.
	followEvery = 10 * time.Millisecond
	followTime  = time.Second
	// tunnelTime is followTime for tunnels, half of shutdown.drain at most: those with much to relay move only when nothing
	// of it is being sent.
	tunnelTime = 5 * time.Second
	// answerTime bounds how long a loop waits for the new process to read of connections that follow and to answer.
	answerTime = 2 * time.Second
)

// An upgrade is what handing over to a new process needs and has done.
type upgrade struct {
	running sync.Mutex // one at a time

	// Any goroutine.
	state  atomic.Pointer[admin.Upgrade]
	over   chan struct{} // closed at the commit
	closed sync.Once
	counts observe.Upgrades

	child *takeover.Child // fixed at the commit
	// stuck: the new process did not answer, and nothing moves any more. Owned by follow.
	stuck bool

	// collect has garbage collected again, in a new process; fixed before it takes connections.
	collect func()
}

// errPID1 is why a container's first process is not replaced.
var errPID1 = config.WithHint(errors.New("this process is PID 1: its end would end the container, so no other process can take over"),
	"roll out a new container instead: the drain moves clients without loss")

// Upgrade starts the program anew and hands everything over to that process. When it returns
// without an error the new process serves, and Run of this one ends soon. After an error
// everything is as it was, and no connection was closed. Any goroutine.
func (a *App) Upgrade(ctx context.Context) (admin.Upgrade, error) {
	u := &a.upgrade
	if !u.running.TryLock() {
		return *u.state.Load(), fmt.Errorf("%w: %w", admin.ErrBusy, takeover.ErrUnderWay)
	}
	defer u.running.Unlock()
	began := time.Now()
	h := &handover{app: a, state: admin.Upgrade{Step: "starting", From: a.opt.Version}}
	h.report("starting")
	err := a.mayUpgrade()
	if err == nil {
		err = h.run(ctx)
	}
	h.state.Seconds = time.Since(began).Seconds()
	if err != nil {
		h.state.Error, h.state.Hint = err.Error(), config.HintOf(err)
		h.report("failed")
		u.counts.Failed.Add(1)
		a.log.Error("upgrade failed, everything is as it was", "err", err, "new_pid", h.state.PID)
		return h.state, err
	}
	h.report("done")
	u.counts.Done.Add(1)
	u.counts.Moved.Add(uint64(h.state.Moved))
	a.log.Info("a new process serves", "pid", h.state.PID, "version", h.state.To, "moved", h.state.Moved, "left", h.state.Left, "pause", time.Duration(u.counts.Paused.Load()))
	u.closed.Do(func() { close(u.over) })
	return h.state, nil
}

func (a *App) mayUpgrade() error {
	switch {
	case os.Getpid() == 1:
		return errPID1
	case a.opt.Program == "":
		return errors.New("this process was not started from a program that can be started again")
	case a.startTook.Load() == 0:
		return errors.New("the server has not started yet: upgrade it then")
	case a.leaving.Load(), a.replaced():
		return errors.New("the process is ending")
	}
	return nil
}

// UpgradeState is what the last upgrade did, and what one under way does. Any goroutine.
func (a *App) UpgradeState() admin.Upgrade { return *a.upgrade.state.Load() }

// replaced reports whether another process serves in place of this one.
func (a *App) replaced() bool {
	select {
	case <-a.upgrade.over:
		return true
	default:
		return false
	}
}

// A handover is one upgrade, on the old side.
type handover struct {
	app   *App
	child *takeover.Child
	state admin.Upgrade

	pause *eventloop.Pause
	ahead *memory.Ahead         // what the new process has of the log before the pause
	keys  *nats.KeysAhead       // what it has of the embedded server's
	out   []*eventloop.Exported // by loop
	// committed: the commit was sent, or a part of it.
	committed bool
}

func (h *handover) report(step string) {
	h.state.Step = step
	s := h.state
	h.app.upgrade.state.Store(&s)
}

func (h *handover) run(ctx context.Context) (err error) {
	a := h.app
	if h.child, err = takeover.Start(a.opt.Program, a.opt.Args, os.Environ(), a.opt.Version); err != nil {
		return err
	}
	h.state.PID, h.state.To = h.child.Peer.PID, h.child.Peer.Build
	defer func() {
		if err != nil {
			h.child.Refuse(err)
		}
		h.forgetSockets()
	}()
	a.wing.proxy.MoveTunnels(h.child.Peer.Version >= takeover.VersionTunnels)
	h.report("preparing")
	stop := context.AfterFunc(ctx, h.child.Close)
	defer stop()
	if err = h.sendListeners(); err != nil {
		return err
	}
	outside, place, err := h.child.AwaitPrepared(prepareTime)
	if err != nil {
		return fmt.Errorf("the new process cannot serve: %w", err)
	}
	if outside != a.logOutside() || place != "" && place != a.logPlace() {
		return config.WithHint(errors.New("the new process has its log elsewhere: broker.kind, broker.nats.url or broker.nats.dir was changed"), "restart to change the broker")
	}
	if a.memory != nil {
		if h.ahead, err = h.sendLogAhead(); err != nil {
			return err
		}
	}
	if a.memory == nil && !outside {
		if h.keys, err = h.sendKeysAhead(); err != nil {
			return err
		}
	}
	if err = h.sendSocketsAhead(); err != nil {
		return err
	}
	h.report("moving")
	return h.move(outside)
}

// sendListeners gives the new process the listening sockets.
func (h *handover) sendListeners() error {
	a, c := h.app, h.child
	fds, err := a.loops.Listeners()
	if err != nil {
		return err
	}
	defer func() { closeFiles(fds) }()
	names := []string{}
	for i := range fds {
		names = append(names, keptPublic+strconv.Itoa(i))
	}
	if a.listeners.admin != nil {
		fd, err := a.listeners.admin.Socket()
		if err != nil {
			return err
		}
		fds, names = append(fds, fd), append(names, keptAdmin)
	}
	// Connections of a ring become descriptors, some at a time.
	sys.ReserveDescriptors(len(a.loops.Loops())*takeover.MaxFiles + otherFiles)
	return c.SendListeners(names, fds, a.listeners.kept, a.loops.Open())
}

// move is the part in which clients wait.
func (h *handover) move(outside bool) (err error) {
	a := h.app
	collect := collectLater()
	defer func() {
		if err != nil {
			collect()
		} else { // the new process serves first what clients waited for
			time.AfterFunc(collectAfter, collect)
		}
	}()
	began := time.Now()
	h.child.SetDeadline(began.Add(pauseTime))
	a.loops.StopAccepting()
	ctx, cancel := context.WithTimeout(context.Background(), pauseTime)
	defer cancel()
	if h.pause, err = a.loops.Pause(ctx); err != nil {
		a.loops.ResumeAccepting()
		return err
	}
	defer h.pause.Resume()
	defer func() {
		if err != nil {
			h.eachLoop(func(i int, _ *eventloop.Loop) { h.out[i].Keep(nil) })
			a.loops.ResumeAccepting()
		}
	}()
	h.out = make([]*eventloop.Exported, len(a.loops.Loops()))
	for i := range h.out {
		h.out[i] = &eventloop.Exported{}
	}
	if !outside && !h.pause.Settle(settleTime, func() bool { return a.push.Stats().Storing == 0 }) {
		a.log.Warn("publishes are still under way: they are answered that it is not known whether they are stored")
	}
	restore, err := h.sendLog()
	defer func() {
		if err != nil {
			h.child.Refuse(err) // so that no other process has the log
			err = errors.Join(err, restore())
		}
	}()
	if err != nil {
		return err
	}
	if err = h.export(); err != nil {
		return err
	}
	if err = h.child.Send(takeover.Frozen, nil); err != nil {
		return err
	}
	refused, err := h.child.AwaitReady()
	if err != nil {
		return fmt.Errorf("the new process cannot take over: %w", err)
	}
	h.state.Refused = len(refused)
	return h.commit(began, refused)
}

// eachLoop runs f on every loop while they are paused.
func (h *handover) eachLoop(f func(int, *eventloop.Loop)) {
	h.pause.Each(func(l *eventloop.Loop) { f(l.ID(), l) })
}

// export sends every connection that can move now.
func (h *handover) export() error {
	errs := make([]error, len(h.out))
	h.eachLoop(func(i int, l *eventloop.Loop) { h.out[i], errs[i] = l.Export(true, h.child.SendConns) })
	return errors.Join(errs...)
}

// sendSocketsAhead sends the sockets of all connections while they are served, some at a time: only when the new process
// has read those before, so that a loop does not wait for it.
func (h *handover) sendSocketsAhead() error {
	c := h.child
	if c.Peer.Version < takeover.VersionSocketsAhead {
		return nil
	}
	end := time.Now().Add(prepareTime)
	c.SetDeadline(end)
	for _, l := range h.app.loops.Loops() {
		for from := 0; from >= 0; {
			if err := c.AwaitRead(end, sys.Unsent); err != nil {
				return err
			}
			sent := make(chan error, 1)
			posted := l.Post(func() {
				var err error
				from, err = l.SendSockets(from, c.SendSockets)
				sent <- err
			})
			if !posted {
				return eventloop.ErrStopped
			}
			if err := <-sent; err != nil {
				return err
			}
		}
	}
	return c.SettleAhead()
}

// forgetSockets has connections that stay end by themselves again: the new process has ended, or has
// closed what it did not take.
func (h *handover) forgetSockets() {
	for _, l := range h.app.loops.Loops() {
		l.Post(l.ForgetSockets)
	}
}

// commit makes the new process the server. Once that is sent, nothing here
// can use a key of a connection that moved.
func (h *handover) commit(began time.Time, refused map[int]bool) error {
	a := h.app
	if err := h.child.Alive(); err != nil {
		return fmt.Errorf("the new process ended before it took over: %w", err)
	}
	h.eachLoop(func(i int, _ *eventloop.Loop) {
		if len(refused) > 0 {
			h.out[i].Keep(refused)
		}
		h.out[i].Wipe()
	})
	for i := range h.out {
		h.state.Moved += h.out[i].Len()
		h.state.Bytes += h.out[i].Bytes()
	}
	h.committed = true
	err := h.child.Send(takeover.Commit, nil)
	if err == nil {
		err = h.child.AwaitServing()
	}
	a.upgrade.counts.Paused.Store(int64(time.Since(began)))
	if err == nil {
		time.Sleep(firstTurn)
	}
	h.eachLoop(func(i int, _ *eventloop.Loop) { h.out[i].Leave() })
	if err != nil {
		// It is not known what the new process has done with the connections that it had. They
		// are closed, and their clients resume here.
		return fmt.Errorf("the new process ended as it took over, %d connections are closed: %w", h.state.Moved, err)
	}
	h.state.PauseSeconds = time.Duration(a.upgrade.counts.Paused.Load()).Seconds()
	h.state.Left = int((&departure{App: a}).streams())
	h.child.SetDeadline(time.Time{})
	a.upgrade.child = h.child
	a.service.notified(a.opt.Service.MainPID(h.child.Peer.PID))
	if a.listeners.admin != nil {
		a.listeners.admin.StopAccepting()
	}
	return nil
}

// follow moves what was busy as it becomes idle, and drains what cannot move. It returns when
// the process can end.
func (a *App) follow(hard context.Context) {
	began := time.Now()
	end := began.Add(time.Duration(a.cfg.Shutdown.Drain))
	plan := wire.DrainPlan{Over: min(time.Duration((&departure{App: a}).streams())*time.Second/closesPerSecond, time.Until(end)/2), Spread: 300 * time.Millisecond}
	a.push.Leave()
	a.front.MarkRequests(a.loops.Loops())
	draining, tunnels := false, false
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		busy := (&departure{App: a}).streams() > 0 || a.front.Waiting() > 0 // or what has just become idle would not be moved
		moved := a.moveMore()
		if !draining && time.Since(began) >= followTime {
			draining = true
			a.drainCarriers()
			a.push.Drain(plan)
		}
		if !tunnels && time.Since(began) >= min(tunnelTime, end.Sub(began)/2) {
			tunnels = true
			a.wing.proxy.Drain(plan.Over)
		}
		if moved == 0 && !busy || time.Now().After(end) {
			break
		}
		select {
		case <-tick.C:
		case <-hard.Done():
			return
		}
	}
	a.log.Info("what could not move is drained", "connections", a.loops.Open(), "streams", (&departure{App: a}).streams())
	a.drainCarriers()
	a.push.Drain(plan)
	a.front.Drain(a.loops.Loops(), plan)
	a.push.EndRefused()
	await(hard, drainGrace, func() bool {
		return a.front.Waiting() == 0 && (&departure{App: a}).streams() == 0 && a.http2.Stats().Open == 0 && a.http3.Stats().Open == 0
	})
	if a.listeners.admin != nil { // the request for the upgrade is answered
		a.listeners.admin.Finish(drainGrace)
	}
	c := a.upgrade.child
	c.SetDeadline(time.Now().Add(time.Second))
	_ = c.Send(takeover.Done, nil)
}

// moveMore moves the connections that can move now: the new process serves, so that each is its own at once. It returns how
// many were sent, of which those that the new process refuses stay. One loop after the other waits for that answer.
func (a *App) moveMore() (sent int) {
	for _, l := range a.loops.Loops() {
		if a.upgrade.stuck {
			break
		}
		done := make(chan struct{})
		posted := l.Post(func() {
			defer close(done)
			sent += a.moveFrom(l)
		})
		if posted {
			<-done
		}
	}
	return sent
}

// moveFrom is moveMore for l. Nothing is read, sealed or written before the new process has answered, as l does not turn.
// Loop only.
func (a *App) moveFrom(l *eventloop.Loop) (sent int) {
	c, end := a.upgrade.child, time.Now().Add(answerTime)
	c.SetDeadline(end) // or one that reads nothing would block the loop
	defer c.SetDeadline(time.Time{})
	out, err := l.Export(false, c.SendConns)
	sent = out.Len()
	answers := c.Peer.Version >= takeover.VersionFollowReady
	if err == nil && answers && sent > 0 {
		var refused map[int]bool
		if refused, err = c.SettleFollowing(); len(refused) > 0 {
			out.Keep(refused)
		}
	}
	if err != nil {
		a.log.Warn("connections are drained that would have followed", "connections", sent, "err", err)
		a.upgrade.stuck = true
		c.Close()
		if answers { // the new process touches none of them
			out.KeepShared()
			return 0
		}
	}
	out.Wipe()
	if answers && sent > 0 {
		if err := c.CommitFollowing(end, sys.Unsent); err != nil {
			a.log.Warn("connections that would have followed are closed", "connections", out.Len(), "err", err)
			a.upgrade.stuck = true
			c.Close()
			out.Close(err)
			return 0
		}
	}
	a.upgrade.counts.Moved.Add(uint64(out.Len()))
	out.Leave()
	return sent
}
