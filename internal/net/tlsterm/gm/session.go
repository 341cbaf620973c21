package gm

import (
	"container/list"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/emmansun/gmsm/sm4"
	"github.com/emmansun/gmsm/smx509"
	"golang.org/x/crypto/cryptobyte"
)

// A session is what resumes: in a ticket, in a SessionCache or in ClientSessions.
type session struct {
	version    uint16
	suite      uint16
	created    int64 // Unix seconds
	ageAdd     uint32
	secret     []byte // TLCP: the master secret; TLS 1.3: the ticket's PSK
	serverName string
	protocol   string
	peer       []*smx509.Certificate

	// The client's side only.
	label    []byte // the ticket, or the session ID in TLCP
	isTicket bool
	lifetime time.Duration
}

func (s *session) fresh(at time.Time, lifetime time.Duration) bool {
	age := at.Unix() - s.created
	return age >= -60 && age < int64(lifetime/time.Second) // clocks of nodes differ
}

func (s *session) marshal() []byte {
	var b cryptobyte.Builder
	b.AddUint16(s.version)
	b.AddUint16(s.suite)
	b.AddUint64(uint64(s.created))
	b.AddUint32(s.ageAdd)
	addBytes8(&b, s.secret)
	addBytes8(&b, []byte(s.serverName))
	addBytes8(&b, []byte(s.protocol))
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, c := range s.peer {
			addBytes24(b, c.Raw)
		}
	})
	return b.BytesOrPanic() // its parts were read with such lengths
}

func (s *session) parse(msg []byte) bool {
	*s = session{}
	b := cryptobyte.String(msg)
	var created uint64
	var name, protocol []byte
	var certs cryptobyte.String
	if !b.ReadUint16(&s.version) || !b.ReadUint16(&s.suite) || !b.ReadUint64(&created) || !b.ReadUint32(&s.ageAdd) ||
		!readBytes8(&b, &s.secret) || !readBytes8(&b, &name) || !readBytes8(&b, &protocol) ||
		!b.ReadUint24LengthPrefixed(&certs) || !b.Empty() {
		return false
	}
	s.created, s.serverName, s.protocol = int64(created), string(name), string(protocol)
	for !certs.Empty() {
		var der []byte
		if !readBytes24(&certs, &der) {
			return false
		}
		c, err := smx509.ParseCertificate(der)
		if err != nil {
			return false
		}
		s.peer = append(s.peer, c)
	}
	return true
}

// ticketAEAD is SM4-GCM under a key derived from a ticket key.
func ticketAEAD(key *[32]byte) cipher.AEAD {
	b, err := sm4.NewCipher(expand(key[:], "weir gm ticket", nil, KeyLen))
	if err != nil {
		panic("gm: " + err.Error()) // only for a key of another length
	}
	a, err := cipher.NewGCM(b)
	if err != nil {
		panic("gm: " + err.Error()) // only for a block of another size
	}
	return a
}

const nonceLen = 12

func (s *session) seal(keys [][32]byte) []byte {
	nonce := make([]byte, nonceLen)
	_, _ = rand.Read(nonce) // never fails
	plain := s.marshal()
	defer clear(plain)
	return ticketAEAD(&keys[0]).Seal(nonce, nonce, plain, nil)
}

// openTicket returns the session in a ticket, or nil.
func openTicket(keys [][32]byte, ticket []byte) *session {
	if len(ticket) < nonceLen+tagLen {
		return nil
	}
	for i := range keys {
		plain, err := ticketAEAD(&keys[i]).Open(nil, ticket[:nonceLen], ticket[nonceLen:], nil)
		if err != nil {
			continue
		}
		var s session
		if !s.parse(plain) {
			return nil
		}
		return &s
	}
	return nil
}

// A SessionCache keeps the TLCP sessions of a server for clients that have only a
// session ID. What is evicted is overwritten. Any goroutine.
type SessionCache struct {
	limit int

	mu    sync.Mutex
	byID  map[string]*list.Element
	order list.List // of *cached, the newest first
}

type cached struct {
	id      string
	session *session
}

// NewSessionCache returns a cache of at most limit sessions.
func NewSessionCache(limit int) *SessionCache {
	return &SessionCache{limit: limit, byID: map[string]*list.Element{}}
}

func (c *SessionCache) put(id []byte, s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byID) >= c.limit {
		c.drop(c.order.Back())
	}
	c.byID[string(id)] = c.order.PushFront(&cached{string(id), s})
}

// get returns a copy: an eviction overwrites the original.
func (c *SessionCache) get(id []byte) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[string(id)]
	if e == nil {
		return nil
	}
	s := *e.Value.(*cached).session
	s.secret = append([]byte(nil), s.secret...)
	return &s
}

// remove forgets a session: a handshake that tried to resume it failed.
func (c *SessionCache) remove(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[string(id)]; e != nil {
		c.drop(e)
	}
}

func (c *SessionCache) drop(e *list.Element) {
	v := c.order.Remove(e).(*cached)
	clear(v.session.secret)
	delete(c.byID, v.id)
}

// ClientSessions keeps the newest session per key. Any goroutine.
type ClientSessions struct{ cache SessionCache }

// NewClientSessions returns a cache of at most limit sessions.
func NewClientSessions(limit int) *ClientSessions { return &ClientSessions{*NewSessionCache(limit)} }

func (c *ClientSessions) put(key string, s *session) {
	c.cache.remove([]byte(key))
	c.cache.put([]byte(key), s)
}

// lookup returns the session of a key, once if it is a ticket of TLS 1.3 (RFC 8446 §C.4), or nil.
func (c *ClientSessions) lookup(key string, version uint16, at time.Time) *session {
	if c == nil {
		return nil
	}
	s := c.cache.get([]byte(key))
	switch {
	case s == nil:
		return nil
	case s.version != version || !s.fresh(at, s.lifetime):
		c.cache.remove([]byte(key))
		return nil
	case version == VersionTLS13:
		c.cache.remove([]byte(key))
	}
	return s
}

// Tickets takes in the session tickets that a TLS 1.3 server sends after the handshake.
type Tickets struct {
	sessions *ClientSessions
	key      string
	master   []byte // resumption_master_secret
	base     session
	time     func() time.Time
}

// maxTicketLifetime is RFC 8446 §4.6.1.
const maxTicketLifetime = 7 * 24 * time.Hour

// Add takes the plaintext of a handshake record. Only whole messages in it count.
func (t *Tickets) Add(b []byte) {
	for len(b) >= 4 {
		n := 4 + int(binary.BigEndian.Uint32(b)&0xffffff)
		if b[0] != msgNewSessionTicket || n > len(b) {
			return
		}
		t.add(bodyOf(b[:n]))
		b = b[n:]
	}
}

func (t *Tickets) add(s cryptobyte.String) {
	var lifetime, ageAdd uint32
	var nonce, label []byte
	if !s.ReadUint32(&lifetime) || !s.ReadUint32(&ageAdd) || !readBytes8(&s, &nonce) || !readBytes16(&s, &label) || len(label) == 0 {
		return
	}
	v := t.base
	v.created, v.ageAdd, v.lifetime = now(t.time).Unix(), ageAdd, min(time.Duration(lifetime)*time.Second, maxTicketLifetime)
	v.secret, v.label = resumptionPSK(t.master, nonce), append([]byte(nil), label...)
	t.sessions.put(t.key, &v)
}
