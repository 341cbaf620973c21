package hub

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
)

// ErrKeyReused reports that an idempotency key was used before, for a message that
// differs from this one: HTTP 409. A *KeyReusedError carries where that one is.
var ErrKeyReused = errors.New("idempotency key was used for another message")

// A KeyReusedError is ErrKeyReused with the position of the message that has the key.
type KeyReusedError struct {
	At      Position
	Channel string
}

// Error names the channel, not the key, which is its publisher's secret.
func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("%v: message %d of channel %.60q has it", ErrKeyReused, e.At.Offset, e.Channel)
}

// Is makes errors.Is(e, ErrKeyReused) true.
func (e *KeyReusedError) Is(target error) bool { return target == ErrKeyReused }

// A KeyID names an idempotency key: that of one publisher for one channel.
type KeyID [24]byte

// KeyID returns what brokers look p.IdempotencyKey up by: a digest of Publisher,
// Channel and IdempotencyKey, each with its length, so that no other three have it.
func (p *Publication) KeyID() (id KeyID) {
	h := sha256.New()
	for _, part := range []string{p.Publisher, p.Channel, p.IdempotencyKey} {
		hashPart(h, []byte(part))
	}
	copy(id[:], h.Sum(nil))
	return id
}

// A ContentID distinguishes messages with different content.
type ContentID [16]byte

// ContentID returns a digest of what p is as a message: Key, Data and Attributes. It
// leaves out what may differ between two attempts to publish the same: the connection
// (Origin and Info), and what PublishTopics writes, since a retry on more channels
// stores what is missing.
func (p *Publication) ContentID() (id ContentID) {
	h := sha256.New()
	hashPart(h, []byte(p.Key))
	hashPart(h, p.Data)
	if p.Attributes != nil {
		a := *p.Attributes
		a.Origin, a.Info = "", nil
		if a.Index > 0 {
			a.ID = ""
		}
		a.Topics, a.Index, a.First = nil, 0, 0
		if b := a.AppendTo(nil); string(b) != "{}" {
			h.Write(b)
		}
	}
	copy(id[:], h.Sum(nil))
	return id
}

func hashPart(h hash.Hash, b []byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(b)))
	h.Write(n[:])
	h.Write(b)
}
