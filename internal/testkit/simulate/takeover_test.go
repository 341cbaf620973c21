package simulate

import (
	"bytes"
	"context"
	"math/rand/v2"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func (w *world) spaceOf(channel string) string { return hub.NamespaceOf(channel) }

// The steps of a takeover at which the new process may end; the last one is none.
type stage uint8

const (
	prepared stage = iota
	logSent
	statesSent
	committed
	never
)

func doTakeover(w *world, r *rand.Rand) bool       { return w.succeed(r, never) }
func doFailedTakeover(w *world, r *rand.Rand) bool { return w.succeed(r, stage(r.IntN(int(never)))) }

// succeed replaces a node by a new process, in the order of internal/app: the loops stop, the
// log moves, the states of the connections move, and with the commit the new process serves.
func (w *world) succeed(r *rand.Rand, fails stage) bool {
	old, ok := pick(r, w.nodes, func(*node) bool { return true })
	if !ok {
		return false
	}
	w.logf("takeover of %s, the new process ends at step %d of %d", old.name, fails, never)
	old.thaw()
	w.wait()
	m := &moveOver{w: w, r: r, old: old}
	if w.store != nil && !m.boot(nil) {
		return true
	}
	if fails == prepared {
		m.endNew()
		return true
	}
	m.moveAhead()
	pause, err := old.group.Pause(context.Background())
	if err != nil {
		w.fail("pause %s: %v", old.name, err)
		return true
	}
	defer pause.Resume()
	if r.IntN(2) == 0 {
		w.publish(old, w.fresh(r, channels[r.IntN(len(channels))]))
	}
	if !m.moveLog(fails) {
		return true
	}
	pause.Each(m.export)
	if fails == statesSent {
		m.endNew()
		m.restore(fails)
		return true
	}
	m.arrive(r)
	if fails == committed { // what it did until then counts
		if r.IntN(2) == 0 {
			w.publish(m.fresh, w.fresh(r, channels[r.IntN(len(channels))]))
		}
		m.endNew()
	}
	pause.Each(m.leave)
	if fails == committed {
		m.restore(fails)
		return true
	}
	pause.Resume()
	w.wait()
	w.remove(old)
	w.nodes = append(w.nodes, m.fresh)
	old.stop(false)
	return true
}

// A moveOver is one takeover.
type moveOver struct {
	w      *world
	r      *rand.Rand
	old    *node
	fresh  *node
	ahead  *memory.Ahead    // what of the log moved while it was in use; nil: nothing
	pieces [][]byte         // of the log
	states []takeover.State // by the index of old.pipes; nil: it stays
}

// boot starts the new process.
func (m *moveOver) boot(pieces [][]byte) bool {
	n, err := m.w.boot(pieces)
	if err != nil {
		m.w.fail("the new process does not start: %v", err)
		return false
	}
	m.fresh = n
	return true
}

// keep takes a piece of the log.
func (m *moveOver) keep(piece []byte) error {
	m.pieces = append(m.pieces, bytes.Clone(piece))
	return nil
}

// moveAhead moves what a log holds while it is in use.
func (m *moveOver) moveAhead() {
	if m.old.memory == nil || m.r.IntN(3) == 0 { // to an older version it does not
		return
	}
	var err error
	m.ahead, err = m.old.memory.ExportAhead(func(piece []byte) error {
		m.w.publish(m.old, m.w.fresh(m.r, channels[m.r.IntN(len(channels))]))
		return m.keep(piece)
	})
	if err != nil {
		m.w.fail("export the log of %s ahead: %v", m.old.name, err)
	}
	for range m.r.IntN(4) {
		m.w.publish(m.old, m.w.fresh(m.r, channels[m.r.IntN(len(channels))]))
	}
	m.w.wait()
}

// moveLog moves the log of a node that has one of its own. It returns false when the takeover
// is over.
func (m *moveOver) moveLog(fails stage) bool {
	if m.old.memory == nil {
		if fails == logSent {
			m.endNew()
			return false
		}
		return true
	}
	if err := m.old.memory.Export(m.ahead, m.keep); err != nil {
		m.w.fail("export the log of %s: %v", m.old.name, err)
		return false
	}
	if m.r.IntN(2) == 0 {
		m.w.publish(m.old, m.w.fresh(m.r, channels[m.r.IntN(len(channels))]))
	}
	if fails == logSent || !m.boot(m.pieces) {
		m.restore(fails)
		return false
	}
	return true
}

// endNew ends the new process.
func (m *moveOver) endNew() {
	if m.fresh != nil {
		m.fresh.stop(true)
	}
}

// restore gives the old process its log back, or an empty one if the new process may have
// stored messages.
func (m *moveOver) restore(fails stage) {
	if m.old.memory == nil || m.w.planted(forgetRestore) {
		return
	}
	again := m.old.memory.Resume
	if fails == committed && !m.w.planted(forgetRenew) {
		again = m.old.memory.Renew
	}
	if err := again(); err != nil {
		m.w.fail("resume %s: %v", m.old.name, err)
	}
	m.w.learn(m.old)
}

// export reads the states of the connections of a loop.
func (m *moveOver) export(l *eventloop.Loop) {
	m.w.mu.Lock()
	if m.states == nil {
		m.states = make([]takeover.State, len(m.old.pipes))
	}
	m.w.mu.Unlock()
	for i, p := range m.old.pipes {
		if p.gone.Load() || p.sock.behind() != p || p.loop != l {
			continue
		}
		if s, ok := p.State(); ok {
			m.states[i] = s
		}
	}
}

// arrive has the new process continue with the connections.
func (m *moveOver) arrive(r *rand.Rand) {
	for i, s := range m.states {
		if s == nil {
			continue
		}
		old := m.old.pipes[i]
		moving, err := eventloop.Import(s)
		if err != nil {
			m.w.fail("the state of a connection cannot be read: %v", err)
			return
		}
		session, err := m.fresh.push.ReadState(moving.Kind, moving.State, nil)
		if err != nil {
			m.w.fail("the state of a session cannot be read: %v", err)
			return
		}
		l := m.fresh.group.Loops()[r.IntN(len(m.fresh.hosts))]
		p := &pipe{sock: old.sock, node: m.fresh, loop: l, spaces: old.spaces}
		old.sock.moveTo(p)
		m.fresh.pipes = append(m.fresh.pipes, p)
		on := m.fresh.hosts[l.ID()]
		l.Post(func() {
			err := eventloop.ArriveCarried(&p.Carried, &on.Conn, p, moving, false, func(c *eventloop.Conn) (eventloop.Handler, error) { return m.fresh.push.Arrive(c, session) })
			if err != nil {
				p.Close(err, false)
			}
		})
	}
	m.w.wait()
}

// leave gives up the connections of a loop that moved.
func (m *moveOver) leave(l *eventloop.Loop) {
	if m.w.planted(serveTwice) {
		return
	}
	for i, p := range m.old.pipes {
		if m.states[i] != nil && p.loop == l && !p.gone.Load() {
			p.gone.Store(true)
			p.Leave()
		}
	}
}
