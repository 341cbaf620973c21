package hub

// Position returns up to where the sink of s was given everything, one position per namespace
// that keeps a log: anyone who subscribes to the same channels since then, here or in another
// process, continues exactly there. ok is false while that is not decided, at the beginning of
// a subscription, and for subscribers with SkipID. Only the shard's goroutine may call it.
func (s *Subscriber) Position() (at Positions, ok bool) {
	switch j := s.join; {
	case s.sink == nil:
		return nil, false
	case j != nil:
		return j.position()
	case s.local != nil:
		l := s.local
		if len(l.pending.messages) > 0 {
			return nil, false
		}
		return positionAt(nil, l, l.last), true
	}
	if s.more != nil && s.more.filter != nil && s.more.filter.skip != "" {
		return nil, false
	}
	for _, m := range s.memberships() {
		at = positionAt(at, m.l, max(m.l.last, m.after))
	}
	return at, true
}

// position is Position for one that has not caught up.
func (j *join) position() (at Positions, ok bool) {
	if !j.started || j.filter != nil && j.filter.skip != "" {
		return nil, false
	}
	for i := range j.spaces {
		if sp := &j.spaces[i]; sp.epoch != "" {
			if sp.all { // nothing was replayed yet: there is no place before the beginning to name
				return nil, false
			}
			at = append(at, sp.at(sp.cur))
		}
	}
	return at, true
}

// positionAt adds that everything up to offset on l was delivered.
func positionAt(at Positions, l *local, offset uint64) Positions {
	if l.epoch == "" {
		return at
	}
	for i := range at {
		if at[i].Epoch == l.epoch {
			if offset > at[i].Offset {
				at[i].Offset, at[i].Check = offset, l.checkAt(offset)
			}
			return at
		}
	}
	return append(at, Position{l.epoch, offset, l.checkAt(offset)})
}

// checkAt returns the check of the message at offset, 0 if it is not at hand.
func (l *local) checkAt(offset uint64) Check {
	c, _ := l.ch.check(l.epoch, offset)
	return c
}
