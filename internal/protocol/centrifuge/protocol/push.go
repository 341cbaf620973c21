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
func (i *ClientInfo) AppendInfo(dst []byte) []byte { return appendObject(dst, JSON, i.fields) }

// fields writes user and client always: SDKs read them without looking.
func (i *ClientInfo) fields(w writer) writer {
	return w.always("user", 1, i.User).always("client", 2, i.Client).data("conn_info", 3, i.Conn).data("chan_info", 4, i.Chan)
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
	// Delta reports that Data makes the payload out of the one before.
	Delta bool
	Time  int64 // Unix milliseconds; 0 is left out
	Key   string
}

func (p *Publication) fields(w writer) writer {
	if p.Text {
		w = w.text("data", 4, p.Data)
	} else {
		w = w.data("data", 4, p.Data)
	}
	if p.Info != nil {
		w = w.message("info", 5, p.Info.fields)
	}
	w = w.uint("offset", 6, p.Offset)
	if len(p.Tags) > 0 {
		w = w.entries("tags", 7, slices.Sorted(maps.Keys(p.Tags)), func(w writer, name, k string) writer { return w.always(name, 2, p.Tags[k]) })
	}
	return w.boolean("delta", 8, p.Delta).int("time", 9, p.Time).str("key", 11, p.Key)
}

// Size is at least what p takes in a list, in either encoding.
func (p *Publication) Size() int {
	rest := *p
	rest.Data = nil
	n := len(p.Data)
	if p.Text {
		n = 6*n + 2 // if all of it must be escaped
	}
	return n + len(appendObject(nil, JSON, rest.fields)) + 16
}

// A PushBody is what a push says.
type PushBody interface {
	// push is its field: name and number.
	push() (string, int)
	fields(w writer) writer
}

// AppendPush appends the push of body on channel, "" for none. A bare push is one of
// the unidirectional transports, which has no reply around it.
func AppendPush(dst []byte, e Encoding, bare bool, channel string, body PushBody) []byte {
	name, num := body.push()
	push := func(w writer) writer { return w.str("channel", 2, channel).message(name, num, body.fields) }
	if bare {
		return appendObject(dst, e, push)
	}
	return appendObject(dst, e, func(w writer) writer { return w.message("push", 4, push) })
}

func (p *Publication) push() (string, int) { return "pub", 4 }

// Join reports that a client has come.
type Join struct{ Info *ClientInfo }

// Leave reports that a client has gone.
type Leave struct{ Info *ClientInfo }

func (j *Join) push() (string, int)     { return "join", 5 }
func (j *Join) fields(w writer) writer  { return w.message("info", 1, j.Info.fields) }
func (l *Leave) push() (string, int)    { return "leave", 6 }
func (l *Leave) fields(w writer) writer { return w.message("info", 1, l.Info.fields) }

// push of an Unsubscription says that the server has ended a subscription.
func (u Unsubscription) push() (string, int) { return "unsubscribe", 7 }

func (u Unsubscription) fields(w writer) writer {
	return w.uint("code", 2, uint64(u.Code)).str("reason", 3, u.Reason)
}

// A Message is data for the client alone.
type Message struct{ Data []byte }

func (m *Message) push() (string, int)    { return "message", 8 }
func (m *Message) fields(w writer) writer { return w.data("data", 1, m.Data) }

// A Subscription reports that the server has subscribed the client.
type Subscription struct {
	Recoverable bool
	Epoch       string
	Offset      uint64
	Positioned  bool
	Data        []byte
}

func (s *Subscription) push() (string, int) { return "subscribe", 9 }

func (s *Subscription) fields(w writer) writer {
	w = w.boolean("recoverable", 1, s.Recoverable).str("epoch", 4, s.Epoch).uint("offset", 5, s.Offset)
	return w.boolean("positioned", 6, s.Positioned).data("data", 7, s.Data)
}

// connectPush is a ConnectResult as a push.
type connectPush struct{ *ConnectResult }

// Push returns r as the push that starts a unidirectional connection.
func (r *ConnectResult) Push() PushBody { return connectPush{r} }

func (c connectPush) push() (string, int)    { return "connect", 10 }
func (c connectPush) fields(w writer) writer { return c.numbered(w, 5, 6, 3, 4) }

// push of a Disconnection says why the connection ends, where there is no close frame.
func (d Disconnection) push() (string, int) { return "disconnect", 11 }

func (d Disconnection) fields(w writer) writer {
	return w.uint("code", 1, uint64(d.Code)).str("reason", 2, d.Reason).boolean("reconnect", 3, d.Reconnects())
}

// refreshPush is a RefreshResult as a push.
type refreshPush struct{ *RefreshResult }

// Push returns r as the push that notifies a unidirectional client of its new expiry.
func (r *RefreshResult) Push() PushBody { return refreshPush{r} }

func (r refreshPush) push() (string, int) { return "refresh", 12 }

func (r refreshPush) fields(w writer) writer {
	return w.boolean("expires", 1, r.Expires).uint("ttl", 2, uint64(r.TTL))
}
