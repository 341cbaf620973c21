package pusher

// Waiting is how many channels and users are gone briefly.
func (s *Server) Waiting() int {
	s.announced.mu.Lock()
	defer s.announced.mu.Unlock()
	return len(s.announced.pending)
}
