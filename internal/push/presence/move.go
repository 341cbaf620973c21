package presence

// Clients that move from one process of a node to another are on their channels all the time.
// In each of the two processes they come or go without an event. To the other nodes of a cluster
// the processes are two nodes, and a client is known by its node.

// silence makes the pending change of a client of this node, and of its user, none.
func (s *shard) silence(name, client string) {
	c := s.channels[name]
	if c == nil || c.pending == nil {
		return
	}
	k := key{own, client}
	now := c.members[k]
	before, noted := c.pending.members[k]
	if !noted {
		return
	}
	c.pending.members[k] = now
	for _, e := range []*entry{before, now} {
		if e == nil {
			continue
		}
		if u := c.users[e.User]; u.n > 0 {
			c.pending.users[e.User] = u.last
		} else {
			c.pending.users[e.User] = nil
		}
	}
}

// silenceKind makes the pending change of a count none.
func (s *shard) silenceKind(name string, kind Kind) {
	if c := s.channels[name]; c != nil && c.pending != nil {
		c.pending.before[kind] = c.totals[kind] > 0
	}
}
