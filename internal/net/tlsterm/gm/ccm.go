package gm

import (
	"bytes"
	"crypto/cipher"
	"sync"

	gmcipher "github.com/emmansun/gmsm/cipher"
)

// ccm is SM4-CCM that may encrypt in place. The library's authenticates its input after
// it has encrypted it, which is wrong where both are the same memory.
type ccm struct{ cipher.AEAD }

var plaintexts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func newCCM(b cipher.Block) (cipher.AEAD, error) {
	a, err := gmcipher.NewCCM(b)
	return ccm{a}, err
}

// Seal implements cipher.AEAD.
func (c ccm) Seal(dst, nonce, plaintext, additional []byte) []byte {
	b := plaintexts.Get().(*bytes.Buffer)
	b.Reset()
	b.Write(plaintext)
	dst = c.AEAD.Seal(dst, nonce, b.Bytes(), additional)
	clear(b.Bytes())
	plaintexts.Put(b)
	return dst
}
