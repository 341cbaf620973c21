// Package protocol is the codec and the signatures of the Pusher Channels protocol.
// It is pure: bytes in, values out.
package protocol
