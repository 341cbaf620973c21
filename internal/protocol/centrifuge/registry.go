package centrifuge

import (
	"hash/maphash"
	"slices"
	"sync"
)

// registry has all connected clients. Any goroutine.
type registry struct {
	seed  maphash.Seed
	parts [64]registryPart
}

// A registryPart has the clients of some users, and some of those without one, which
// are spread by their number.
type registryPart struct {
	mu        sync.Mutex
	anonymous crowd
	users     map[string][]*session
}

// crowd is a list without order. It grows by pieces: one that doubles would take twice
// what there is of it, and that for every client.
type crowd struct {
	pieces []*[crowdPiece]*session
	n      int
}

const crowdPiece = 32

func (c *crowd) at(i uint32) **session { return &c.pieces[i/crowdPiece][i%crowdPiece] }

// add returns the place of s.
func (c *crowd) add(s *session) uint32 {
	if c.n == len(c.pieces)*crowdPiece {
		c.pieces = append(c.pieces, new([crowdPiece]*session))
	}
	i := uint32(c.n)
	c.n++
	*c.at(i) = s
	return i
}

// remove removes what is at i, where the last is put.
func (c *crowd) remove(i uint32) {
	last := c.at(uint32(c.n - 1))
	moved := *last
	*c.at(i), moved.place = moved, i
	*last = nil
	if c.n--; c.n%crowdPiece == 0 {
		c.pieces[len(c.pieces)-1] = nil
		c.pieces = c.pieces[:len(c.pieces)-1]
	}
}

func (c *crowd) appendTo(list []*session) []*session {
	for i := range c.n {
		list = append(list, *c.at(uint32(i)))
	}
	return list
}

func newRegistry() *registry {
	r := &registry{seed: maphash.MakeSeed()}
	for i := range r.parts {
		r.parts[i].users = map[string][]*session{}
	}
	return r
}

func (r *registry) part(user string, number uint64) *registryPart {
	if user == "" {
		return &r.parts[number%uint64(len(r.parts))]
	}
	return &r.parts[maphash.String(r.seed, user)%uint64(len(r.parts))]
}

// add takes s in. It reports false if its user has limit clients already; 0 means
// that there is no limit.
func (r *registry) add(s *session, limit int) bool {
	user := s.account.user
	p := r.part(user, s.t.ID())
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case user == "":
		s.place = p.anonymous.add(s)
	case limit > 0 && len(p.users[user]) >= limit:
		return false
	default:
		p.users[user] = append(p.users[user], s)
	}
	s.flags |= registered
	return true
}

func (r *registry) remove(s *session) {
	user := s.account.user
	p := r.part(user, s.t.ID())
	p.mu.Lock()
	defer p.mu.Unlock()
	if user == "" {
		p.anonymous.remove(s.place)
		return
	}
	list := slices.DeleteFunc(p.users[user], func(x *session) bool { return x == s })
	if len(list) == 0 {
		delete(p.users, user)
	} else {
		p.users[user] = list
	}
}

// of returns the clients of a user. Those of "" are all that have none.
func (r *registry) of(user string) []*session {
	if user != "" {
		p := r.part(user, 0)
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.Clone(p.users[user])
	}
	var list []*session
	for i := range r.parts {
		p := &r.parts[i]
		p.mu.Lock()
		list = p.anonymous.appendTo(list)
		p.mu.Unlock()
	}
	return list
}

// count returns how many clients there are, and how many users they have.
func (r *registry) count() (clients, users int) {
	for i := range r.parts {
		p := &r.parts[i]
		p.mu.Lock()
		clients += p.anonymous.n
		users += len(p.users)
		for _, u := range p.users {
			clients += len(u)
		}
		p.mu.Unlock()
	}
	return clients, users
}
