// Package pusher speaks the Pusher Channels protocol, version 7, and its REST API
// over the hub, so that pusher-js, Laravel Echo and server libraries work with Weir.
package pusher
