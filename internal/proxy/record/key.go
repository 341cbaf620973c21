package record

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// An Owner is who may attach to a recording. The zero value is no client.
type Owner struct {
	// digest starts with what it is of: 'i' an identity, 'c' credentials that Weir
	// does not look at, 'a' an address.
	digest string
	// by are the fields that credentials were taken from.
	by []string
}

var usualCredentials = []string{"Authorization", "Cookie", "X-Api-Key"}

// OwnerOf finds the client of a request. by are the route's record.key. A client without an identity is identified
// by the fields, and without those by the address.
func OwnerOf(id *auth.Identity, by []string, header http.Header, client netip.Addr) Owner {
	if len(by) == 0 {
		by = usualCredentials
	} else if id != nil && id.By != "" && id.Subject != "" {
		_, values := credentials(by, header)
		return Owner{digest: "i" + sum(append([]string{id.By, id.Claim("iss"), id.Subject}, values...)...), by: by}
	}
	if id != nil && id.By != "" && id.Subject != "" {
		return Owner{digest: "i" + sum(id.By, id.Claim("iss"), id.Subject)}
	}
	if any, values := credentials(by, header); any {
		return Owner{digest: "c" + sum(values...), by: by}
	}
	return Owner{digest: "a" + sum(client.Unmap().String())}
}

// credentials returns the values of the fields, one for each.
func credentials(by []string, header http.Header) (any bool, values []string) {
	for _, name := range by {
		var v string
		if cookie, ok := strings.CutPrefix(name, "cookie:"); ok {
			r := http.Request{Header: header}
			if c, err := r.Cookie(cookie); err == nil {
				v = c.Value
			}
		} else {
			v = strings.Join(header.Values(name), "\x00")
		}
		any = any || v != ""
		values = append(values, v)
	}
	return any, values
}

// NeedsIdentity reports whether the client that requests the recording of that id must be
// identified first.
func (id *ID) NeedsIdentity() bool { return id.kind == 'i' }

// A Request is what makes two requests the same.
type Request struct {
	Route, Method, Path, Query string
	// Idempotency is the client's Idempotency-Key. With one the body does not count for
	// clients with credentials, and for those with an identity the query neither.
	Idempotency string
	Body        []byte
}

// Key returns the key of q asked by o. Everything counts for clients that are known by
// their address: others are behind it, and their idempotency keys may be the same.
func (q *Request) Key(o Owner) string {
	if q.Idempotency == "" || strings.HasPrefix(o.digest, "a") {
		body := sha256.Sum256(q.Body)
		return sum("request", q.Route, o.digest, q.Method, q.Path, q.Query, q.Idempotency, string(body[:]))
	}
	query := q.Query
	if strings.HasPrefix(o.digest, "i") {
		query = "" // else it may be what identifies a client
	}
	return sum("key", q.Route, o.digest, q.Method, q.Path, query, q.Idempotency)
}

// sum is a digest of parts that no other parts have, as it may appear in a channel's
// name.
func sum(parts ...string) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:18])
}

func newNonce() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// An ID names one recording. Its text is part of the URL that clients are given.
type ID struct {
	namespace, key, nonce string
	kind                  byte
}

// Path is where recordings are read again, behind Options.Prefix.
const Path = "/api/recording"

// String returns <namespace>.<key>.<kind><nonce>.
func (id *ID) String() string {
	return id.namespace + "." + id.key + "." + string(rune(id.kind)) + id.nonce
}

// ParseID reads what String wrote.
func ParseID(s string) (ID, bool) {
	parts := strings.Split(s, ".")
	if len(s) > 200 || len(parts) != 3 || len(parts[2]) < 2 || strings.IndexByte("ica", parts[2][0]) < 0 {
		return ID{}, false
	}
	id := ID{namespace: parts[0], key: parts[1], kind: parts[2][0], nonce: parts[2][1:]}
	return id, hub.CheckChannel(id.channel()) == nil && id.key != "" && urlSafe(id.key) && urlSafe(id.nonce)
}

func urlSafe(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// index is the channel that lists the recordings of a key.
func index(namespace, key string) string {
	if namespace == hub.DefaultNamespace {
		return "rec." + key
	}
	return namespace + ":rec." + key
}

// channel is where the events of the recording are.
func (id *ID) channel() string { return index(id.namespace, id.key) + "." + id.nonce }

// Admits reports whether a client that requests a recording's URL may attach. A recording of a
// client without any credentials is for anyone who has its URL, since addresses change.
func (o Owner) Admits(id *auth.Identity, header http.Header) bool {
	return o.digest != "" && (o.digest[0] == 'a' || OwnerOf(id, o.by, header, netip.Addr{}).digest == o.digest)
}
