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

// A Change is another list of namespaces, prepared: what is new exists at the broker, and
// is not seen by anyone. Apply has the broker change the others, which Undo takes back,
// and Commit shows all of it.
//
// A namespace that is removed keeps its log, and is as it was when it comes back. Its
// subscribers are for the caller to end.
type Change struct {
	h       *Hub
	was     map[string]*Namespace
	next    map[string]*Namespace
	changed []string // other options than the broker knows, by name
	applied []string
}

// Prepare prepares that namespaces are all that there are. It may wait for the broker. One
// change at a time.
func (h *Hub) Prepare(ctx context.Context, namespaces []Namespace) (*Change, error) {
	if len(namespaces) == 0 {
		namespaces = []Namespace{{Name: DefaultNamespace}}
	}
	if err := (Config{Namespaces: namespaces}).Validate(); err != nil {
		return nil, err
	}
	c := &Change{h: h, was: *h.visible.Load(), next: map[string]*Namespace{}}
	var added []Namespace
	for _, n := range namespaces {
		n = n.WithDefaults()
		c.next[n.Name] = &n
		has := h.space(n.Name)
		switch {
		case has == nil:
			added = append(added, n)
		case has.options().Durability != n.Durability:
			return nil, fmt.Errorf("namespace %q: durability: %s cannot become %s in a running process: restart it", n.Name, has.options().Durability, n.Durability)
		case *has.options() != n:
			c.changed = append(c.changed, n.Name)
		default:
			c.next[n.Name] = has.options()
		}
	}
	b, ok := h.broker.(Changer)
	if !ok && len(added)+len(c.changed) > 0 {
		return nil, errors.New("the broker cannot change its namespaces while it runs")
	}
	for _, n := range added {
		if err := b.Add(ctx, n); err != nil {
			return nil, fmt.Errorf("add namespace %q: %w", n.Name, err)
		}
		spaces := maps.Clone(*h.spaces.Load())
		spaces[n.Name] = newNamespace(n)
		h.spaces.Store(&spaces)
	}
	slices.Sort(c.changed)
	return c, nil
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
		if err := c.h.broker.(Changer).Change(ctx, *c.next[name]); err != nil {
			c.Undo(ctx)
			return fmt.Errorf("change namespace %q: %w", name, err)
		}
		c.applied = append(c.applied, name)
	}
	return nil
}

// Undo takes back what Apply did. What retention has removed meanwhile is gone.
func (c *Change) Undo(ctx context.Context) {
	for _, name := range c.applied {
		if err := c.h.broker.(Changer).Change(ctx, *c.h.space(name).options()); err != nil {
			c.h.log.Error("namespace cannot be changed back", "namespace", name, "err", err)
		}
	}
	c.applied = nil
}

// Commit makes the namespaces those of the change. It does not fail.
func (c *Change) Commit() {
	for name, n := range c.next {
		c.h.space(name).opts.Store(n)
	}
	c.h.visible.Store(&c.next)
}
