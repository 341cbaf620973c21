package protocol

import (
	"maps"
	"slices"
)

// A Result is what a reply says when there is no error. It is always sent, also when
// all of it is zero: SDKs look for it.
type Result interface {
	// kind is the request that it answers.
	kind() Kind
	fields(w writer) writer
}

// AppendReply appends the reply to the command id.
func AppendReply(dst []byte, e Encoding, id uint32, r Result) []byte {
	return appendObject(dst, e, func(w writer) writer {
		return w.uint("id", 1, uint64(id)).message(r.kind().String(), resultField(r.kind()), r.fields)
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
	return appendObject(dst, e, func(w writer) writer {
		return w.uint("id", 1, uint64(id)).message("error", 2, err.fields)
	})
}

func (err Error) fields(w writer) writer {
	return w.uint("code", 1, uint64(err.Code)).str("message", 2, err.Message).boolean("temporary", 3, err.Temporary)
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

func (r *ConnectResult) fields(w writer) writer { return r.numbered(w, 3, 4, 5, 6) }

// numbered writes the fields, of which some have other numbers in the push of the same name.
func (r *ConnectResult) numbered(w writer, expires, ttl, data, subs int) writer {
	w = w.str("client", 1, r.Client).str("version", 2, r.Version)
	w = w.boolean("expires", expires, r.Expires).uint("ttl", ttl, uint64(r.TTL)).data("data", data, r.Data)
	if len(r.Subs) > 0 {
		w = w.entries("subs", subs, slices.Sorted(maps.Keys(r.Subs)), func(w writer, name, channel string) writer {
			return w.message(name, 2, r.Subs[channel].fields)
		})
	}
	w = w.uint("ping", 7, uint64(r.Ping)).boolean("pong", 8, r.Pong)
	return w.str("session", 9, r.Session).str("node", 10, r.Node).int("time", 11, r.Time)
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

func (r *SubscribeResult) fields(w writer) writer {
	w = w.boolean("expires", 1, r.Expires).uint("ttl", 2, uint64(r.TTL)).boolean("recoverable", 3, r.Recoverable).str("epoch", 6, r.Epoch)
	if len(r.Publications) > 0 {
		w = w.publications("publications", 7, r.Publications)
	}
	w = w.boolean("recovered", 8, r.Recovered).uint("offset", 9, r.Offset).boolean("positioned", 10, r.Positioned)
	return w.data("data", 11, r.Data).boolean("was_recovering", 12, r.WasRecovering).boolean("delta", 13, r.Delta)
}

func (w writer) publications(name string, num int, list []*Publication) writer {
	return w.list(name, num, len(list), func(w writer, i int) writer { return w.object(list[i].fields) })
}

// An EmptyResult answers an Unsubscribe or a Publish, for which there is no more to
// say than that it was done.
type EmptyResult struct{ Kind Kind }

func (r EmptyResult) kind() Kind             { return r.Kind }
func (r EmptyResult) fields(w writer) writer { return w }

// A PresenceResult answers a presence: clients by their ids.
type PresenceResult struct{ Presence map[string]*ClientInfo }

func (r *PresenceResult) kind() Kind { return Presence }

// AppendBody appends the result as JSON.
func (r *PresenceResult) AppendBody(dst []byte) []byte { return appendObject(dst, JSON, r.fields) }

func (r *PresenceResult) fields(w writer) writer {
	return w.entries("presence", 1, slices.Sorted(maps.Keys(r.Presence)), func(w writer, name, id string) writer {
		return w.message(name, 2, r.Presence[id].fields)
	})
}

// A PresenceStatsResult answers a presence_stats.
type PresenceStatsResult struct{ Clients, Users uint32 }

func (r *PresenceStatsResult) kind() Kind { return PresenceStats }

// AppendBody appends the result as JSON.
func (r *PresenceStatsResult) AppendBody(dst []byte) []byte { return appendObject(dst, JSON, r.fields) }

func (r *PresenceStatsResult) fields(w writer) writer {
	return w.alwaysUint("num_clients", 1, uint64(r.Clients)).alwaysUint("num_users", 2, uint64(r.Users))
}

// A HistoryResult answers a history.
type HistoryResult struct {
	Publications []*Publication
	Position     Position
}

func (r *HistoryResult) kind() Kind { return History }

// AppendBody appends the result as JSON.
func (r *HistoryResult) AppendBody(dst []byte) []byte { return appendObject(dst, JSON, r.fields) }

// fields writes all of it in JSON even if it is zero: SDKs walk it without looking.
func (r *HistoryResult) fields(w writer) writer {
	w = w.publications("publications", 1, r.Publications)
	return w.always("epoch", 2, r.Position.Epoch).alwaysUint("offset", 3, r.Position.Offset)
}

// An RPCResult answers an rpc.
type RPCResult struct{ Data []byte }

func (r *RPCResult) kind() Kind             { return RPC }
func (r *RPCResult) fields(w writer) writer { return w.data("data", 1, r.Data) }

// A RefreshResult answers a refresh, and is the push of that name.
type RefreshResult struct {
	Expires bool
	TTL     uint32
}

func (r *RefreshResult) kind() Kind { return Refresh }

func (r *RefreshResult) fields(w writer) writer {
	return w.boolean("expires", 3, r.Expires).uint("ttl", 4, uint64(r.TTL))
}

// A SubRefreshResult answers a sub_refresh.
type SubRefreshResult struct {
	Expires bool
	TTL     uint32
}

func (r *SubRefreshResult) kind() Kind { return SubRefresh }

func (r *SubRefreshResult) fields(w writer) writer {
	return w.boolean("expires", 1, r.Expires).uint("ttl", 2, uint64(r.TTL))
}
