package auth

import (
	"errors"
	"log/slog"
)

// Kinds of refusal. Their text is all that a client may learn.
var (
	// ErrNoToken means none was presented (401 with a bare challenge).
	ErrNoToken = errors.New("no token")
	// ErrBadToken covers everything from garbage to a wrong audience (401). It
	// does not say which: that would help a forger only.
	ErrBadToken = errors.New("token refused")
	// ErrExpired means the token is genuine and was good once (401).
	ErrExpired = errors.New("token expired")
	// ErrRevoked means the token is genuine, and was revoked before it expired (401).
	ErrRevoked = errors.New("token revoked")
	// ErrKeysUnavailable means the key that could decide cannot be fetched now
	// (503 with Retry-After).
	ErrKeysUnavailable = errors.New("keys to verify tokens are unavailable")
)

// An Error is a refusal with its private reason. Error is the public text.
type Error struct {
	kind   error
	detail string
}

// Error returns the public text of the kind.
func (e *Error) Error() string { return e.kind.Error() }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.kind }

// Detail reports why, for debug logs. It never contains the token, its claims or
// its signature, and must not be sent to the client.
func (e *Error) Detail() string { return e.detail }

// LogValue puts the detail in logs.
func (e *Error) LogValue() slog.Value {
	return slog.StringValue(e.kind.Error() + ": " + e.detail)
}

func bad(detail string) error         { return &Error{ErrBadToken, detail} }
func expired(detail string) error     { return &Error{ErrExpired, detail} }
func unavailable(detail string) error { return &Error{ErrKeysUnavailable, detail} }
