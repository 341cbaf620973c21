package protocol

import (
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A Result is what a reply says when there is no error. It is always sent, also when
// all of it is zero: SDKs look for it.
type Result interface {
	// kind is the request that it answers.
	kind() Kind
	appendJSON(dst []byte) []byte
	appendProto(dst []byte) []byte
}

// AppendReply appends the reply to the command id.
func AppendReply(dst []byte, e Encoding, id uint32, r Result) []byte {
	if e == JSON {
		dst = append(dst, '{')
		if id != 0 {
			dst = append(dst, `"id":`...)
			dst = strconv.AppendUint(dst, uint64(id), 10)
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(dst, r.kind().String()...)
		dst = append(dst, '"', ':')
		return append(r.appendJSON(dst), '}')
	}
	return appendSized(dst, func(dst []byte) []byte {
		dst = appendUint(dst, 1, uint64(id))
		return appendMessage(dst, resultField(r.kind()), r.appendProto)
	})
}

// resultField is the number of a result's field: that of a push precedes them, and there
// is none for send.
func resultField(k Kind) int {
	n := firstKind + int(k-Connect)
	if k < Send {
		n++
	}
	return n
}

// AppendError appends the reply to the command id that it failed.
func AppendError(dst []byte, e Encoding, id uint32, err Error) []byte {
	if e == JSON {
		w := objectOf(dst)
		w.uint("id", uint64(id))
		w.sub("error", err.appendJSON)
		return w.end()
	}
	return appendSized(dst, func(dst []byte) []byte {
		dst = appendUint(dst, 1, uint64(id))
		return appendMessage(dst, 2, err.appendProto)
	})
}

func (err Error) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.uint("code", uint64(err.Code))
	w.str("message", err.Message)
	w.boolean("temporary", err.Temporary)
	return w.end()
}

func (err Error) appendProto(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(err.Code))
	dst = appendText(dst, 2, err.Message)
	return appendBool(dst, 3, err.Temporary)
}

// Empty is the reply that is a ping.
func Empty(e Encoding) []byte {
	if e == JSON {
		return []byte("{}")
	}
	return []byte{0}
}

// A ConnectResult answers a connect, and is the push of that name.
type ConnectResult struct {
	Client  string
	Version string
	Expires bool
	TTL     uint32 // seconds
	Data    []byte
	Subs    map[string]*SubscribeResult
	Ping    uint32 // seconds; 0 means that there are no pings
	Pong    bool
	Session string
	Node    string
	Time    int64 // Unix milliseconds
}

func (r *ConnectResult) kind() Kind { return Connect }

func (r *ConnectResult) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.str("client", r.Client)
	w.str("version", r.Version)
	w.boolean("expires", r.Expires)
	w.uint("ttl", uint64(r.TTL))
	w.raw("data", r.Data)
	if len(r.Subs) > 0 {
		w.sub("subs", func(dst []byte) []byte {
			w := objectOf(dst)
			for _, ch := range slices.Sorted(maps.Keys(r.Subs)) {
				w.sub(ch, r.Subs[ch].appendJSON)
			}
			return w.end()
		})
	}
	w.uint("ping", uint64(r.Ping))
	w.boolean("pong", r.Pong)
	w.str("session", r.Session)
	w.str("node", r.Node)
	w.int("time", r.Time)
	return w.end()
}

func (r *ConnectResult) appendProto(dst []byte) []byte {
	dst = appendText(dst, 1, r.Client)
	dst = appendText(dst, 2, r.Version)
	return r.appendRest(dst, 5, 6, 3, 4)
}

// appendRest appends what has other numbers in the push of the same name.
func (r *ConnectResult) appendRest(dst []byte, data, subs, expires, ttl int) []byte {
	dst = appendBool(dst, expires, r.Expires)
	dst = appendUint(dst, ttl, uint64(r.TTL))
	dst = appendText(dst, data, r.Data)
	for _, ch := range slices.Sorted(maps.Keys(r.Subs)) {
		dst = appendMessage(dst, subs, func(dst []byte) []byte {
			return appendMessage(appendText(dst, 1, ch), 2, r.Subs[ch].appendProto)
		})
	}
	dst = appendUint(dst, 7, uint64(r.Ping))
	dst = appendBool(dst, 8, r.Pong)
	dst = appendText(dst, 9, r.Session)
	dst = appendText(dst, 10, r.Node)
	return appendUint(dst, 11, uint64(r.Time))
}

// A SubscribeResult answers a subscribe.
type SubscribeResult struct {
	Expires       bool
	TTL           uint32
	Recoverable   bool
	Epoch         string
	Publications  []*Publication
	Recovered     bool
	Offset        uint64
	Positioned    bool
	Data          []byte
	WasRecovering bool
	Delta         bool
}

func (r *SubscribeResult) kind() Kind { return Subscribe }

func (r *SubscribeResult) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.boolean("expires", r.Expires)
	w.uint("ttl", uint64(r.TTL))
	w.boolean("recoverable", r.Recoverable)
	w.str("epoch", r.Epoch)
	if len(r.Publications) > 0 {
		w.sub("publications", func(dst []byte) []byte { return appendPublications(dst, r.Publications) })
	}
	w.boolean("recovered", r.Recovered)
	w.uint("offset", r.Offset)
	w.boolean("positioned", r.Positioned)
	w.raw("data", r.Data)
	w.boolean("was_recovering", r.WasRecovering)
	w.boolean("delta", r.Delta)
	return w.end()
}

func appendPublications(dst []byte, list []*Publication) []byte {
	dst = append(dst, '[')
	for i, p := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = p.appendJSON(dst)
	}
	return append(dst, ']')
}

func (r *SubscribeResult) appendProto(dst []byte) []byte {
	dst = appendBool(dst, 1, r.Expires)
	dst = appendUint(dst, 2, uint64(r.TTL))
	dst = appendBool(dst, 3, r.Recoverable)
	dst = appendText(dst, 6, r.Epoch)
	for _, p := range r.Publications {
		dst = appendMessage(dst, 7, p.appendProto)
	}
	dst = appendBool(dst, 8, r.Recovered)
	dst = appendUint(dst, 9, r.Offset)
	dst = appendBool(dst, 10, r.Positioned)
	dst = appendText(dst, 11, r.Data)
	dst = appendBool(dst, 12, r.WasRecovering)
	return appendBool(dst, 13, r.Delta)
}

// An EmptyResult answers an Unsubscribe or a Publish, for which there is no more to
// say than that it was done.
type EmptyResult struct{ Kind Kind }

func (r EmptyResult) kind() Kind                    { return r.Kind }
func (r EmptyResult) appendJSON(dst []byte) []byte  { return append(dst, '{', '}') }
func (r EmptyResult) appendProto(dst []byte) []byte { return dst }

// A PresenceResult answers a presence: clients by their ids.
type PresenceResult struct{ Presence map[string]*ClientInfo }

func (r *PresenceResult) kind() Kind { return Presence }

func (r *PresenceResult) appendJSON(dst []byte) []byte { return r.AppendBody(dst) }

// AppendBody appends the result as JSON.
func (r *PresenceResult) AppendBody(dst []byte) []byte {
	w := objectOf(dst)
	w.sub("presence", func(dst []byte) []byte {
		w := objectOf(dst)
		for _, id := range slices.Sorted(maps.Keys(r.Presence)) {
			w.sub(id, r.Presence[id].appendJSON)
		}
		return w.end()
	})
	return w.end()
}

func (r *PresenceResult) appendProto(dst []byte) []byte {
	for _, id := range slices.Sorted(maps.Keys(r.Presence)) {
		dst = appendMessage(dst, 1, func(dst []byte) []byte {
			return appendMessage(appendText(dst, 1, id), 2, r.Presence[id].appendProto)
		})
	}
	return dst
}

// A PresenceStatsResult answers a presence_stats.
type PresenceStatsResult struct{ Clients, Users uint32 }

func (r *PresenceStatsResult) kind() Kind { return PresenceStats }

func (r *PresenceStatsResult) appendJSON(dst []byte) []byte { return r.AppendBody(dst) }

// AppendBody appends the result as JSON.
func (r *PresenceStatsResult) AppendBody(dst []byte) []byte {
	dst = append(dst, `{"num_clients":`...)
	dst = strconv.AppendUint(dst, uint64(r.Clients), 10)
	dst = append(dst, `,"num_users":`...)
	dst = strconv.AppendUint(dst, uint64(r.Users), 10)
	return append(dst, '}')
}

func (r *PresenceStatsResult) appendProto(dst []byte) []byte {
	return appendUint(appendUint(dst, 1, uint64(r.Clients)), 2, uint64(r.Users))
}

// A HistoryResult answers a history.
type HistoryResult struct {
	Publications []*Publication
	Position     Position
}

func (r *HistoryResult) kind() Kind { return History }

func (r *HistoryResult) appendJSON(dst []byte) []byte { return r.AppendBody(dst) }

// AppendBody appends the result as JSON. All of it is there even if it is zero: SDKs
// walk it without looking.
func (r *HistoryResult) AppendBody(dst []byte) []byte {
	dst = append(dst, `{"publications":`...)
	dst = appendPublications(dst, r.Publications)
	dst = append(dst, `,"epoch":`...)
	dst = appendString(dst, r.Position.Epoch)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendUint(dst, r.Position.Offset, 10)
	return append(dst, '}')
}

func (r *HistoryResult) appendProto(dst []byte) []byte {
	for _, p := range r.Publications {
		dst = appendMessage(dst, 1, p.appendProto)
	}
	dst = appendText(dst, 2, r.Position.Epoch)
	return appendUint(dst, 3, r.Position.Offset)
}

// An RPCResult answers an rpc.
type RPCResult struct{ Data []byte }

func (r *RPCResult) kind() Kind { return RPC }

func (r *RPCResult) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.raw("data", r.Data)
	return w.end()
}

func (r *RPCResult) appendProto(dst []byte) []byte { return appendText(dst, 1, r.Data) }

// A RefreshResult answers a refresh, and is the push of that name.
type RefreshResult struct {
	Expires bool
	TTL     uint32
}

func (r *RefreshResult) kind() Kind { return Refresh }

func (r *RefreshResult) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.boolean("expires", r.Expires)
	w.uint("ttl", uint64(r.TTL))
	return w.end()
}

func (r *RefreshResult) appendProto(dst []byte) []byte {
	dst = appendBool(dst, 3, r.Expires)
	return appendUint(dst, 4, uint64(r.TTL))
}

// A SubRefreshResult answers a sub_refresh.
type SubRefreshResult struct {
	Expires bool
	TTL     uint32
}

func (r *SubRefreshResult) kind() Kind { return SubRefresh }

func (r *SubRefreshResult) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.boolean("expires", r.Expires)
	w.uint("ttl", uint64(r.TTL))
	return w.end()
}

func (r *SubRefreshResult) appendProto(dst []byte) []byte {
	return appendUint(appendBool(dst, 1, r.Expires), 2, uint64(r.TTL))
}

// object writes a JSON object field by field and leaves out what is zero.
type object struct {
	b    []byte
	some bool
}

func objectOf(dst []byte) object { return object{b: append(dst, '{')} }

func (w *object) end() []byte { return append(w.b, '}') }

func (w *object) name(n string) {
	if w.some {
		w.b = append(w.b, ',')
	}
	w.some = true
	w.b = appendString(w.b, n)
	w.b = append(w.b, ':')
}

func (w *object) str(n, v string) {
	if v != "" {
		w.name(n)
		w.b = appendString(w.b, v)
	}
}

func (w *object) uint(n string, v uint64) {
	if v != 0 {
		w.name(n)
		w.b = strconv.AppendUint(w.b, v, 10)
	}
}

func (w *object) int(n string, v int64) {
	if v != 0 {
		w.name(n)
		w.b = strconv.AppendInt(w.b, v, 10)
	}
}

func (w *object) boolean(n string, v bool) {
	if v {
		w.name(n)
		w.b = append(w.b, "true"...)
	}
}

func (w *object) raw(n string, v []byte) {
	if len(v) > 0 {
		w.name(n)
		w.b = AppendRaw(w.b, v)
	}
}

func (w *object) sub(n string, body func([]byte) []byte) {
	w.name(n)
	w.b = body(w.b)
}

// AppendRaw appends a JSON text without its line breaks, which can only be space
// and would end the line.
func AppendRaw(dst, text []byte) []byte {
	from := 0
	for i, c := range text {
		if c == '\n' || c == '\r' {
			dst = append(dst, text[from:i]...)
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte { return appendString(dst, s) }

const hexDigits = "0123456789abcdef"

func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		dst = append(dst, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, "\ufffd"...)
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
