package access

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// MayRead decides on the channels of a native subscription one by one. nil means that
// all may be read.
func (m *Model) MayRead(id *auth.Identity, channels []string) *wire.Error {
	for _, ch := range channels {
		if m.Decide(Native, Read, ch, Caller{Identity: id}) != Refused {
			continue
		}
		switch _, err := m.Namespace(ch); {
		case err != nil:
			return wire.ErrorOf(err)
		case id == auth.Anonymous:
			return &wire.Error{Status: http.StatusUnauthorized, Message: "a token is needed to read " + quoted(ch),
				Hint: "send Authorization: Bearer, the cookie, or ?token="}
		}
		e := &wire.Error{Status: http.StatusForbidden, Message: "reading " + quoted(ch) + " is not granted",
			Hint: "the token's weir.subscribe must match the channel"}
		switch m.ClassOf(ch) {
		case Users, SignedIn, Recording:
			e.Hint += ", and spell it out where a user or recording is named: a wildcard before that does not count"
		}
		return e
	}
	return nil
}

// MayPublish returns why who may not publish to channel natively, or nil.
func (m *Model) MayPublish(who *auth.Identity, channel string) *wire.Error {
	switch {
	case m.Decide(Native, Publish, channel, Caller{Identity: who}) != Refused:
		return nil
	case who == auth.Anonymous:
		return &wire.Error{Status: http.StatusUnauthorized, Message: "publishing needs a key or a token", Hint: "send X-API-Key, or Authorization: Bearer with publish grants"}
	}
	if _, err := m.Namespace(channel); err != nil && who.CanPublish(channel) {
		return nil // the hub refuses it, in its words
	}
	return &wire.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("publishing to %q is not granted", wire.Printable(channel, 80))}
}

// Granted reports whether id may read all of channels, private messages included. For
// a subscriber that may not, see Hidden. A nil id has no grants.
func (m *Model) Granted(id *auth.Identity, channels []string) bool {
	return !slices.ContainsFunc(channels, func(ch string) bool {
		return m.Decide(Native, Read, ch, Caller{Identity: id}) != Full
	})
}

// Hidden reports whether msg is private and not for id. A nil id has no grants.
func (m *Model) Hidden(msg *hub.Message, id *auth.Identity) bool {
	if msg.Attributes == nil || !msg.Attributes.Private {
		return false
	}
	full := func(ch string) bool { return m.Decide(Native, Read, ch, Caller{Identity: id}) == Full }
	return !full(msg.Channel) && !slices.ContainsFunc(msg.Attributes.Topics, full)
}

func quoted(s string) string { return fmt.Sprintf("%q", s[:min(len(s), 80)]) }
