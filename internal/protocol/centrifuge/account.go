package centrifuge

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
)

// An account is who a client is. Those without a user that nothing was said about
// share one.
type account struct {
	kind *kind
	user string
	// info is for other clients, meta for proxies; JSON, nil for none.
	info, meta []byte
	// expires is when the client must have refreshed; zero means never. byProxy says
	// that the refresh proxy is asked then.
	expires time.Time
	byProxy bool
	// subscribe and publish are Weir's own grants; nil without a weir claim.
	subscribe, publish *auth.Patterns
	// proof is what the client's token holds by; zero without one.
	proof auth.Proof
	// token distinguishes it; nil if it has neither jti nor iat.
	token *auth.TokenID
	// moved are the ids of a client that comes from another process; nil otherwise.
	moved *movedIDs
	// extras is what most clients do not have; nil then.
	extras *sessionExtras
}

// isAnonymous reports whether nothing was said about the client.
func (a *account) isAnonymous() bool {
	return a.user == "" && a.info == nil && a.meta == nil && a.expires.IsZero() && !a.byProxy &&
		a.subscribe == nil && a.publish == nil && a.proof == (auth.Proof{}) && a.token == nil && a.moved == nil && a.extras == nil
}

// mayChange returns the account of s, of its own.
func (s *session) mayChange() *account {
	if s.account == s.account.kind.anonymous {
		a := *s.account
		s.account = &a
	}
	return s.account
}

// ttl is how many seconds are left until at, at least one and at most a year, as with
// Centrifugo: timers of SDKs bear no more.
func (s *Server) ttl(at time.Time) uint32 {
	return uint32(min(max(at.Sub(s.now())/time.Second, 1), 365*24*3600))
}

// The ids of clients and sessions are made of the transport's number by a secret
// permutation: no client can guess one, nothing has to be stored, and the way back is
// known here.
type names struct {
	node            [8]byte
	client, session cipher.Block
}

func newNames() (*names, error) {
	var random [40]byte
	rand.Read(random[:])
	n := &names{node: [8]byte(random[:8])}
	var err error
	if n.client, err = aes.NewCipher(random[8:24]); err != nil {
		return nil, err
	}
	n.session, err = aes.NewCipher(random[24:])
	return n, err
}

func (n *names) make(b cipher.Block, number uint64) (id [16]byte) {
	var plain [16]byte
	binary.BigEndian.PutUint64(plain[:8], number)
	copy(plain[8:], n.node[:])
	b.Encrypt(id[:], plain[:])
	return id
}

// clientID is the id that others see, in the form of a UUID.
func (s *session) clientID() string {
	if m := s.account.moved; m != nil {
		return uuid(m.client)
	}
	n := s.srv().names
	return uuid(n.make(n.client, s.t.ID()))
}

// sessionID is the id that only the client knows: commands are sent in its name.
func (s *session) sessionID() string {
	if m := s.account.moved; m != nil {
		return uuid(m.session)
	}
	n := s.srv().names
	return uuid(n.make(n.session, s.t.ID()))
}

// number is the way back: the number of the transport that id was made of, if it was
// made here.
func (n *names) number(b cipher.Block, id string) (uint64, bool) {
	raw, ok := parseUUID(id)
	if !ok {
		return 0, false
	}
	var plain [16]byte
	b.Decrypt(plain[:], raw[:])
	return binary.BigEndian.Uint64(plain[:8]), [8]byte(plain[8:]) == n.node
}

// parseUUID is uuid's way back.
func parseUUID(id string) (raw [16]byte, ok bool) {
	if len(id) != 36 {
		return raw, false
	}
	var hexed [32]byte
	copy(hexed[:8], id[:8])
	copy(hexed[8:], id[9:13])
	copy(hexed[12:], id[14:18])
	copy(hexed[16:], id[19:23])
	copy(hexed[20:], id[24:])
	_, err := hex.Decode(raw[:], hexed[:])
	return raw, err == nil
}

func uuid(b [16]byte) string {
	var out [36]byte
	hex.Encode(out[:8], b[:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:], b[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}

// clientInfo is what others may learn of a client.
func (s *session) clientInfo() *protocol.ClientInfo {
	return &protocol.ClientInfo{User: s.account.user, Client: s.clientID(), Conn: s.account.info}
}
