package auth

import (
	"fmt"
	"log/slog"
	"time"
)

// How an identity was proved.
const (
	ByToken   = "token"
	ByAPIKey  = "api_key"
	ByProgram = "program" // the program that embeds the hub said so
)

// An Identity is who someone is and what that one may do. It is immutable and
// shared by all connections that presented the same token.
type Identity struct {
	// Subject is the token's sub, or the name of the API key; empty if the token
	// has no subject. Free of control characters.
	Subject string
	// By reports what proved it: ByToken, ByAPIKey or, for Anonymous, nothing.
	By string
	// Expires is when it ends, the leeway included: a stream that lives on it is
	// to be closed then. Zero: never.
	Expires time.Time

	purpose   Purpose // of a token
	token     TokenID // of a token
	proof     Proof   // zero: it rests on nothing that could go
	subscribe Patterns
	publish   Patterns
	scopes    []string
	claims    []claim
}

// Anonymous presented nothing. It has no grants of its own: a namespace decides
// whether it may subscribe.
var Anonymous = &Identity{}

// CanSubscribe reports whether the identity's own grants cover channel.
func (i *Identity) CanSubscribe(channel string) bool { return i.subscribe.Match(channel) }

// CanPublish reports whether the identity's own grants cover channel.
func (i *Identity) CanPublish(channel string) bool { return i.publish.Match(channel) }

// CanSubscribeFrom is CanSubscribe with patterns that spell out the first literal bytes of
// channel: their first wildcard comes later. With 0 it is CanSubscribe.
func (i *Identity) CanSubscribeFrom(channel string, literal int) bool {
	return i.subscribe.matchFrom(channel, literal)
}

// CanPublishFrom is CanSubscribeFrom for publishing.
func (i *Identity) CanPublishFrom(channel string, literal int) bool {
	return i.publish.matchFrom(channel, literal)
}

// Client is the identity of a client that another protocol has verified a token of. Nil
// patterns cover nothing.
func Client(subject string, subscribe, publish *Patterns) Identity {
	id := Identity{Subject: subject, By: ByToken}
	if subscribe != nil {
		id.subscribe = *subscribe
	}
	if publish != nil {
		id.publish = *publish
	}
	return id
}

// Patterns returns the identity's grants, for Client.
func (i *Identity) Patterns() (subscribe, publish *Patterns) { return &i.subscribe, &i.publish }

// Expired reports whether the identity has ended at now.
func (i *Identity) Expired(now time.Time) bool {
	return !i.Expires.IsZero() && !now.Before(i.Expires)
}

// Publisher is in whose name the identity's idempotency keys count: see
// hub.Publication. The issuer is part of a token's, since two issuers may name the same
// subject; tokens of one issuer without a subject are one publisher, and so is everyone
// without credentials.
func (i *Identity) Publisher() string {
	switch i.By {
	case "":
		return "anonymous:"
	case ByToken:
		return i.By + ":" + i.Claim("iss") + "\x00" + i.Subject
	}
	return i.By + ":" + i.Subject
}

// LogValue names the subject, not the grants.
func (i *Identity) LogValue() slog.Value {
	if i.By == "" {
		return slog.StringValue("anonymous")
	}
	return slog.StringValue(i.By + ":" + i.Subject)
}

// Until is who id is towards those who need to know no more than when it ends: without
// grants, and gone at end or with what proved id.
func (i *Identity) Until(end time.Time) *Identity {
	return &Identity{Subject: i.Subject, By: ByProgram, Expires: end, proof: i.proof, token: i.token}
}

// Granted is the identity of a client that the embedding program has authenticated, with channel patterns as in
// a token. expires is zero when it does not end. The error names the pattern.
func Granted(subject string, subscribe, publish []string, expires time.Time) (*Identity, error) {
	if !validSubject(subject) {
		return nil, fmt.Errorf("subject %q is too long or has control characters", subject)
	}
	id := &Identity{Subject: subject, By: ByProgram, Expires: expires}
	for name, p := range map[string]struct {
		list []string
		into *Patterns
	}{"subscribe": {subscribe, &id.subscribe}, "publish": {publish, &id.publish}} {
		var err error
		if *p.into, err = CompilePatterns(p.list); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return id, nil
}
