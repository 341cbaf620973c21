// Package protocol is the codec and the signatures of the Pusher Channels protocol,
// version 7, and of its REST API and webhooks. It is pure: bytes in, values out.
//
// Frames are JSON objects {"event", "channel", "data"} in WebSocket text messages.
// What a server sends as data is a JSON text in a string; what clients send is that
// or the value itself.
package protocol
