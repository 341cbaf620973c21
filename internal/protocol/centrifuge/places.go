package centrifuge

import "iter"

// manySubscriptions is from where on they are looked up in a map.
const manySubscriptions = 16

// newSubscription returns a place for one.
func (s *session) newSubscription() *subscription {
	if s.first.s == nil {
		return &s.first
	}
	r := s.extra()
	x := &subscription{}
	r.more = append(r.more, x)
	return x
}

// index takes x into the map, if there is one or should be.
func (s *session) index(x *subscription) {
	r := s.account.rare
	switch {
	case r == nil || len(r.more) < manySubscriptions && r.index == nil:
	case r.index == nil:
		r.index = map[string]*subscription{}
		for y := range s.subscriptions() {
			r.index[y.plan.Value().name] = y
		}
	default:
		r.index[x.plan.Value().name] = x
	}
}

func (s *session) unindex(x *subscription) {
	r := s.account.rare
	if r == nil {
		return
	}
	delete(r.index, x.plan.Value().name)
	for i, y := range r.more {
		if y == x {
			last := len(r.more) - 1
			r.more[i], r.more[last] = r.more[last], nil
			r.more = r.more[:last]
			return
		}
	}
}

// find returns the subscription to channel, or nil.
func (s *session) find(channel string) *subscription {
	if s.account.rare != nil && s.account.rare.index != nil {
		return s.account.rare.index[channel]
	}
	for x := range s.subscriptions() {
		if x.plan.Value().name == channel {
			return x
		}
	}
	return nil
}

// subscriptions yields all of them, those that the client does not know of yet too.
// They must not change meanwhile.
func (s *session) subscriptions() iter.Seq[*subscription] {
	return func(yield func(*subscription) bool) {
		if s.first.s != nil && !yield(&s.first) || s.account.rare == nil {
			return
		}
		for _, x := range s.account.rare.more {
			if !yield(x) {
				return
			}
		}
	}
}

func (s *session) countSubscriptions() int {
	n := 0
	if s.first.s != nil {
		n++
	}
	if s.account.rare != nil {
		n += len(s.account.rare.more)
	}
	return n
}
