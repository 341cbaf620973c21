package judge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
)

// Claims of a token.
type Claims map[string]any

// Grants are the claims of a token that may subscribe and publish as said; nil
// leaves the right out.
func Grants(subscribe, publish []string) map[string]any {
	grants := map[string]any{}
	if subscribe != nil {
		grants["subscribe"] = subscribe
	}
	if publish != nil {
		grants["publish"] = publish
	}
	return grants
}

// Token signs claims with HMACKey by HS256 (RFC 7515), by hand: what the server
// uses to verify is not what makes its input.
func Token(claims Claims) string {
	return Sign(map[string]any{"alg": "HS256", "typ": "JWT"}, claims, HMACKey)
}

// Sign makes a token with any header, signed with HMAC-SHA256 whatever the
// header says.
func Sign(header map[string]any, claims Claims, key string) string {
	h, _ := json.Marshal(header)
	c, _ := json.Marshal(claims)
	text := base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(c)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
