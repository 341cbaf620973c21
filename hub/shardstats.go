package hub

// Delivered returns how many messages the shard has handed to its sinks, once per
// subscriber. Any goroutine.
func (s *Shard) Delivered() uint64 { return s.delivered.Load() }

// Depth returns how many messages wait for the shard. Any goroutine.
func (s *Shard) Depth() int64 { return s.depth.Load() }
