package hub

import "slices"

// following is a subscriber on the filtered path: its channels, and what it does
// not want of them.
type following struct {
	members []membership
	filter  *filter // nil: it wants everything
}

// filter is what SubscribeOptions say against messages of the channels.
type filter struct {
	accept func(*Message) bool
	public bool
	skip   string
	since  Positions
}

// filter returns nil for those who want everything.
func (o *SubscribeOptions) filter() *filter {
	if o.Select == nil && !o.Public && o.SkipID == "" {
		return nil
	}
	return &filter{accept: o.Select, public: o.Public, skip: o.SkipID, since: o.Since}
}

// match is matches for a filter. decided says that the copies of a publication were
// separated already.
func (f *filter) match(m *Message) (wanted, decided bool) {
	switch {
	case f == nil:
		return true, false
	case f.public && m.isPrivate():
		return false, false
	case f.accept != nil:
		return f.accept(m), true
	}
	return true, false
}

// skips reports whether m is another copy of the publication that the subscriber
// resumed from.
func (f *filter) skips(m *Message) bool {
	if f == nil || f.skip == "" || !m.isCopy() || m.Attributes.ID != f.skip {
		return false
	}
	return slices.ContainsFunc(f.since, func(p Position) bool {
		return p.Epoch == m.Epoch && m.Attributes.First <= p.Offset && p.Offset < m.Offset
	})
}

// covers reports whether l has the messages of channel.
func (l *local) covers(channel string) bool {
	return l.name == channel || l.whole && l.ch.ns.name == NamespaceOf(channel)
}

// matches reports whether m is for the subscriber.
func (f *following) matches(m *Message) bool {
	wanted, decided := f.filter.match(m)
	if !wanted || f.filter.skips(m) {
		return false
	}
	if decided || !m.isCopy() {
		return true
	}
	for _, topic := range m.Attributes.Topics[:m.Attributes.Index] {
		if slices.ContainsFunc(f.members, func(x membership) bool { return x.l.covers(topic) }) {
			return false // it gets that one
		}
	}
	return true
}

// matches is the same for a replay of sp.
func (sp *joinSpace) matches(m *Message, f *filter) bool {
	wanted, decided := f.match(m)
	if !wanted || decided || !m.isCopy() {
		return wanted
	}
	for _, topic := range m.Attributes.Topics[:m.Attributes.Index] {
		if slices.ContainsFunc(sp.locals, func(l *local) bool { return l.covers(topic) }) {
			return false
		}
	}
	return true
}

// sift returns what f lets through of b, which is b itself if that is all of it, and nil if
// nothing. In the first batch after the position that it resumed from, the subscriber had all
// that is before a copy of the publication it resumed from.
func (sp *joinSpace) sift(b *Batch, f *filter, s *Shard) *Batch {
	if f == nil && len(sp.locals) == 1 && !sp.locals[0].whole {
		return b
	}
	begin, wanted := 0, 0
	for i, m := range b.Messages {
		switch {
		case !sp.matches(m, f):
		case !f.skips(m):
			wanted++
		case sp.since != (Position{}):
			begin, wanted = i+1, 0
		}
	}
	switch wanted {
	case len(b.Messages):
		return b
	case 0:
		return nil
	}
	kept := make([]*Message, 0, wanted)
	for _, m := range b.Messages[begin:] {
		if sp.matches(m, f) && !f.skips(m) {
			kept = append(kept, m)
		}
	}
	return s.replay(kept)
}

// replay returns a batch of messages from history.
func (s *Shard) replay(messages []*Message) *Batch {
	b := &Batch{Messages: messages, Replay: true, hub: s.hub}
	for _, m := range messages {
		b.size += len(m.Data)
	}
	return b
}
