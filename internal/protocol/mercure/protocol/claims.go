package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Claims are what a token says, once it is proved. ParseClaims reads those of one
// dialect.
type Claims struct {
	Dialect Dialect
	// Audience as the token has it.
	Audience []string
	// Expires is exp; zero without one.
	Expires time.Time
	// Publish and Subscribe are the grants.
	Publish, Subscribe []Selector
	// payloads say what is published about a subscription, in order.
	payloads []payload
}

// A payload is for subscriptions that one of selectors means; nil means all.
type payload struct {
	selectors []Selector
	json      json.RawMessage
}

// DetailType is the type of the authorization details that are meant for a hub.
const DetailType = "https://mercure.rocks/authorization-detail"

// Bounds of a token's grants.
const (
	maxDetails = 100
	maxGrants  = 1000

	maxDate = 253402300800 // seconds to the end of the year 9999
)

var errClaims = errors.New("claims are malformed")

func badClaim(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errClaims}, args...)...)
}

// Split returns the header and the claims of a token in compact form, decoded. It
// proves nothing.
func Split(token string) (header, claims []byte, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, nil, false
	}
	header, err1 := base64.RawURLEncoding.DecodeString(parts[0])
	claims, err2 := base64.RawURLEncoding.DecodeString(parts[1])
	return header, claims, err1 == nil && err2 == nil
}

// DialectOf finds the dialect of a token by its header: at+jwt is draft 08's
// (RFC 9068).
func DialectOf(header []byte) Dialect {
	var h struct {
		Typ string `json:"typ"`
	}
	if json.Unmarshal(header, &h) != nil {
		return Draft07
	}
	typ := strings.TrimPrefix(strings.ToLower(h.Typ), "application/")
	if typ == "at+jwt" {
		return Draft08
	}
	return Draft07
}

// Issuer returns the iss of claims that are not proved yet, to choose the keys that
// are to prove them.
func Issuer(claims []byte) string {
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(claims, &c) != nil {
		return ""
	}
	return c.Issuer
}

// ParseClaims reads claims that are proved. An error means that the token is not
// acceptable as a whole.
func ParseClaims(claims []byte, d Dialect) (*Claims, error) {
	var raw struct {
		Issuer   string          `json:"iss"` // this and sub only have to be strings
		Audience json.RawMessage `json:"aud"`
		Subject  string          `json:"sub"`
		Expires  *float64        `json:"exp"`
		Mercure  json.RawMessage `json:"mercure"`
		Other    json.RawMessage `json:"https://mercure.rocks/"`
		Details  json.RawMessage `json:"authorization_details"`
	}
	if err := json.Unmarshal(claims, &raw); err != nil {
		return nil, badClaim("%v", err)
	}
	c := &Claims{Dialect: d}
	if raw.Expires != nil && *raw.Expires >= 0 && *raw.Expires < maxDate {
		c.Expires = time.UnixMilli(int64(*raw.Expires * 1000))
	}
	if present(raw.Audience) && json.Unmarshal(raw.Audience, &c.Audience) != nil {
		var one string
		if json.Unmarshal(raw.Audience, &one) != nil {
			return nil, badClaim("aud is neither a string nor a list of them")
		}
		c.Audience = []string{one}
	}
	if d == Draft08 {
		return c, c.details(raw.Details)
	}
	if !present(raw.Mercure) {
		raw.Mercure = raw.Other
	}
	return c, c.mercure(raw.Mercure)
}

func present(m json.RawMessage) bool { return len(m) > 0 && !bytes.Equal(m, []byte("null")) }

// mercure reads draft 07's claim.
func (c *Claims) mercure(m json.RawMessage) error {
	if !present(m) {
		return nil
	}
	var v struct {
		Publish   []string        `json:"publish"`
		Subscribe []string        `json:"subscribe"`
		Payload   json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(m, &v); err != nil {
		return badClaim("mercure: %v", err)
	}
	if len(v.Publish)+len(v.Subscribe) > maxGrants {
		return badClaim("mercure: more than %d selectors", maxGrants)
	}
	for _, t := range slices.Concat(v.Publish, v.Subscribe) {
		if len(t) > MaxSelector {
			return badClaim("mercure: a selector of %d bytes, the bound is %d", len(t), MaxSelector)
		}
	}
	for _, t := range v.Publish {
		c.Publish = append(c.Publish, Selector{Template, t})
	}
	for _, t := range v.Subscribe {
		c.Subscribe = append(c.Subscribe, Selector{Template, t})
	}
	if present(v.Payload) {
		c.payloads = []payload{{json: v.Payload}}
	}
	return nil
}

// details reads draft 08's. Those of other types are other services'.
func (c *Claims) details(m json.RawMessage) error {
	if !present(m) {
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(m, &list); err != nil {
		return badClaim("authorization_details is not a list")
	}
	mine := 0
	for i, entry := range list {
		var kind struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(entry, &kind); err != nil {
			return badClaim("authorization_details[%d]: %v", i, err)
		}
		if kind.Type != DetailType {
			continue
		}
		if mine++; mine > maxDetails {
			return badClaim("more than %d authorization details", maxDetails)
		}
		if err := c.detail(entry); err != nil {
			return fmt.Errorf("authorization_details[%d]: %w", i, err)
		}
	}
	return nil
}

func (c *Claims) detail(entry json.RawMessage) error {
	var v struct {
		Actions []string          `json:"actions"`
		Topics  []json.RawMessage `json:"topics"`
		Payload json.RawMessage   `json:"payload"`
	}
	if err := json.Unmarshal(entry, &v); err != nil {
		return badClaim("%v", err)
	}
	if len(v.Actions) == 0 || len(v.Topics) == 0 || len(v.Topics) > MaxMatchers {
		return badClaim("want actions, and 1 to %d topics", MaxMatchers)
	}
	if present(v.Payload) && v.Payload[0] != '{' {
		return badClaim("payload is not an object")
	}
	var selectors []Selector
	for _, t := range v.Topics {
		s, err := grantOf(t)
		if err != nil {
			return err
		}
		selectors = append(selectors, s)
	}
	if slices.Contains(v.Actions, "publish") {
		c.Publish = append(c.Publish, selectors...)
	}
	if slices.Contains(v.Actions, "subscribe") {
		c.Subscribe = append(c.Subscribe, selectors...)
		if present(v.Payload) {
			c.payloads = append(c.payloads, payload{selectors, v.Payload})
		}
	}
	return nil
}

// grantOf reads a topic matcher of an authorization detail.
func grantOf(m json.RawMessage) (s Selector, err error) {
	var v struct {
		Match *string `json:"match"`
		Type  *string `json:"match_type"`
	}
	if err := json.Unmarshal(m, &v); err != nil || !bytes.HasPrefix(bytes.TrimSpace(m), []byte("{")) {
		return s, badClaim("a topic is not an object")
	}
	if v.Match == nil {
		return s, badClaim("a topic without match")
	}
	s.Text = *v.Match
	if v.Type != nil {
		var ok bool
		if s.Kind, ok = KindOf(*v.Type); !ok {
			return s, badClaim("match_type %.40q is neither exact nor urlpattern", *v.Type)
		}
	}
	if e := s.check(Draft08); e != nil {
		return s, badClaim("%s", e.Message)
	}
	return s, nil
}

// Payload returns what the token wants published about a subscription by s; nil means
// nothing. compile is Compile with the hub's URL: in draft 08 the payload is that of
// the first detail whose topics mean the selector's own text.
func (c *Claims) Payload(s Selector, compile func(Selector) (*Compiled, error)) json.RawMessage {
	for _, p := range c.payloads {
		if p.selectors == nil {
			return p.json
		}
		for _, g := range p.selectors {
			if g == s || g.Text == "*" {
				return p.json
			}
			if m, err := compile(g); err == nil && m.Match(s.Text) {
				return p.json
			}
		}
	}
	return nil
}
