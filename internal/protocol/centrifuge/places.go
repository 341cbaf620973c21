package centrifuge

import "iter"

// manySubscriptions is from where on they are looked up in a map.
const manySubscriptions = 16

// indexed puts x into the map, if there is one or should be. all are those that there are.
func (r *sessionExtras) indexed(x *subscription, all iter.Seq[*subscription]) {
	switch {
	case r == nil || len(r.more) < manySubscriptions && r.index == nil:
	case r.index == nil:
		r.index = map[string]*subscription{}
		for y := range all {
			r.index[y.plan.Value().name] = y
		}
	default:
		r.index[x.plan.Value().name] = x
	}
}

// forget removes x from what is kept of the subscriptions after the first. r may be nil.
func (r *sessionExtras) forget(x *subscription) {
	if r == nil {
		return
	}
	name := x.plan.Value().name
	delete(r.index, name)
	delete(r.positions, name)
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
	if s.account.extras != nil && s.account.extras.index != nil {
		return s.account.extras.index[channel]
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
		if s.first.s != nil && !yield(&s.first) || s.account.extras == nil {
			return
		}
		for _, x := range s.account.extras.more {
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
	if s.account.extras != nil {
		n += len(s.account.extras.more)
	}
	return n
}
