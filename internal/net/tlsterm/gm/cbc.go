package gm

import (
	"bytes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"hash"

	"github.com/emmansun/gmsm/sm3"
	"github.com/emmansun/gmsm/sm4"
)

// cbc is SM4-CBC with HMAC-SM3 in the form of a cipher.AEAD (GB/T 38636 §6.3.3.4.3,
// which is RFC 5246 §6.2.3.2): the MAC comes before the encryption, so that opening a
// record must not reveal whether its padding or its MAC was wrong, nor how long it was
// (Lucky Thirteen). The padding is checked and the MAC is selected without a branch or an
// index that depends on them; the number of compressions of SM3 is the same for every
// padding. What is left is the memory that the MAC's input is read from, whose length
// is the plaintext's.
type cbc struct {
	block cipher.Block
	mac   hash.Hash
	dummy hash.Hash
}

var _ cipher.AEAD = (*cbc)(nil)

var errCBC = errors.New("gm: record does not decrypt")

func newCBC(b cipher.Block, macKey []byte) *cbc {
	return &cbc{block: b, mac: hmac.New(sm3.New, macKey), dummy: sm3.New()}
}

// NonceSize implements cipher.AEAD. The nonce is not used: the IV is random, as CBC needs.
func (c *cbc) NonceSize() int { return 12 }

// Overhead implements cipher.AEAD.
func (c *cbc) Overhead() int { return 2*sm4.BlockSize + HashLen }

// Seal implements cipher.AEAD. The result starts with the IV. plaintext may lie where
// the result goes.
func (c *cbc) Seal(dst, _, plaintext, additional []byte) []byte {
	c.mac.Reset()
	c.mac.Write(additional)
	c.mac.Write(plaintext)
	var sum [HashLen]byte
	c.mac.Sum(sum[:0])
	pad := sm4.BlockSize - (len(plaintext)+HashLen)%sm4.BlockSize
	start, n := len(dst), len(plaintext)
	dst = append(dst, plaintext...)
	dst = append(dst, make([]byte, sm4.BlockSize+HashLen+pad)...)
	out := dst[start:]
	copy(out[sm4.BlockSize:], out[:n])
	iv, body := out[:sm4.BlockSize], out[sm4.BlockSize:]
	_, _ = rand.Read(iv) // never fails
	copy(body[n:], sum[:])
	copy(body[n+HashLen:], bytes.Repeat([]byte{byte(pad - 1)}, pad))
	cipher.NewCBCEncrypter(c.block, iv).CryptBlocks(body, body)
	return dst
}

// Open implements cipher.AEAD. ciphertext is overwritten; the last two bytes of
// additional, the length, are set here.
func (c *cbc) Open(dst, _, ciphertext, additional []byte) ([]byte, error) {
	n := len(ciphertext) - sm4.BlockSize
	if n < HashLen+1 || n%sm4.BlockSize != 0 {
		return nil, errCBC // the length is public
	}
	body := ciphertext[sm4.BlockSize:]
	cipher.NewCBCDecrypter(c.block, ciphertext[:sm4.BlockSize]).CryptBlocks(body, body)
	pad, good := padding(body)
	size := n - HashLen - pad // at least 0: padding returns 1 for what is too long
	binary.BigEndian.PutUint16(additional[len(additional)-2:], uint16(size))
	var want [HashLen]byte
	c.mac.Reset()
	c.mac.Write(additional)
	c.mac.Write(body[:size])
	c.mac.Sum(want[:0])
	c.equalize(len(additional)+size, len(additional)+n-HashLen-1)
	if good&subtle.ConstantTimeCompare(want[:], c.macAt(body, size)) != 1 {
		clear(body)
		return nil, errCBC
	}
	return append(dst, body[:size]...), nil
}

// padding returns the length of the padding, its length byte included, and whether it
// is right: 1 or 0. If it is not, the length is 1.
func padding(body []byte) (n, good int) {
	last := int(body[len(body)-1])
	good = subtle.ConstantTimeLessOrEq(last+1+HashLen, len(body))
	ok := byte(0)
	for i := range min(256, len(body)) {
		within := subtle.ConstantTimeLessOrEq(i, last)
		ok |= byte(-within) & (body[len(body)-1-i] ^ byte(last))
	}
	good &= subtle.ConstantTimeByteEq(ok, 0)
	return 1 + subtle.ConstantTimeSelect(good, last, 0), good
}

// macAt returns the MAC behind size bytes of body. Each byte that may be part of it is
// read, whatever size is; the result is then rotated into place.
func (c *cbc) macAt(body []byte, size int) []byte {
	var turned, sum [HashLen]byte
	from := max(len(body)-HashLen-256, 0)
	shift := 0
	for i := from; i < len(body); i++ {
		at := (i - from) % HashLen
		within := subtle.ConstantTimeLessOrEq(size, i) & subtle.ConstantTimeLessOrEq(i+1, size+HashLen)
		turned[at] |= byte(-within) & body[i]
		shift = subtle.ConstantTimeSelect(subtle.ConstantTimeEq(int32(i), int32(size)), at, shift)
	}
	for i := range sum {
		for j := range turned {
			same := subtle.ConstantTimeEq(int32(j), int32((shift+i)%HashLen))
			sum[i] |= byte(-same) & turned[j]
		}
	}
	return sum[:]
}

// equalize makes up for the compressions that a MAC over n bytes needs less than one over most.
func (c *cbc) equalize(n, most int) {
	blocks := func(n int) int { return (n + 9 + sm3.BlockSize - 1) / sm3.BlockSize }
	var zeros [8 * sm3.BlockSize]byte
	c.dummy.Reset()
	c.dummy.Write(zeros[:(blocks(most)-blocks(n))*sm3.BlockSize])
}
