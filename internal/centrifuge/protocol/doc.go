// Package protocol is the codec of the Centrifuge client protocol, JSON and
// Protobuf. It is pure: bytes in, values out.
package protocol
