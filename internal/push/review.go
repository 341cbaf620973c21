package push

import (
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Review has every loop ask its clients whether they keep their rights in a reload, and
// calls f once for each loop, on its goroutine, with how many do not, by what they speak.
// It returns at once; f is called Loops times.
func (all loopStates) Review(r *access.Review, f func(lost map[string]int)) {
	for _, loopState := range all {
		s := &reviewScan{loopState: loopState, r: r, f: f, lost: map[string]int{}}
		if !loopState.loop.Post(s.begin) {
			f(nil)
		}
	}
}

// reviewed is a handler whose client has rights.
type reviewed interface {
	// review reports what the client speaks, and whether it may stay; see access.Reviewed.
	review(r *access.Review) (protocol string, stays bool)
}

var _, _, _, _, _ reviewed = (*sseSession)(nil), (*wsSession)(nil), (*heldSession)(nil), (*recordedSession)(nil), (*transport)(nil)

// reviewScan is a walk over one loop's clients.
type reviewScan struct {
	loopState *LoopState
	r         *access.Review
	f         func(map[string]int)
	left      []*eventloop.Conn
	lost      map[string]int
}

func (a *reviewScan) begin() {
	a.loopState.loop.Conns(func(c *eventloop.Conn) bool {
		h := c.Handler()
		_, ok := h.(reviewed)
		if !ok && a.r.Revoked != nil {
			_, ok = h.(access.Revocable)
		}
		if ok {
			a.left = append(a.left, c)
		}
		return true
	})
	a.next()
}

// next checks some clients and posts itself for the rest.
func (a *reviewScan) next() {
	n := min(len(a.left), lagChunk)
	for _, c := range a.left[:n] {
		if c.Closing() {
			continue
		}
		switch h := c.Handler().(type) { // it may be another by now
		case reviewed:
			if protocol, stays := h.review(a.r); !stays {
				a.lost[protocol]++
			}
		case access.Revocable:
			if a.r.Revoked != nil && h.EndRevoked() {
				a.lost["proxied"]++
			}
		}
	}
	if a.left = a.left[n:]; len(a.left) > 0 && a.loopState.loop.Post(a.next) {
		return
	}
	a.f(a.lost)
}

// checkAccess returns why the client may not stay; code 0 means that it may. by is how it came
// to read its channels: with a proof that the configuration does not know of, or natively.
func (s *session) checkAccess(r *access.Review, by access.Protocol) (code int, reason string) {
	was := s.identity()
	now, ok := r.Identity(was)
	if !ok {
		return codeTokenExpired, "credentials revoked"
	}
	if r.Revoked != nil {
		return 0, ""
	}
	channels := s.sub.Channels()
	switch c := s.custom(); {
	case c != nil:
		if c.review != nil && !c.review(r) {
			return codeRevoked, "access revoked"
		}
	case by == access.Native:
		for _, ch := range channels {
			if r.Lost(by, access.Read, ch, access.Caller{Identity: was}, access.Caller{Identity: now}) {
				return codeRevoked, "access revoked"
			}
		}
	default:
		for _, ch := range channels {
			if !r.Known(ch) {
				return codeRevoked, "access revoked"
			}
		}
	}
	if r.Dry {
		return 0, ""
	}
	if was != now {
		s.extras.identity = now
	}
	if s.custom() == nil && by == access.Native && !r.Now.Granted(now, channels) {
		s.flags |= open
	}
	return 0, ""
}

// reviewAs is review for a session that end ends.
func (s *session) reviewAs(r *access.Review, by access.Protocol, protocol string, end func(int, string)) (string, bool) {
	if s.flags&ending != 0 {
		return "", true
	}
	if c := s.custom(); c != nil {
		protocol = s.loopState.push.protocols[c.protocol].name
	}
	code, reason := s.checkAccess(r, by)
	if code != 0 && !r.Dry {
		s.loopState.push.counters.revoked.Add(1)
		end(code, reason)
	}
	return protocol, code == 0
}

func (s *sseSession) review(r *access.Review) (string, bool) {
	return s.reviewAs(r, access.Native, "sse", s.end)
}

func (s *wsSession) review(r *access.Review) (string, bool) {
	return s.reviewAs(r, access.Native, "websocket", s.end)
}

func (s *heldSession) review(r *access.Review) (string, bool) {
	return s.reviewAs(r, access.Hold, "sse", s.end)
}

func (s *recordedSession) review(r *access.Review) (string, bool) {
	return s.reviewAs(r, access.Hold, "sse", s.end)
}

func (t *transport) review(r *access.Review) (string, bool) {
	x, ok := t.session.(access.Reviewed)
	if !ok || t.closed() {
		return "", true
	}
	t.enter()
	defer t.exit()
	stays := x.Review(r)
	if !stays && !r.Dry {
		t.loopState().push.counters.revoked.Add(1)
	}
	return t.loopState().push.protocols[t.protocol].name, stays
}

// gone reports whether what proved an identity went while its client's request was served.
func gone(id *auth.Identity) bool {
	_, ok := id.Current()
	return !ok
}

const codeRevoked = wire.CodeAccessRevoked
