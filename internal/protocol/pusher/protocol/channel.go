package protocol

import (
	"fmt"
	"strings"
)

// MaxChannel bounds a channel name in bytes.
const MaxChannel = 164

// MaxEvent bounds an event name in bytes.
const MaxEvent = 200

// UserPrefix starts the channel on which the server reaches a user's connections.
const UserPrefix = "#server-to-user-"

// A Kind is what a channel's prefix says about it.
type Kind uint8

// The kinds. A public channel is none of them, and several may be true at once.
const (
	Private   Kind = 1 << iota // a subscription needs the application's signature
	Presence                   // subscribers know each other; private too
	Encrypted                  // payloads are the clients' secret; private too
	Cache                      // the last event greets new subscribers
	User                       // the server's channel to a signed-in user
)

// Is reports whether k is all of what.
func (k Kind) Is(what Kind) bool { return k&what == what }

// Guarded reports whether a subscription needs more than the channel's name: a
// signature, or a user who has signed in.
func (k Kind) Guarded() bool { return k&(Private|User) != 0 }

// Talks reports whether clients may send events on channels of kind k.
func (k Kind) Talks() bool { return k.Is(Private) && !k.Is(Encrypted) && !k.Is(User) }

// KindOf reads a channel's prefix.
func KindOf(channel string) Kind {
	f := func(prefix string) bool { return strings.HasPrefix(channel, prefix) }
	switch {
	case f(UserPrefix):
		return User
	case f("private-encrypted-cache-"):
		return Private | Encrypted | Cache
	case f("private-encrypted-"):
		return Private | Encrypted
	case f("private-cache-"):
		return Private | Cache
	case f("private-"):
		return Private
	case f("presence-cache-"):
		return Private | Presence | Cache
	case f("presence-"):
		return Private | Presence
	case f("cache-"):
		return Cache
	}
	return 0
}

// CheckChannel reports what is wrong with a channel name: it is 1 to MaxChannel bytes of
// A-Za-z0-9_-=@,.; and only that of a user starts with "#".
func CheckChannel(name string) error {
	switch user, ok := UserOf(name); {
	case ok && user == "":
		return fmt.Errorf("channel %q names no user", name)
	case ok:
		return nil
	case name == "":
		return fmt.Errorf("channel name is empty")
	case len(name) > MaxChannel:
		return fmt.Errorf("channel name %.40q… has %d bytes, at most %d are allowed", name, len(name), MaxChannel)
	}
	for i := range len(name) {
		if !channelByte(name[i]) {
			return fmt.Errorf("channel name %q has %q at byte %d; allowed are letters, digits and _-=@,.;", name, name[i], i)
		}
	}
	return nil
}

func channelByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("_-=@,.;", c) >= 0
}

// UserOf returns the user whose channel it is; ok is false for other channels.
func UserOf(channel string) (user string, ok bool) {
	return strings.CutPrefix(channel, UserPrefix)
}

// Topic returns the name of a channel in the hub, without its namespace. It is the
// same but for users' channels, where bytes that the hub's names cannot have are
// written as %XX.
func Topic(channel string) string {
	user, ok := UserOf(channel)
	if !ok || !strings.ContainsFunc(user, func(r rune) bool { return r >= 0x80 || escaped(byte(r)) }) {
		return channel
	}
	const hex = "0123456789ABCDEF"
	b := append(make([]byte, 0, len(channel)+16), UserPrefix...)
	for i := range len(user) {
		if c := user[i]; escaped(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func escaped(c byte) bool { return c <= ' ' || c >= 0x7f || c == '%' || c == ':' }

// ChannelOf is the reverse of Topic.
func ChannelOf(topic string) string {
	user, ok := UserOf(topic)
	if !ok || strings.IndexByte(user, '%') < 0 {
		return topic
	}
	b := append(make([]byte, 0, len(topic)), UserPrefix...)
	for i := 0; i < len(user); i++ {
		if c := user[i]; c == '%' && i+2 < len(user) {
			hi, lo := unhex(user[i+1]), unhex(user[i+2])
			if hi < 16 && lo < 16 {
				b = append(b, hi<<4|lo)
				i += 2
				continue
			}
		}
		b = append(b, user[i])
	}
	return string(b)
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}

// CheckSocketID reports what is wrong with a socket id: two runs of digits with a dot
// between them.
func CheckSocketID(id string) error {
	a, b, ok := strings.Cut(id, ".")
	if !ok || !digits(a) || !digits(b) {
		return fmt.Errorf("socket_id %.60q is not of the form 123.456", id)
	}
	return nil
}

func digits(s string) bool {
	if s == "" || len(s) > 20 {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// IsClientEvent reports whether a client may give an event this name.
func IsClientEvent(event string) bool { return strings.HasPrefix(event, "client-") }

// CheckEvent reports what is wrong with the name of an event that a server triggers.
func CheckEvent(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("event name is empty")
	case len(name) > MaxEvent:
		return fmt.Errorf("event name %.40q… has %d bytes, at most %d are allowed", name, len(name), MaxEvent)
	case strings.HasPrefix(name, "pusher:"), strings.HasPrefix(name, "pusher_internal:"):
		return fmt.Errorf("event name %.60q is reserved: names beginning with pusher: and pusher_internal: are the protocol's", name)
	case strings.ContainsAny(name, "\r\n\x00"):
		return fmt.Errorf("event name %.60q has a line end or NUL in it", name)
	}
	return nil
}
