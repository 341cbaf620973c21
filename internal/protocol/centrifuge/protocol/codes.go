package protocol

import "strconv"

// An Error is a failed command's reply.
type Error struct {
	Code      uint32
	Message   string
	Temporary bool
}

// Error implements error.
func (e Error) Error() string { return strconv.Itoa(int(e.Code)) + ": " + e.Message }

// The errors. Clients try temporary ones again.
var (
	ErrorInternal         = Error{Code: 100, Message: "internal server error", Temporary: true}
	ErrorUnauthorized     = Error{Code: 101, Message: "unauthorized"}
	ErrorUnknownChannel   = Error{Code: 102, Message: "unknown channel"}
	ErrorPermissionDenied = Error{Code: 103, Message: "permission denied"}
	ErrorMethodNotFound   = Error{Code: 104, Message: "method not found"}
	ErrorSubscribed       = Error{Code: 105, Message: "already subscribed"}
	ErrorLimit            = Error{Code: 106, Message: "limit exceeded"}
	ErrorBadRequest       = Error{Code: 107, Message: "bad request"}
	ErrorNotAvailable     = Error{Code: 108, Message: "not available"}
	ErrorTokenExpired     = Error{Code: 109, Message: "token expired"}
	ErrorExpired          = Error{Code: 110, Message: "expired"}
	ErrorTooManyRequests  = Error{Code: 111, Message: "too many requests", Temporary: true}
	ErrorUnrecoverable    = Error{Code: 112, Message: "unrecoverable position"}
	ErrorConflict         = Error{Code: 113, Message: "conflict"}
)

// An Unsubscription is why the server ended a subscription. From 2500 on clients
// subscribe again.
type Unsubscription struct {
	Code   uint32
	Reason string
}

// The unsubscriptions.
var (
	UnsubscribedByServer          = Unsubscription{2000, "server unsubscribe"}
	UnsubscribedInsufficientState = Unsubscription{2500, "insufficient state"}
	UnsubscribedExpired           = Unsubscription{2501, "subscription expired"}
)

// A Disconnection is why the server ended a connection: the code and reason of the
// WebSocket close frame, or a push.
type Disconnection struct {
	Code   uint32
	Reason string
}

// Reconnects reports whether a client that gets the code reconnects: 3500 to 3999 and
// 4500 to 4999 are for good.
func (d Disconnection) Reconnects() bool {
	return d.Code < 3500 || d.Code >= 4000 && d.Code < 4500 || d.Code >= 5000
}

// The disconnections.
var (
	DisconnectedNormal              = Disconnection{3000, "connection closed"}
	DisconnectedShutdown            = Disconnection{3001, "shutdown"}
	DisconnectedInternal            = Disconnection{3004, "internal server error"}
	DisconnectedExpired             = Disconnection{3005, "connection expired"}
	DisconnectedSubscriptionExpired = Disconnection{3006, "subscription expired"}
	DisconnectedSlow                = Disconnection{3008, "slow"}
	DisconnectedWriteError          = Disconnection{3009, "write error"}
	DisconnectedInsufficientState   = Disconnection{3010, "insufficient state"}
	DisconnectedForceReconnect      = Disconnection{3011, "force reconnect"}
	DisconnectedNoPong              = Disconnection{3012, "no pong"}
	DisconnectedTooManyRequests     = Disconnection{3013, "too many requests"}
	DisconnectedInvalidToken        = Disconnection{3500, "invalid token"}
	DisconnectedBadRequest          = Disconnection{3501, "bad request"}
	DisconnectedStale               = Disconnection{3502, "stale"}
	DisconnectedForce               = Disconnection{3503, "force disconnect"}
	DisconnectedConnectionLimit     = Disconnection{3504, "connection limit"}
	DisconnectedChannelLimit        = Disconnection{3505, "channel limit"}
	DisconnectedInappropriate       = Disconnection{3506, "inappropriate protocol"}
	DisconnectedPermissionDenied    = Disconnection{3507, "permission denied"}
	DisconnectedNotAvailable        = Disconnection{3508, "not available"}
	DisconnectedTooManyErrors       = Disconnection{3509, "too many errors"}
)
