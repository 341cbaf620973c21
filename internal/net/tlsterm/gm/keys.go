package gm

import (
	"crypto/hkdf"
	"crypto/hmac"
	"encoding/binary"
)

const (
	masterLen   = 48
	finishedLen = 12
)

// prf is P_SM3 (GB/T 38636 §5.3, which is RFC 5246 §5 with SM3).
func prf(secret []byte, label string, seed []byte, n int) []byte {
	seed = append([]byte(label), seed...)
	mac := hmac.New(Hash, secret)
	sum := func(parts ...[]byte) []byte {
		mac.Reset()
		for _, p := range parts {
			mac.Write(p)
		}
		return mac.Sum(nil)
	}
	var out []byte
	for a := sum(seed); len(out) < n; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:n:n]
}

// masterSecret is that of TLCP (§6.5.1).
func masterSecret(pre, clientRandom, serverRandom []byte) []byte {
	return prf(pre, "master secret", append(append([]byte(nil), clientRandom...), serverRandom...), masterLen)
}

// tlcpKeys cuts the key block of TLCP (§6.5.2).
func tlcpKeys(s *Suite, master, clientRandom, serverRandom []byte) (client, server Keys) {
	macLen, ivLen := 0, 4
	if s.CBC() {
		macLen, ivLen = HashLen, 16
	}
	block := prf(master, "key expansion", append(append([]byte(nil), serverRandom...), clientRandom...), 2*(macLen+KeyLen+ivLen))
	cut := func(n int) []byte {
		b := block[:n:n]
		block = block[n:]
		return b
	}
	client.MAC, server.MAC = cut(macLen), cut(macLen)
	client.Key, server.Key = cut(KeyLen), cut(KeyLen)
	client.IV, server.IV = make([]byte, 12), make([]byte, 12)
	copy(client.IV, cut(ivLen)[:4])
	copy(server.IV, cut(ivLen)[:4]) // with CBC the IV of each record is random and travels
	return client, server
}

// tlcpFinished is the verify_data of TLCP (§6.4.5.10).
func tlcpFinished(master []byte, label string, transcript []byte) []byte {
	return prf(master, label, transcript, finishedLen)
}

// extract and expand are HKDF with SM3 (RFC 8446 §7.1).
func extract(secret, salt []byte) []byte {
	b, err := hkdf.Extract(Hash, secret, salt)
	if err != nil {
		panic("gm: " + err.Error()) // only where a hash is refused by policy
	}
	return b
}

func expand(secret []byte, label string, context []byte, n int) []byte {
	info := binary.BigEndian.AppendUint16(make([]byte, 0, 64), uint16(n))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(info, "tls13 "...)
	info = append(info, label...)
	info = append(info, byte(len(context)))
	info = append(info, context...)
	b, err := hkdf.Expand(Hash, secret, string(info), n)
	if err != nil {
		panic("gm: " + err.Error()) // only for a length that no hash gives
	}
	return b
}

// Traffic returns the keys of a traffic secret of TLS 1.3 (RFC 8446 §7.3).
func Traffic(secret []byte) Keys {
	return Keys{Secret: secret, Key: expand(secret, "key", nil, KeyLen), IV: expand(secret, "iv", nil, 12)}
}

// NextSecret is the traffic secret after a key update (RFC 8446 §7.2).
func NextSecret(secret []byte) []byte { return expand(secret, "traffic upd", nil, HashLen) }

// A schedule is the key schedule of TLS 1.3 at one of its three stages.
type schedule struct{ secret []byte }

// newSchedule is at the early stage; psk is nil without one.
func newSchedule(psk []byte) *schedule {
	if psk == nil {
		psk = make([]byte, HashLen)
	}
	return &schedule{extract(psk, nil)}
}

// next goes to the next stage: with the shared secret to the handshake's, with nil to the master's.
func (k *schedule) next(input []byte) {
	if input == nil {
		input = make([]byte, HashLen)
	}
	salt := k.derive("derived", Hash().Sum(nil))
	clear(k.secret)
	k.secret = extract(input, salt)
}

// derive is Derive-Secret with the hash of a transcript.
func (k *schedule) derive(label string, transcript []byte) []byte {
	return expand(k.secret, label, transcript, HashLen)
}

// finishedMAC is the verify_data of TLS 1.3, or a binder (RFC 8446 §4.4.4).
func finishedMAC(secret, transcript []byte) []byte {
	key := expand(secret, "finished", nil, HashLen)
	mac := hmac.New(Hash, key)
	clear(key)
	mac.Write(transcript)
	return mac.Sum(nil)
}

// resumptionPSK is the key of a ticket (RFC 8446 §4.6.1).
func resumptionPSK(master, nonce []byte) []byte { return expand(master, "resumption", nonce, HashLen) }
