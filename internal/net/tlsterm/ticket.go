package tlsterm

import (
	"crypto/hkdf"
	"crypto/sha256"
	"strconv"
	"time"
)

const (
	minTicketSecret = 32
	// keptTicketKeys is how many past periods' keys still decrypt.
	keptTicketKeys = 2
)

// ticketKeys returns the keys of session tickets at a time: the period's own,
// which encrypts, then those that still decrypt. Every node with the same
// secret, scope and rotation derives the same ones without talking.
//
// The next period's key is among them: a node whose clock runs ahead encrypts
// with it already. scope keeps sessions from resuming where they must not, for
// example under another demand on client certificates.
func ticketKeys(secret []byte, scope string, rotation time.Duration, now time.Time) [][32]byte {
	period := periodOf(now, rotation)
	keys := make([][32]byte, 0, 2+keptTicketKeys)
	add := func(p int64) {
		info := "weir session ticket key " + rotation.String() + " " + strconv.FormatInt(p, 10) + " " + scope
		k, err := hkdf.Key(sha256.New, secret, nil, info, 32)
		if err != nil {
			panic("hkdf: " + err.Error()) // only for a length no hash can give
		}
		keys = append(keys, [32]byte(k))
	}
	for i := range int64(1 + keptTicketKeys) {
		add(period - i)
	}
	add(period + 1)
	return keys
}

func periodOf(now time.Time, rotation time.Duration) int64 {
	return now.UnixNano() / int64(rotation)
}

// untilNextPeriod returns how long the current ticket key still encrypts.
func untilNextPeriod(now time.Time, rotation time.Duration) time.Duration {
	return rotation - time.Duration(now.UnixNano()%int64(rotation))
}
