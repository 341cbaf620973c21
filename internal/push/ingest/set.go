package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Spec is a source as it is configured.
type Spec struct {
	Config Config
	Open   Opener
	// Shared lets every node read the source at once: each receives another part of it.
	Shared bool
	// Same is deeply equal for two Specs of one name that need no restart of the source.
	Same any
}

// A Set is all sources of a node. Any goroutine may call its methods.
type Set struct {
	deps Deps
	bus  hub.Bus

	mu      sync.Mutex
	started bool
	ctx     context.Context // Run's
	wg      sync.WaitGroup  // sources that run
	members map[string]*member
	order   []string
	// last is closed when the source of that name that was started last has stopped.
	last map[string]chan struct{}
}

// A member is a source that runs, or that starts when Run is called.
type member struct {
	spec    Spec
	source  *Source
	cancel  context.CancelFunc
	stopped chan struct{}
}

// ErrUnknown is the answer to a name that no source has.
var ErrUnknown = errors.New("there is no such source")

// topic carries pausing and resuming to all nodes.
const topic = "source.control"

// NewSet returns a Set without sources. bus carries pausing and resuming to other nodes.
func NewSet(deps Deps, bus hub.Bus) *Set {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Set{deps: deps, bus: bus, members: map[string]*member{}, last: map[string]chan struct{}{}}
}

// Run reads all sources until ctx is done, and returns when they have stopped. It is called
// once.
func (s *Set) Run(ctx context.Context) error {
	stop, err := s.bus.Listen(topic, s.controlled)
	if err != nil {
		return fmt.Errorf("sources: %w", err)
	}
	defer stop()
	s.mu.Lock()
	s.started, s.ctx = true, ctx
	for _, m := range s.members {
		s.start(m)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.started = false
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// start runs m when the source of that name before it has stopped. s.mu is held.
func (s *Set) start(m *member) {
	ctx, cancel := context.WithCancel(s.ctx)
	m.cancel = cancel
	before := s.last[m.source.cfg.Name]
	s.last[m.source.cfg.Name] = m.stopped
	s.wg.Go(func() {
		defer close(m.stopped)
		defer cancel()
		if before != nil {
			<-before
		}
		m.source.run(ctx)
	})
}

// Check returns what is wrong with specs.
func Check(specs []Spec) error {
	var errs []error
	for _, spec := range specs {
		_, err := newSource(spec, Deps{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Replace makes specs the sources. Those that are the same continue; the others stop and start
// again with their new configuration. After an error nothing has changed.
func (s *Set) Replace(specs []Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, order := map[string]*member{}, []string{}
	for _, spec := range specs {
		name := spec.Config.Name
		order = append(order, name)
		if old := s.members[name]; old != nil && reflect.DeepEqual(old.spec.Same, spec.Same) {
			next[name] = old
			continue
		}
		source, err := newSource(spec, s.deps)
		if err != nil {
			return err
		}
		next[name] = &member{spec: spec, source: source, stopped: make(chan struct{}), cancel: func() {}}
	}
	was := s.members
	s.members, s.order = next, order
	for name, old := range was {
		if next[name] != old {
			old.cancel()
		}
	}
	for name, m := range next {
		if s.started && was[name] != m {
			s.start(m)
		}
	}
	maps.DeleteFunc(s.last, func(name string, stopped chan struct{}) bool {
		select {
		case <-stopped:
			return next[name] == nil
		default:
			return false
		}
	})
	return nil
}

// States returns what the sources do, in the order in which they are configured.
func (s *Set) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]State, 0, len(s.order))
	for _, name := range s.order {
		all = append(all, s.members[name].source.State())
	}
	return all
}

// A control is a message between nodes.
type control struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// Pause stops reading the source called name on all nodes that can be reached, or has them
// read again, until they start anew. It returns the source's state here.
func (s *Set) Pause(name string, paused bool) (State, error) {
	if !s.pause(name, paused) {
		s.mu.Lock()
		names := slices.Clone(s.order)
		s.mu.Unlock()
		return State{}, fmt.Errorf("source %.40q: %w; there are: %s", name, ErrUnknown, strings.Join(names, ", "))
	}
	body, err := json.Marshal(control{name, paused})
	if err == nil {
		err = s.bus.Broadcast(topic, body)
	}
	if err != nil {
		return State{}, fmt.Errorf("source %s: this node follows, other nodes were not notified: %w", name, err)
	}
	for _, v := range s.States() {
		if v.Name == name {
			return v, nil
		}
	}
	return State{}, fmt.Errorf("source %.40q: %w", name, ErrUnknown)
}

func (s *Set) pause(name string, paused bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[name]
	if m != nil {
		m.source.setPaused(paused)
	}
	return m != nil
}

// controlled receives the messages of all nodes, this one included.
func (s *Set) controlled(_ string, data []byte) {
	var c control
	if err := json.Unmarshal(data, &c); err != nil {
		s.deps.Log.Warn("message about sources is not understood", "err", err)
		return
	}
	s.pause(c.Name, c.Paused)
}
