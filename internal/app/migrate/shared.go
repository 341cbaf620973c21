package migrate

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// listen sets where the public listener is: where the input has it, if Weir would
// serve there. It comes after the keys.
func (t *translation) listen(addr string, at *node, tls tlsState) {
	host, port, _ := net.SplitHostPort(addr)
	number := portOf(addr)
	if number < 0 || host != "" && host != "localhost" && net.ParseIP(host) == nil {
		t.untaken(at, fmt.Sprintf("%.60q is not an address that can be listened on", addr), "listen")
		host, port, number = "127.0.0.1", "8000", 8000
		addr = "127.0.0.1:8000"
	}
	loopback := "127.0.0.1:" + strconv.Itoa(number)
	switch {
	case config.Loopback(addr):
		t.out.set("listen", addr, "")
	case tls == tlsLost:
		says := fmt.Sprintf("was %s with TLS; without certificates only this machine is served: name them in tls.certificates first", addr)
		t.out.set("listen", loopback, says)
		t.note(Security, at, says, "tls.certificates, then listen: "+quote(addr))
	case !t.hasKeys():
		says := fmt.Sprintf("was %s; without keys in the section auth only this machine is served", addr)
		t.out.set("listen", loopback, says)
		t.note(Security, at, says, "set auth.api_keys or another key of auth, then listen: "+quote(addr))
	default:
		t.out.set("listen", net.JoinHostPort(host, port), "")
	}
}

// hasKeys reports whether the output has keys, in auth or in key_sets.
func (t *translation) hasKeys() bool {
	if sets, ok := t.out.get("key_sets").(*section); ok && !sets.empty() {
		return true
	}
	a := t.out.at("auth")
	for _, key := range []string{"hmac_secret", "hmac_secret_file", "public_keys", "jwks_url", "api_keys"} {
		if a.get(key) != nil {
			return true
		}
	}
	return false
}

// adminToken makes a password the token of the admin listener.
func (t *translation) adminToken(admin *section, password string, at *node) {
	if len(password) < minAPIKey {
		t.untaken(at, fmt.Sprintf("%d bytes are no token of the admin listener, which wants %d", len(password), minAPIKey),
			"admin.token, made with: head -c 24 /dev/urandom | base64 -w0")
		return
	}
	t.secret(admin, "token", password, at, "the password of any user name, or a bearer token")
}

// adminListen sets where the admin listener is.
func (t *translation) adminListen(admin *section, addr string, at *node) {
	n := portOf(addr)
	host, _, _ := net.SplitHostPort(addr)
	switch {
	case n < 0 || host != "" && host != "localhost" && net.ParseIP(host) == nil:
		t.untaken(at, fmt.Sprintf("%.60q is not an address that can be listened on", addr), "admin.listen")
	case config.Loopback(addr) || admin.get("token") != nil:
		admin.set("listen", addr, "")
	default:
		says := fmt.Sprintf("was %s; without admin.token only this machine is served", addr)
		admin.set("listen", "127.0.0.1:"+strconv.Itoa(n), says)
		t.note(Security, at, says, "set admin.token, then admin.listen: "+quote(addr))
	}
}

// tokenKeys translates the keys of tokens, in the form of Centrifugo, to a section in
// the form of auth. It reports whether there are any.
func (t *translation) tokenKeys(in *node, to *section) (some bool) {
	if s, at := t.text(in, "hmac_secret_key"); at != nil {
		some = t.hmac(to, "hmac_secret", s, at) || some
	}
	if s, at := t.text(in, "hmac_previous_secret_key"); at != nil {
		t.hmac(to, "hmac_previous_secret", s, at)
	}
	for _, key := range []string{"rsa_public_key", "ecdsa_public_key"} {
		if s, at := t.text(in, key); at != nil {
			some = t.publicKey(to, s, at) || some
		}
	}
	if s, at := t.text(in, "jwks_public_endpoint"); at != nil {
		some = t.jwks(to, s, at) || some
	}
	if s, at := t.texts(in, "audience"); at != nil && len(s) > 0 {
		to.set("audience", s, "")
	}
	t.moveText(in, "issuer", to, "issuer")
	return some
}

// hmac sets a secret if Weir takes it.
func (t *translation) hmac(to *section, key, secret string, at *node) bool {
	in := auth.Config{KeySet: auth.KeySet{HMACSecret: auth.Secret(secret)}}
	if weak := in.WeakSecrets(); len(weak) > 0 && t.kind == Centrifugo {
		_, says, _ := strings.Cut(weak[0], ": ")
		to.set("allow_weak_secrets", true, "as before: "+key+" can be guessed")
		t.note(Security, at, "accepted as before: "+says, "make a new one with: head -c 48 /dev/urandom | base64 -w0; give it to the issuer of tokens, and take allow_weak_secrets out")
		t.secret(to, key, secret, at, "")
		return true
	}
	if err := in.Validate(); err != nil {
		t.note(Security, at, "left out: "+reasonOf(err),
			"make a new one with: head -c 48 /dev/urandom | base64 -w0; give it to the issuer of tokens first, if they can sign by both")
		return false
	}
	comment := ""
	if len(secret) < 64 {
		most := "HS256"
		if len(secret) >= 48 {
			most = "HS256 and HS384"
		}
		comment = fmt.Sprintf("of %d bytes: verifies %s", len(secret), most)
		t.changed(at, "a secret of %d bytes verifies %s alone (RFC 7518 §3.2)", len(secret), most)
	}
	t.secret(to, key, secret, at, comment)
	return true
}

// reasonOf is an error of auth without the key, which has another name here.
func reasonOf(err error) string {
	problems := config.Problems(err)
	if len(problems) == 0 {
		return "it is not accepted"
	}
	_, what, ok := strings.Cut(problems[0].Error(), ": ")
	if !ok {
		return problems[0].Error()
	}
	what, _, _ = strings.Cut(what, " (")
	return what
}

func (t *translation) publicKey(to *section, pem string, at *node) bool {
	if err := (auth.Config{KeySet: auth.KeySet{PublicKeys: []auth.PublicKey{{PEM: pem}}}}).Validate(); err != nil {
		t.note(Security, at, "left out: "+reasonOf(err), "a PEM in auth.public_keys")
		return false
	}
	item := &section{}
	item.set("pem", pem, "")
	to.add("public_keys", item)
	return true
}

func (t *translation) jwks(to *section, url string, at *node) bool {
	if err := (auth.Config{KeySet: auth.KeySet{JWKSURL: url}}).Validate(); err != nil || strings.ContainsAny(url, "{}") {
		why := "its parts are not taken from the issuer"
		if err != nil {
			why = reasonOf(err)
		}
		t.note(Security, at, "left out: "+why, "one https address in auth.jwks_url")
		return false
	}
	to.set("jwks_url", url, "")
	return true
}

// origins translates the pages that may connect.
func (t *translation) origins(n *node, path string) {
	all, at := t.texts(n, path)
	var taken []string
	for _, o := range all {
		if err := (auth.Config{AllowedOrigins: []string{o}}).Validate(); err != nil {
			t.note(Untaken, at, fmt.Sprintf("%.60q is not an origin: %s", printable(o), reasonOf(err)), "auth.allowed_origins")
			continue
		}
		if !slices.Contains(taken, o) {
			taken = append(taken, o)
		}
	}
	if len(taken) == 0 {
		return
	}
	says := ""
	if slices.Contains(taken, "*") {
		says = "what only * lets in is not allowed cookies"
		t.changed(at, "%s", says)
	}
	t.out.at("auth").set("allowed_origins", taken, says)
}

// history sets how much of the log is kept.
func (t *translation) history(ns *section, size int, ttl time.Duration, at *node) {
	if size <= 0 || ttl <= 0 {
		ns.set("durability", "none", "no history: nothing can be recovered")
		return
	}
	ns.set("durability", "stored", "")
	if size > 10_000_000 {
		size = 10_000_000
		t.changed(at, "history_size is at most 10000000")
	}
	ns.set("history_size", size, "")
	if ttl < time.Second {
		ttl = time.Second
		t.changed(at, "history_ttl is at least 1s")
	}
	ns.set("history_ttl", ttl, "")
	if ttl < 2*time.Minute {
		ns.set("idempotency_window", ttl, "at most history_ttl")
	}
}

// namespaceName reports whether s can be the name of a namespace.
func namespaceName(s string) bool {
	return s != "" && !strings.Contains(s, ":") && hub.CheckChannel(s+":x") == nil
}
