package admin

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	clientID     = "weir"
	clientSecret = "client-secret-0123456789"
)

// An openID is an OpenID provider that logs in one user without a question. The functions
// make it break the rules.
type openID struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu        sync.Mutex
	grants    map[string]url.Values // authorization requests, by code; a code is for one use
	requested url.Values            // the last authorization request
	down      bool
	claims    func(jwt.MapClaims)            // changes the ID token
	sign      func(jwt.MapClaims) string     // signs it instead
	userinfo  map[string]any                 // nil: no more than sub
	answer    func(back url.Values)          // changes the authorization response
	token     func(response map[string]any)  // changes the token response
	document  func(discovery map[string]any) // changes the discovery document
}

var providerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic("make a key of the test: " + err.Error())
	}
	return key
})

func newOpenID(t *testing.T) *openID {
	t.Helper()
	key := providerKey()
	o := &openID{key: key, grants: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", o.discovery)
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		n, e := base64.RawURLEncoding.EncodeToString(key.N.Bytes()), base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": n, "e": e}}})
	})
	mux.HandleFunc("GET /authorize", o.authorize)
	mux.HandleFunc("POST /token", o.exchange)
	mux.HandleFunc("GET /userinfo", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		info := o.userinfo
		if info == nil {
			info = map[string]any{"sub": "user-1"}
		}
		_ = json.NewEncoder(w).Encode(info)
	})
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.down {
			http.Error(w, "closed for repairs", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(o.Close)
	return o
}

// set changes o between requests.
func (o *openID) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// fair makes it keep the rules again.
func (o *openID) fair() {
	o.set(func() { o.claims, o.sign, o.answer, o.token, o.userinfo = nil, nil, nil, nil, nil })
}

func (o *openID) discovery(w http.ResponseWriter, _ *http.Request) {
	d := map[string]any{
		"issuer": o.URL, "authorization_endpoint": o.URL + "/authorize", "token_endpoint": o.URL + "/token", "jwks_uri": o.URL + "/keys",
		"userinfo_endpoint": o.URL + "/userinfo", "end_session_endpoint": o.URL + "/logout", "code_challenge_methods_supported": []string{"S256"},
		"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}, "authorization_response_iss_parameter_supported": true,
	}
	if o.document != nil {
		o.document(d)
	}
	_ = json.NewEncoder(w).Encode(d)
}

func (o *openID) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	o.requested = q
	if q.Get("client_id") != clientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || len(q.Get("nonce")) < 20 || len(q.Get("state")) < 20 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	o.grants[code] = q
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {o.URL}}
	if o.answer != nil {
		o.answer(back)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (o *openID) exchange(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	id, secret, _ := r.BasicAuth()
	grant, known := o.grants[r.PostFormValue("code")]
	delete(o.grants, r.PostFormValue("code"))
	verifier := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if id != clientID || secret != clientSecret || !known || grant.Get("redirect_uri") != r.PostFormValue("redirect_uri") ||
		base64.RawURLEncoding.EncodeToString(verifier[:]) != grant.Get("code_challenge") {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": "no"})
		return
	}
	access := rand.Text()
	hash := sha256.Sum256([]byte(access))
	claims := jwt.MapClaims{
		"iss": o.URL, "sub": "user-1", "aud": clientID, "nonce": grant.Get("nonce"), "iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(),
		"at_hash": base64.RawURLEncoding.EncodeToString(hash[:16]), "preferred_username": "ada", "groups": []string{"staff", "ops"},
	}
	if o.claims != nil {
		o.claims(claims)
	}
	sign := o.signed
	if o.sign != nil {
		sign = o.sign
	}
	response := map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 300, "id_token": sign(claims)}
	if o.token != nil {
		o.token(response)
	}
	_ = json.NewEncoder(w).Encode(response)
}

func (o *openID) signed(claims jwt.MapClaims) string {
	return signedBy(jwt.SigningMethodRS256, o.key, claims)
}

// signedBy returns the token, under the provider's key id.
func signedBy(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t := jwt.NewWithClaims(method, claims)
	t.Header["kid"] = "1"
	s, err := t.SignedString(key)
	if err != nil {
		panic("sign a token of the test: " + err.Error())
	}
	return s
}
