package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the time of all tests that do not wait.
var now = time.Unix(1_800_000_000, 0)

const secret = "k3Jx0q-5ZtW8vYr1LmN7bPc4DfGh2SaE6uTiOo9X"

// Keys are made once: an RSA key takes a while.
var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	rsaKey2  = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	p256Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	p384Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) })
	p521Key  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)) })
	edKey    = sync.OnceValue(func() ed25519.PrivateKey { return seeded(1) }) // the same in every process: fuzz workers share tokens
	otherKey = sync.OnceValue(func() ed25519.PrivateKey { return seeded(2) })
)

func seeded(b byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, ed25519.SeedSize))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func publicPEM(k crypto.Signer) string {
	der := must(x509.MarshalPKIXPublicKey(k.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func privatePEM(k any) []byte {
	der := must(x509.MarshalPKCS8PrivateKey(k))
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// newAuth starts an Authenticator whose clock is at now.
func newAuth(t testing.TB, cfg Config) *Authenticator {
	t.Helper()
	a, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return now }
	t.Cleanup(func() { a.Close() })
	return a
}

// claims are good ones, with changes; a nil value takes a claim out.
func claims(changes jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{
		"sub": "ada", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(),
		"weir": map[string]any{"subscribe": []string{"orders.*"}, "publish": []string{"orders.**"}},
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// sign makes a token the way an issuer does.
func sign(t testing.TB, alg string, key any, header map[string]any, c jwt.Claims) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.GetSigningMethod(alg), c)
	maps.Copy(tok.Header, header)
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hs(t testing.TB, c jwt.Claims) string { return sign(t, "HS256", []byte(secret), nil, c) }

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// rawHS signs any bytes as header and claims with HMAC-SHA-256.
func rawHS(key, header, payload string) string {
	text := b64(header) + "." + b64(payload)
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func toJSON(v any) string { return string(must(json.Marshal(v))) }

func ecdsaSign(t testing.TB, text string, k *ecdsa.PrivateKey) (r, s *big.Int) {
	t.Helper()
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

// certificate is a self-signed one of the EC key.
func certificate(t testing.TB) string {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, p256Key().Public(), p256Key())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// smallRSA is a key that no one should use any more.
const smallRSA = `-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCqqJHEROEWFrNYbs+0LXE4UeLV
L/kyCY+6waZsMqiyqsN22g0PZi4Pk+qhIfzribxg8cPGetaLT3uzGKRW3wK43vkg
kbfJAUYv/71je4yxHhg2IN6hQk3ukJAwkEaTfUmJONaZdRNsl/nPuiHFKw7na6/I
2rqp4jhCdUWlf8zLjwIDAQAB
-----END PUBLIC KEY-----
`
