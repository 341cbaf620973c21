package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Changer is a Broker whose namespaces can change while it runs. The hub calls it once
// at a time, and not from an event loop.
type Changer interface {
	// Add makes a namespace exist as Start does: when it returns, the broker can publish
	// in it. After an error there is nothing of it here. One that was added and is not used
	// costs little: there is no way to take it back.
	Add(ctx context.Context, ns Namespace) error
	// Change gives a namespace other options. Its durability is the same.
	Change(ctx context.Context, ns Namespace) error
}

// A Change is another list of namespaces, which takes effect in steps.
//
//	c, err := h.Plan(namespaces)   // is it possible? nothing is done
//	err = c.Add(ctx)               // the broker gets those that are new; they are not visible yet
//	err = c.Apply(ctx)             // the broker changes the others; Undo takes that back
//	c.Commit()                     // all of it is seen
//
// A namespace that is removed keeps its log, and is as it was when it comes back. Its
// subscribers are for the caller to end.
type Change struct {
	h       *Hub
	was     map[string]*Namespace
	next    map[string]*Namespace
	added   []string     // not known to the broker yet
	changed []string     // other options than the broker knows
	applied []*namespace // logs that the broker has the new options of
}

// Plan returns the change after which namespaces are all that there are. One at a time.
func (h *Hub) Plan(namespaces []Namespace) (*Change, error) {
	if len(namespaces) == 0 {
		namespaces = []Namespace{{Name: DefaultNamespace}}
	}
	if err := (Config{Namespaces: namespaces}).Validate(); err != nil {
		return nil, err
	}
	c := &Change{h: h, was: *h.visible.Load(), next: map[string]*Namespace{}}
	for _, n := range namespaces {
		n = n.WithDefaults()
		c.next[n.Name] = &n
		logs := (*h.spaces.Load())[n.Name]
		if logs == nil {
			c.added = append(c.added, n.Name)
			continue
		}
		switch has := logs[0]; {
		case has.options().Partitions != n.Partitions || has.options().PartitionBy != n.PartitionBy:
			return nil, fmt.Errorf("namespace %q: partitions: %d by %s cannot become %d by %s: they are fixed for the life of the logs",
				n.Name, has.options().Partitions, has.options().PartitionBy, n.Partitions, n.PartitionBy)
		case has.options().Durability != n.Durability:
			return nil, fmt.Errorf("namespace %q: durability: %s cannot become %s in a running process: restart it", n.Name, has.options().Durability, n.Durability)
		case *has.options() != n:
			c.changed = append(c.changed, n.Name)
		default:
			c.next[n.Name] = has.options()
		}
	}
	if _, ok := h.broker.(Changer); !ok && len(c.added)+len(c.changed) > 0 {
		return nil, errors.New("the broker cannot change its namespaces while it runs")
	}
	slices.Sort(c.added)
	slices.Sort(c.changed)
	return c, nil
}

// Add has the broker make the namespaces that are new. It may wait. Those that were made
// before an error stay, unseen.
func (c *Change) Add(ctx context.Context) error {
	for _, name := range c.added {
		logs := newLogs(*c.next[name], c.h.broker)
		for k, l := range logs {
			add := c.h.broker.(Changer).Add
			if k < c.h.partial[name] { // an earlier Add came that far, perhaps with other options
				add = c.h.broker.(Changer).Change
			}
			if err := add(ctx, *l.options()); err != nil {
				return fmt.Errorf("add namespace %s: %w", l.options().Title(), err)
			}
			c.h.partial[name] = max(c.h.partial[name], k+1)
		}
		delete(c.h.partial, name)
		all := maps.Clone(*c.h.spaces.Load())
		all[name] = logs
		c.h.spaces.Store(&all)
	}
	return nil
}

// Namespace returns the namespace of channel after the change.
func (c *Change) Namespace(channel string) (*Namespace, error) { return lookIn(c.next, channel) }

// Before returns the namespace of channel before the change.
func (c *Change) Before(channel string) (*Namespace, error) { return lookIn(c.was, channel) }

func lookIn(namespaces map[string]*Namespace, channel string) (*Namespace, error) {
	name := NamespaceOf(channel)
	n := namespaces[name]
	if n == nil {
		return nil, fmt.Errorf("%w: %.40q", ErrUnknownNamespace, name)
	}
	return n, nil
}

// Apply has the broker change namespaces. After an error it has changed none, as far as
// it can take that back.
func (c *Change) Apply(ctx context.Context) error {
	for _, name := range c.changed {
		for k, l := range (*c.h.spaces.Load())[name] {
			n := c.next[name].InPartition(k)
			if err := c.h.broker.(Changer).Change(ctx, n); err != nil {
				c.Undo(ctx)
				return fmt.Errorf("change namespace %s: %w", n.Title(), err)
			}
			c.applied = append(c.applied, l)
		}
	}
	return nil
}

// Undo takes back what Apply did. What retention has removed meanwhile is gone.
func (c *Change) Undo(ctx context.Context) {
	for _, l := range c.applied {
		if err := c.h.broker.(Changer).Change(ctx, *l.options()); err != nil {
			c.h.log.Error("namespace cannot be changed back", "namespace", l.options().LogName(), "err", err)
		}
	}
	c.applied = nil
}

// Commit makes the namespaces those of the change. It does not fail.
func (c *Change) Commit() {
	for name, n := range c.next {
		setOptions((*c.h.spaces.Load())[name], n)
	}
	c.h.visible.Store(&c.next)
}
