package protocol

import (
	"maps"
	"slices"
)

// ClientInfo describes a client.
type ClientInfo struct {
	User, Client string
	// Conn and Chan are JSON, or with Protobuf whatever the backend said; nil for none.
	Conn, Chan []byte
}

// AppendInfo appends i as JSON.
func (i *ClientInfo) AppendInfo(dst []byte) []byte { return i.appendJSON(dst) }

// appendJSON writes user and client always: SDKs read them without looking.
func (i *ClientInfo) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"user":`...)
	dst = appendString(dst, i.User)
	dst = append(dst, `,"client":`...)
	dst = appendString(dst, i.Client)
	if len(i.Conn) > 0 {
		dst = AppendRaw(append(dst, `,"conn_info":`...), i.Conn)
	}
	if len(i.Chan) > 0 {
		dst = AppendRaw(append(dst, `,"chan_info":`...), i.Chan)
	}
	return append(dst, '}')
}

func (i *ClientInfo) appendProto(dst []byte) []byte {
	dst = appendText(dst, 1, i.User)
	dst = appendText(dst, 2, i.Client)
	dst = appendText(dst, 3, i.Conn)
	return appendText(dst, 4, i.Chan)
}

// ParseInfo reads what AppendInfo wrote. Other JSON, the info of a publisher of
// another protocol, is none: it returns nil.
func ParseInfo(b []byte) *ClientInfo {
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	i := &ClientInfo{}
	s := scanner{jsonScanner{b: b}}
	seen := 0
	err := s.object(func(name []byte) error {
		switch string(name) {
		case "user":
			seen |= 1
			return s.str(&i.User)
		case "client":
			seen |= 2
			return s.str(&i.Client)
		case "conn_info":
			return s.data(&i.Conn)
		case "chan_info":
			return s.data(&i.Chan)
		}
		return s.skip()
	})
	if s.peek(); err != nil || seen != 3 || s.i != len(b) {
		return nil
	}
	return i
}

// A Publication is a message on a channel.
type Publication struct {
	// Data is JSON, or with Text any text that JSON has as a string. Protobuf carries
	// the bytes as they are.
	Data   []byte
	Text   bool
	Info   *ClientInfo
	Offset uint64
	Tags   map[string]string
	// Delta says that Data makes the payload out of the one before.
	Delta bool
	Time  int64 // Unix milliseconds; 0 is left out
	Key   string
}

func (p *Publication) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	switch {
	case p.Text:
		w.name("data")
		w.b = appendString(w.b, p.Data)
	default:
		w.raw("data", p.Data)
	}
	if p.Info != nil {
		w.sub("info", p.Info.appendJSON)
	}
	w.uint("offset", p.Offset)
	if len(p.Tags) > 0 {
		w.sub("tags", func(dst []byte) []byte {
			w := objectOf(dst)
			for _, k := range slices.Sorted(maps.Keys(p.Tags)) {
				w.name(k)
				w.b = appendString(w.b, p.Tags[k])
			}
			return w.end()
		})
	}
	w.boolean("delta", p.Delta)
	w.int("time", p.Time)
	w.str("key", p.Key)
	return w.end()
}

// Size is at least what p takes in a list, in either encoding.
func (p *Publication) Size() int {
	rest := *p
	rest.Data = nil
	n := len(p.Data)
	if p.Text {
		n = 6*n + 2 // if all of it must be escaped
	}
	return n + len(rest.appendJSON(nil)) + 16
}

func (p *Publication) appendProto(dst []byte) []byte {
	dst = appendText(dst, 4, p.Data)
	if p.Info != nil {
		dst = appendMessage(dst, 5, p.Info.appendProto)
	}
	dst = appendUint(dst, 6, p.Offset)
	for _, k := range slices.Sorted(maps.Keys(p.Tags)) {
		dst = appendMessage(dst, 7, func(dst []byte) []byte {
			return appendText(appendText(dst, 1, k), 2, p.Tags[k])
		})
	}
	dst = appendBool(dst, 8, p.Delta)
	dst = appendUint(dst, 9, uint64(p.Time))
	return appendText(dst, 11, p.Key)
}

// A PushBody is what a push says.
type PushBody interface {
	// push is its field: name and number.
	push() (string, int)
	appendJSON(dst []byte) []byte
	appendProto(dst []byte) []byte
}

// AppendPush appends the push of body on channel, "" for none. A bare push is one of
// the unidirectional transports, which has no reply around it.
func AppendPush(dst []byte, e Encoding, bare bool, channel string, body PushBody) []byte {
	name, num := body.push()
	if e == JSON {
		if !bare {
			dst = append(dst, `{"push":`...)
		}
		w := objectOf(dst)
		w.str("channel", channel)
		w.sub(name, body.appendJSON)
		dst = w.end()
		if !bare {
			dst = append(dst, '}')
		}
		return dst
	}
	push := func(dst []byte) []byte {
		return appendMessage(appendText(dst, 2, channel), num, body.appendProto)
	}
	if bare {
		return appendSized(dst, push)
	}
	return appendSized(dst, func(dst []byte) []byte { return appendMessage(dst, 4, push) })
}

func (p *Publication) push() (string, int) { return "pub", 4 }

// Join says that a client has come.
type Join struct{ Info *ClientInfo }

// Leave says that a client has gone.
type Leave struct{ Info *ClientInfo }

func (j *Join) push() (string, int)            { return "join", 5 }
func (j *Join) appendJSON(dst []byte) []byte   { return appendInfoOf(dst, j.Info) }
func (j *Join) appendProto(dst []byte) []byte  { return appendMessage(dst, 1, j.Info.appendProto) }
func (l *Leave) push() (string, int)           { return "leave", 6 }
func (l *Leave) appendJSON(dst []byte) []byte  { return appendInfoOf(dst, l.Info) }
func (l *Leave) appendProto(dst []byte) []byte { return appendMessage(dst, 1, l.Info.appendProto) }

func appendInfoOf(dst []byte, i *ClientInfo) []byte {
	return append(i.appendJSON(append(dst, `{"info":`...)), '}')
}

// push of an Unsubscription says that the server has ended a subscription.
func (u Unsubscription) push() (string, int) { return "unsubscribe", 7 }

func (u Unsubscription) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.uint("code", uint64(u.Code))
	w.str("reason", u.Reason)
	return w.end()
}

func (u Unsubscription) appendProto(dst []byte) []byte {
	return appendText(appendUint(dst, 2, uint64(u.Code)), 3, u.Reason)
}

// A Message is data for the client alone.
type Message struct{ Data []byte }

func (m *Message) push() (string, int) { return "message", 8 }

func (m *Message) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.raw("data", m.Data)
	return w.end()
}

func (m *Message) appendProto(dst []byte) []byte { return appendText(dst, 1, m.Data) }

// A Subscription says that the server has subscribed the client.
type Subscription struct {
	Recoverable bool
	Epoch       string
	Offset      uint64
	Positioned  bool
	Data        []byte
}

func (s *Subscription) push() (string, int) { return "subscribe", 9 }

func (s *Subscription) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.boolean("recoverable", s.Recoverable)
	w.str("epoch", s.Epoch)
	w.uint("offset", s.Offset)
	w.boolean("positioned", s.Positioned)
	w.raw("data", s.Data)
	return w.end()
}

func (s *Subscription) appendProto(dst []byte) []byte {
	dst = appendBool(dst, 1, s.Recoverable)
	dst = appendText(dst, 4, s.Epoch)
	dst = appendUint(dst, 5, s.Offset)
	dst = appendBool(dst, 6, s.Positioned)
	return appendText(dst, 7, s.Data)
}

// connectPush is a ConnectResult as a push.
type connectPush struct{ *ConnectResult }

// Push returns r as the push that begins a unidirectional connection.
func (r *ConnectResult) Push() PushBody { return connectPush{r} }

func (c connectPush) push() (string, int) { return "connect", 10 }

func (c connectPush) appendProto(dst []byte) []byte {
	dst = appendText(dst, 1, c.Client)
	dst = appendText(dst, 2, c.Version)
	return c.appendRest(dst, 3, 4, 5, 6)
}

// push of a Disconnection says why the connection ends, where there is no close frame.
func (d Disconnection) push() (string, int) { return "disconnect", 11 }

func (d Disconnection) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.uint("code", uint64(d.Code))
	w.str("reason", d.Reason)
	w.boolean("reconnect", d.Reconnects())
	return w.end()
}

func (d Disconnection) appendProto(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(d.Code))
	dst = appendText(dst, 2, d.Reason)
	return appendBool(dst, 3, d.Reconnects())
}

// refreshPush is a RefreshResult as a push.
type refreshPush struct{ *RefreshResult }

// Push returns r as the push that notifies a unidirectional client of its new expiry.
func (r *RefreshResult) Push() PushBody { return refreshPush{r} }

func (r refreshPush) push() (string, int) { return "refresh", 12 }

func (r refreshPush) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.boolean("expires", r.Expires)
	w.uint("ttl", uint64(r.TTL))
	return w.end()
}

func (r refreshPush) appendProto(dst []byte) []byte {
	return appendUint(appendBool(dst, 1, r.Expires), 2, uint64(r.TTL))
}
