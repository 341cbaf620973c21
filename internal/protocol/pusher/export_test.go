package pusher

// Waiting is how many channels and users are gone briefly.
func (s *Server) Waiting() int {
	s.told.mu.Lock()
	defer s.told.mu.Unlock()
	return len(s.told.pending)
}
