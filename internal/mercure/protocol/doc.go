// Package protocol is the forms, selectors, claims and documents of the Mercure
// protocol. It is pure: bytes in, values out.
package protocol
