package auth

import (
	"log/slog"
	"time"
)

// How an identity was proved.
const (
	ByToken  = "token"
	ByAPIKey = "api_key"
)

// An Identity is who someone is and what that one may do. It is immutable and
// shared by all connections that presented the same token.
type Identity struct {
	// Subject is the token's sub, or the name of the API key; empty if the token
	// names nobody. Free of control characters.
	Subject string
	// By says what proved it: ByToken, ByAPIKey or, for Anonymous, nothing.
	By string
	// Expires is when it ends, the leeway included: a stream that lives on it is
	// to be closed then. Zero: never.
	Expires time.Time

	subscribe Patterns
	publish   Patterns
}

// Anonymous presented nothing. It has no grants of its own: a namespace decides
// whether it may subscribe.
var Anonymous = &Identity{}

// CanSubscribe reports whether the identity's own grants cover channel.
func (i *Identity) CanSubscribe(channel string) bool { return i.subscribe.Match(channel) }

// CanPublish reports whether the identity's own grants cover channel.
func (i *Identity) CanPublish(channel string) bool { return i.publish.Match(channel) }

// Expired reports whether the identity has ended at now.
func (i *Identity) Expired(now time.Time) bool {
	return !i.Expires.IsZero() && !now.Before(i.Expires)
}

// LogValue names the subject, not the grants.
func (i *Identity) LogValue() slog.Value {
	if i.By == "" {
		return slog.StringValue("anonymous")
	}
	return slog.StringValue(i.By + ":" + i.Subject)
}
