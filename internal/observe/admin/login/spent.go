package login

import (
	"sync"
	"time"
)

// spentIDs remembers what may not be used again, until it expires, up to maxSpent.
type spentIDs struct {
	mu  sync.Mutex
	ids map[string]time.Time // when they expire
}

// add remembers id and reports whether it was not known. At the bound the one that expires
// first is forgotten.
func (s *spentIDs) add(id string, expires, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.ids[id]; known {
		return false
	}
	if len(s.ids) >= maxSpent {
		first := ""
		for k, end := range s.ids {
			if !end.After(now) {
				delete(s.ids, k)
			} else if first == "" || end.Before(s.ids[first]) {
				first = k
			}
		}
		if len(s.ids) >= maxSpent {
			delete(s.ids, first)
		}
	}
	s.ids[id] = expires
	return true
}

func (s *spentIDs) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.ids[id]
	return known
}
