package hub

// Delivered returns how many messages the shard has handed to its sinks, once per
// subscriber. Any goroutine.
func (s *Shard) Delivered() uint64 { return s.delivered.Load() }

// Depth returns how many messages wait for the shard. Any goroutine.
func (s *Shard) Depth() int64 { return s.depth.Load() }

// Interest returns how many subscribers of this shard a message on channel goes to,
// those of the whole namespace apart. Only the shard's goroutine may call it.
func (s *Shard) Interest(channel string) int {
	l := s.locals[channel]
	if l == nil {
		return 0
	}
	return len(l.single) + len(l.filtered)
}
