package protocol

// Close codes, also sent in pusher:error events. What a client does is in their
// hundreds: 40xx it gives up, 41xx it comes back after a second, 42xx at once. Above
// 4299 a code is of an event that the connection outlives: pusher-js would give up.
const (
	CloseTLSOnly       = 4000 // come back with TLS
	CloseUnknownApp    = 4001
	CloseDisabled      = 4003
	CloseQuota         = 4004 // too many connections of the app
	ClosePath          = 4005
	CloseProtocolForm  = 4006 // protocol= is not a number
	CloseProtocol      = 4007 // a version that is not spoken
	CloseNoProtocol    = 4008
	CloseUnauthorized  = 4009 // signed in wrongly, too late, or disconnected by the app
	CloseCapacity      = 4100 // come back later
	CloseReconnect     = 4200 // come back at once
	CloseNoPong        = 4201
	CloseInactive      = 4202
	ErrorClient        = 4301 // a client event was not passed on
	DefaultActivity    = 120  // seconds of silence after which a client pings
	MinProtocol        = 5
	MaxProtocol        = 7
	MaxChannelsATime   = 100
	MaxBatch           = 10
	MaxEventData       = 10 << 10
	MaxClockDifference = 600 // seconds
)
