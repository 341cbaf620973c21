package push

import (
	"bytes"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Sheds reports whether the publication whose call has this body is refused for want of
// time, by its channel alone: who sheds much must not read what it sheds. The call is
// counted then, and answered with ShedAnswer; otherwise it is for Publish. What does not
// begin with its channel is not looked at here. On c's loop.
func (p *Push) Sheds(c *eventloop.Conn, body []byte) bool {
	l := p.LoopState(c)
	a := l.admission
	if a == nil || a.queue.Len() == 0 && !a.resting {
		return false
	}
	ns, ok := namespaceIn(body)
	if !ok {
		return false
	}
	of := p.classes.of.Load()
	class := of.class[string(ns)]
	if class == limit.Unclassed || of.conflates[string(ns)] && bytes.Contains(body, keyMember) {
		return false // one with a key may take another's place
	}
	if !a.queue.Sheds(class) {
		return false
	}
	a.answers++
	p.counters.publishErrors.Add(1)
	return true
}

var keyMember = []byte(`"key"`)

// ShedAnswer is what a call that is shed is answered. The bytes are not for change.
func ShedAnswer() (status int, body []byte) { return http.StatusServiceUnavailable, overloadedBody }

// namespaceIn returns the namespace of the channel that a call starts with, if it does so
// in the usual way.
func namespaceIn(body []byte) (ns []byte, ok bool) {
	const member = `"channel"`
	b := blanks(body)
	if len(b) == 0 || b[0] != '{' {
		return nil, false
	}
	if b = blanks(b[1:]); len(b) < len(member) || string(b[:len(member)]) != member {
		return nil, false
	}
	if b = blanks(b[len(member):]); len(b) == 0 || b[0] != ':' {
		return nil, false
	}
	if b = blanks(b[1:]); len(b) == 0 || b[0] != '"' {
		return nil, false
	}
	b = b[1:]
	end := bytes.IndexByte(b[:min(len(b), hub.MaxChannelName+1)], '"')
	if end <= 0 || bytes.IndexByte(b[:end], '\\') >= 0 {
		return nil, false
	}
	if colon := bytes.IndexByte(b[:end], ':'); colon >= 0 {
		return b[:colon], true
	}
	return defaultNamespace, true
}

var defaultNamespace = []byte(hub.DefaultNamespace)

// blanks returns b without what JSON lets stand before a token (RFC 8259 §2).
func blanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\r' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}
