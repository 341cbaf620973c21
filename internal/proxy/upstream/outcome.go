package upstream

// A Kind is how an attempt at a peer ended.
type Kind uint8

const (
	// OK: the reply came whole; its status is evaluated apart.
	OK Kind = iota
	// ConnectError: no connection; nothing was sent.
	ConnectError
	// Reset: the connection broke, or what came was no HTTP.
	Reset
	// Timeout of the peer: of connecting, of taking the request, of the first byte
	// or within the reply.
	Timeout
	// Canceled: the client left, or a hedge lost. It says nothing of the peer.
	Canceled
	// Stale: a pooled connection was closed by the peer before any byte of a reply.
	// That is a race both may lose, and says nothing of the peer.
	Stale
	// Refused: the peer said that it has not processed the request (REFUSED_STREAM, or a
	// GOAWAY of HTTP/2), so that any may be sent again.
	Refused
	kinds
)

// An Outcome is the argument of Done. Times are 0 where there is none.
type Outcome struct {
	Kind   Kind
	Status int // 0: no head came
	// Start is the now that Pick was given. Outcomes that started before a peer's
	// state last changed do not change it again.
	Start     int64
	FirstByte int64 // when the head of the reply came
	End       int64
	Bytes     int64 // of the reply's body
	// Headed reports that Head was called for this attempt, so that its verdict is
	// not counted again.
	Headed bool
	// Split and Arm are from Choice, for the canary's sample. nil: none.
	Split *Split
	Arm   int
}

// Tried remembers the peers a request was sent to, so that a retry goes elsewhere.
// Its zero value is empty; it is part of the exchange's struct. More than eight
// peers are not remembered.
type Tried struct {
	// Strict: rather no peer than one of these again, as for a hedge.
	Strict bool

	peers [8]*Peer
	n     int
}

// Len is how many attempts were made. A nil t has none.
func (t *Tried) Len() int {
	if t == nil {
		return 0
	}
	return t.n
}

// Add remembers p; Pick has done it already.
func (t *Tried) Add(p *Peer) {
	if t.n < len(t.peers) {
		t.peers[t.n] = p
	}
	t.n++
}

// Has reports whether p is remembered. A nil t remembers nothing.
func (t *Tried) Has(p *Peer) bool {
	if t == nil {
		return false
	}
	for _, q := range t.peers[:min(t.n, len(t.peers))] {
		if q == p {
			return true
		}
	}
	return false
}

// Reset forgets all and is not Strict, for the next request of the same struct.
func (t *Tried) Reset() { *t = Tried{} }
