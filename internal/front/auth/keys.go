package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

var (
	symmetricAlgs  = []string{"HS256", "HS384", "HS512"}
	rsaAlgs        = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	asymmetricAlgs = slices.Concat(rsaAlgs, []string{"ES256", "ES384", "ES512", "EdDSA"})
)

const (
	minRSABits = 2048 // RFC 7518 §3.3
	maxRSABits = 8192 // larger ones cost milliseconds per forged token

	maxKeyFile = 1 << 20
)

// A key verifies the algorithms it is bound to and no other. That binding is
// what makes algorithm confusion impossible.
type key struct {
	// Immutable.
	id       string // kid it answers to; empty: any
	algs     []string
	material any               // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
	print    [sha256.Size]byte // of id, algs and material: the same key in the next key set

	// gone is set when the key set no longer has the key; what was verified with
	// it is then forgotten. Any goroutine.
	gone atomic.Bool
}

// newSecretKey binds a secret to the HMACs whose hash it is as long as (RFC 7518
// §3.2).
func newSecretKey(secret []byte) *key {
	n := 1
	if len(secret) >= 48 {
		n = 2
	}
	if len(secret) >= 64 {
		n = 3
	}
	return &key{algs: symmetricAlgs[:n], material: secret}
}

// newPublicKey checks a public key and binds it to the algorithms of its kind.
func newPublicKey(id string, pub any) (*key, error) {
	k := &key{id: id, material: pub}
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if bits := pub.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return nil, fmt.Errorf("RSA key of %d bits, want %d to %d", bits, minRSABits, maxRSABits)
		}
		if pub.E < 3 || pub.E%2 == 0 || pub.E > 1<<31-1 {
			return nil, errors.New("RSA key with an unusable exponent")
		}
		k.algs = rsaAlgs
	case *ecdsa.PublicKey:
		if _, err := pub.ECDH(); err != nil { // the point must be on the curve
			return nil, errors.New("EC key that is not a point of its curve")
		}
		switch name := pub.Curve.Params().Name; name {
		case "P-256":
			k.algs = []string{"ES256"}
		case "P-384":
			k.algs = []string{"ES384"}
		case "P-521":
			k.algs = []string{"ES512"}
		default:
			return nil, fmt.Errorf("EC key on curve %s, want P-256, P-384 or P-521", name)
		}
	case ed25519.PublicKey:
		k.algs = []string{"EdDSA"}
	default:
		return nil, fmt.Errorf("key of type %T, want RSA, EC or Ed25519", pub)
	}
	return k, k.setPrint()
}

func (k *key) setPrint() error {
	der, err := x509.MarshalPKIXPublicKey(k.material)
	if err != nil {
		return err
	}
	k.print = sha256.Sum256(fmt.Appendf(nil, "%q %q %x", k.id, k.algs, der))
	return nil
}

// narrow leaves k only alg, as a JWK's "alg" requires.
func (k *key) narrow(alg string) error {
	if !slices.Contains(k.algs, alg) {
		return fmt.Errorf("%.20q does not suit the key", alg)
	}
	k.algs = []string{alg}
	return k.setPrint()
}

// fits reports whether k may verify a token with this alg and kid.
func (k *key) fits(alg, kid string) bool {
	return slices.Contains(k.algs, alg) && (k.id == "" || kid == "" || k.id == kid)
}

func (c KeySet) loadSecrets(l *loaded, p *problems) {
	for _, s := range c.secrets(p) {
		msg, guessable := weakSecret(s.bytes)
		switch {
		case guessable && c.AllowWeakSecrets:
			l.keys = append(l.keys, &key{algs: symmetricAlgs, material: s.bytes})
		case msg != "":
			p.add(s.from, secretHint, "%s", msg)
		default:
			l.keys = append(l.keys, newSecretKey(s.bytes))
		}
	}
}

// An hmacSecret is a secret and the key path that it came from.
type hmacSecret struct {
	from  string
	bytes []byte
}

// secrets are the HMAC secrets of c that can be read.
func (c KeySet) secrets(p *problems) (all []hmacSecret) {
	add := func(name string, inline Secret, file string) {
		if b, from := readSecret(name, inline, file, p); b != nil {
			all = append(all, hmacSecret{from, b})
		}
	}
	add("hmac_secret", c.HMACSecret, c.HMACSecretFile)
	add("hmac_previous_secret", c.HMACPreviousSecret, c.HMACPreviousSecretFile)
	return all
}

// readSecret returns the secret and the key path it came from; nil if there is
// none or it could not be read.
func readSecret(name string, inline Secret, file string, p *problems) (secret []byte, from string) {
	switch {
	case inline != "" && file != "":
		p.add(name, "", "set this or %s_file, not both", name)
	case file != "":
		b, err := readFile(file)
		if err != nil {
			p.add(name+"_file", "", "%v", err)
			return nil, ""
		}
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		return append([]byte{}, b...), name + "_file"
	case inline != "":
		return []byte(inline), name
	}
	return nil, ""
}

// weakSecret reports what is wrong with a secret, empty if nothing, and whether it is only
// that it can be guessed. A PEM is refused because a public key used as a secret lets
// everyone sign.
func weakSecret(secret []byte) (msg string, guessable bool) {
	switch {
	case bytes.Contains(secret, []byte("-----BEGIN")):
		return "is a PEM key, not a secret; public keys belong in public_keys", false
	case len(secret) < minSecretBytes:
		return fmt.Sprintf("%d bytes can be guessed; want at least %d", len(secret), minSecretBytes), len(secret) > 0
	case distinct(secret) < 8:
		return "has fewer than 8 different bytes and can be guessed", true
	}
	return "", false
}

func distinct(b []byte) (n int) {
	var seen [256]bool
	for _, c := range b {
		if !seen[c] {
			seen[c] = true
			n++
		}
	}
	return n
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(b) > maxKeyFile {
		err = fmt.Errorf("%s: over %d bytes", name, maxKeyFile)
	}
	return b, err
}

func (c KeySet) loadPublicKeys(l *loaded, p *problems) {
	for i, pk := range c.PublicKeys {
		at, text := fmt.Sprintf("public_keys[%d]", i), []byte(pk.PEM)
		if (pk.PEM == "") == (pk.File == "") {
			p.add(at, "", "set one of pem and file")
			continue
		}
		field := at + ".pem"
		if pk.File != "" {
			var err error
			field = at + ".file"
			if text, err = readFile(pk.File); err != nil {
				p.add(field, "", "%v", err)
				continue
			}
		}
		keys, err := parsePublicPEM(pk.ID, text)
		if err != nil {
			var fix string
			if errors.Is(err, errPrivateKey) {
				fix = "give the public half: openssl pkey -in key.pem -pubout"
			}
			p.add(field, fix, "%v", err)
		}
		l.keys = append(l.keys, keys...)
	}
}

var errPrivateKey = errors.New("is a private key, which a verifier should not have")

// parsePublicPEM reads all PEM blocks of text.
func parsePublicPEM(id string, text []byte) (keys []*key, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		pub, err := parsePublicBlock(block)
		if err != nil {
			return nil, err
		}
		k, err := newPublicKey(id, pub)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("has no PEM block")
	}
	return keys, nil
}

func parsePublicBlock(b *pem.Block) (any, error) {
	switch {
	case strings.HasSuffix(b.Type, "PRIVATE KEY"):
		return nil, errPrivateKey
	case b.Type == "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(b.Bytes)
	case b.Type == "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(b.Bytes)
	case b.Type == "CERTIFICATE":
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, err
		}
		return cert.PublicKey, nil
	}
	return nil, fmt.Errorf("PEM block %.40q, want PUBLIC KEY, RSA PUBLIC KEY or CERTIFICATE", b.Type)
}

// apiKey keeps the hash only: all hashes are as long, so comparing them takes
// the same time whatever the keys.
type apiKey struct {
	sum [sha256.Size]byte
	id  *Identity
}

func (c Config) loadAPIKeys(l *loaded, p *problems) {
	names := make(map[string]bool)
	sums := make(map[[sha256.Size]byte]string)
	for i, ak := range c.APIKeys {
		at := fmt.Sprintf("api_keys[%d]", i)
		switch {
		case !validSubject(ak.Name) || ak.Name == "":
			p.add(at+".name", "", "want 1 to %d bytes without control characters", maxSubjectBytes)
		case names[ak.Name]:
			p.add(at+".name", "", "%q is there twice", ak.Name)
		}
		names[ak.Name] = true
		sum, ok := ak.hash(at, p)
		id, err := ak.identity()
		if err != nil {
			p.add(at, "", "%v", err)
		}
		if !ok || err != nil {
			continue
		}
		if other, dup := sums[sum]; dup {
			p.add(at, "", "has the same key as %q", other)
		}
		sums[sum] = ak.Name
		l.apiKeys = append(l.apiKeys, apiKey{sum, id})
	}
}

func (ak APIKey) hash(at string, p *problems) (sum [sha256.Size]byte, ok bool) {
	if ak.SHA256 != "" {
		if ak.Key != "" || ak.KeyFile != "" {
			p.add(at+".sha256", "", "set one of key, key_file and sha256")
			return sum, false
		}
		b, err := hex.DecodeString(ak.SHA256)
		if err != nil || len(b) != sha256.Size {
			p.add(at+".sha256", "printf %s \"$KEY\" | sha256sum", "want 64 hex digits")
			return sum, false
		}
		return [sha256.Size]byte(b), true
	}
	secret, from := readSecret(at+".key", ak.Key, ak.KeyFile, p)
	switch {
	case secret == nil && ak.Key == "" && ak.KeyFile == "":
		p.add(at, secretHint, "set one of key, key_file and sha256")
		return sum, false
	case secret == nil:
		return sum, false
	case string(secret) == hidden:
		p.add(from, secretHint, "%q is what is shown in place of a key", hidden)
		return sum, false
	case len(secret) == 0 || len(secret) > maxAPIKeyBytes:
		p.add(from, secretHint, "%d bytes; want 1 to %d, and at least %d beyond loopback", len(secret), maxAPIKeyBytes, shortKeyBytes)
		return sum, false
	}
	return sha256.Sum256(secret), true
}

func (ak APIKey) identity() (*Identity, error) {
	publish := ak.Publish
	if len(publish) == 0 {
		publish = []string{"**"}
	}
	pub, err := CompilePatterns(publish)
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	sub, err := CompilePatterns(ak.Subscribe)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return &Identity{Subject: ak.Name, By: ByAPIKey, publish: pub, subscribe: sub}, nil
}
