package protocol

import (
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // the protocol's checksum of a body, which the signature covers
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sign returns the HMAC-SHA256 of text in hexadecimal digits.
func Sign(secret, text string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))
}

// SignSubscription is the auth of a subscription to a private or presence channel;
// data is channel_data, empty for none.
func SignSubscription(key, secret, socket, channel, data string) string {
	text := socket + ":" + channel
	if data != "" {
		text += ":" + data
	}
	return key + ":" + Sign(secret, text)
}

// SignUser is the auth of a signin.
func SignUser(key, secret, socket, user string) string {
	return key + ":" + Sign(secret, socket+"::user::"+user)
}

// Equal compares signatures in constant time.
func Equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// BodyMD5 is the body_md5 of a request.
func BodyMD5(body []byte) string {
	sum := md5.Sum(body) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}

// A Request is a REST call as it is signed.
type Request struct {
	Method string
	// Path as it came, escapes included. A signature may be over what it means.
	Path string
	// Query as it came.
	Query string
	Body  []byte
}

// A Param is one of a query, decoded.
type Param struct{ Name, Value string }

// Params reads a query.
func Params(query string) ([]Param, error) {
	var out []Param
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		n, err := url.QueryUnescape(name)
		if err != nil {
			return nil, fmt.Errorf("query: %w", err)
		}
		v, err := url.QueryUnescape(value)
		if err != nil {
			return nil, fmt.Errorf("query: %w", err)
		}
		out = append(out, Param{n, v})
	}
	return out, nil
}

// Get returns the value of the parameter of that name, "" if there is none.
func Get(params []Param, name string) string {
	for _, p := range params {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// Errors of Verify.
var (
	errParams    = errors.New("the query has a parameter twice, or one with & or = in it")
	errVersion   = errors.New("auth_version must be 1.0")
	errKey       = errors.New("auth_key is not this app's")
	errTimestamp = errors.New("auth_timestamp is not a number")
	errBody      = errors.New("body_md5 is not that of the body")
	errSignature = errors.New("auth_signature is wrong")
)

// Verify checks the signature of a REST call. It returns the call's parameters, which
// are signed, or why it is refused.
func Verify(r Request, key, secret string, now time.Time) ([]Param, error) {
	params, err := Params(r.Query)
	if err != nil {
		return nil, err
	}
	if err := unambiguous(params); err != nil {
		return nil, err
	}
	if !Equal(Get(params, "auth_key"), key) {
		return nil, errKey
	}
	if Get(params, "auth_version") != "1.0" {
		return nil, errVersion
	}
	if err := fresh(Get(params, "auth_timestamp"), now); err != nil {
		return nil, err
	}
	if sum := Get(params, "body_md5"); len(r.Body) > 0 || sum != "" {
		if !Equal(strings.ToLower(sum), BodyMD5(r.Body)) {
			return nil, errBody
		}
	}
	given := Get(params, "auth_signature")
	query := SortedQuery(params)
	for _, path := range pathForms(r.Path) {
		if Equal(given, Sign(secret, r.Method+"\n"+path+"\n"+query)) {
			return params, nil
		}
	}
	return nil, errSignature
}

// unambiguous refuses what could be read in two ways once it is joined for signing.
func unambiguous(params []Param) error {
	seen := make(map[string]bool, len(params))
	for _, p := range params {
		name := strings.ToLower(p.Name)
		if seen[name] || strings.ContainsAny(name, "&=\n") || strings.ContainsAny(p.Value, "&\n") {
			return errParams
		}
		seen[name] = true
	}
	return nil
}

// fresh bounds the time for which a call can be repeated.
func fresh(stamp string, now time.Time) error {
	t, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return errTimestamp
	}
	if d := now.Unix() - t; d > MaxClockDifference || d < -MaxClockDifference {
		return fmt.Errorf("auth_timestamp %d is %d s away from this server's %d; at most %d s are allowed",
			t, max(d, -d), now.Unix(), MaxClockDifference)
	}
	return nil
}

// pathForms are the ways in which libraries write a path when they sign it.
func pathForms(path string) []string {
	if plain, err := url.PathUnescape(path); err == nil && plain != path {
		return []string{path, plain}
	}
	return []string{path}
}

// SortedQuery joins params as they are signed: by name in lower case, not escaped,
// without the signature.
func SortedQuery(params []Param) string {
	parts := make([]Param, 0, len(params))
	for _, p := range params {
		if name := strings.ToLower(p.Name); name != "auth_signature" {
			parts = append(parts, Param{name, p.Value})
		}
	}
	slices.SortFunc(parts, func(a, b Param) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(p.Name + "=" + p.Value)
	}
	return b.String()
}
