package migrate

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
)

// hubKeys translates what verifies tokens, to key sets that the section mercure names.
func (t mercureHub) hubKeys(in *node, m *section) {
	sets := map[string]*section{"publisher": {}, "subscriber": {}}
	for _, role := range []string{"publisher", "subscriber"} {
		words, at := t.words(in, role+"_jwt")
		t.hubKey(role, words, at, sets[role])
		if urls, at := t.texts(in, role+"_jwks_url"); len(urls) > 0 {
			t.jwks(sets[role], urls[0], at)
		}
	}
	same := !sets["publisher"].empty() && string(sets["publisher"].yaml("")) == string(sets["subscriber"].yaml(""))
	if same && sets["publisher"].get("hmac_secret") != nil {
		t.secrets-- // it is written once
	}
	for _, role := range []string{"publisher", "subscriber"} {
		name := role
		if same {
			name = "mercure"
		}
		if set := sets[role]; !set.empty() {
			set.set("require_expiry", false, "as there: tokens without exp are accepted")
			t.out.keySet(name, set)
			m.set(role+"_keys", name, "")
		}
	}
	for _, i := range itemsOf(in.at("issuer")) {
		t.issuer(i, m)
	}
	if m.get("issuers") == nil && sets["publisher"].empty() {
		t.note(Security, in.at("issuer"), "there are no keys: no client can publish", "a set in key_sets, named in mercure.publisher_keys")
	}
}

// keySet adds a key set to the output; a name that is taken already is the same set.
func (s *section) keySet(name string, set *section) { s.at("key_sets").set(name, set, "") }

// words takes a directive's words as they are.
func (t mercureHub) words(in *node, name string) (words []string, at *node) {
	v := in.at(name)
	if v == nil || v.kind != list {
		if s, at := t.scalar(v); at != nil {
			return []string{s}, at
		}
		return nil, nil
	}
	v.markUsed()
	for _, w := range v.items {
		words = append(words, w.value)
	}
	return words, v
}

// hubKey sets a key: a secret, a PEM, or where one is, and perhaps an algorithm.
func (t mercureHub) hubKey(role string, words []string, at *node, to *section) {
	if len(words) == 0 || words[0] == "" {
		return
	}
	key, alg := words[0], ""
	if len(words) > 1 && !strings.HasPrefix(words[1], "{") {
		alg = words[1]
	}
	if file, ok := strings.CutPrefix(key, "{file."); ok {
		to.set("hmac_secret_file", strings.TrimSuffix(file, "}"), "a secret; a PEM belongs in public_keys, with file")
		t.changed(at, "the file is treated as a secret; if it is a PEM, it belongs in public_keys of the key set, with file")
		return
	}
	if strings.HasPrefix(key, "{env.") || strings.HasPrefix(key, "{$") {
		t.note(Security, at, fmt.Sprintf("left out: %.60s is not known here", key),
			"name the file that has it with --env FILE, or put it into a file and name that in key_sets."+role+".hmac_secret_file")
		return
	}
	if strings.Contains(key, "-----BEGIN") {
		ok := t.publicKey(to, key, at)
		if err := (auth.Config{KeySet: auth.KeySet{PublicKeys: []auth.PublicKey{{PEM: key}}, Algorithms: []string{alg}}}).Validate(); ok && alg != "" && err == nil {
			to.set("algorithms", []string{alg}, "")
		}
		return
	}
	if alg != "" {
		err := (auth.Config{KeySet: auth.KeySet{HMACSecret: auth.Secret(key), Algorithms: []string{alg}}}).Validate()
		if err != nil && (auth.Config{KeySet: auth.KeySet{HMACSecret: auth.Secret(key)}}).Validate() == nil {
			t.note(Security, at, "left out: "+reasonOf(err), "a secret as long as the hash: 48 bytes for HS384, 64 for HS512")
			return
		}
		if err == nil {
			to.set("algorithms", []string{alg}, "")
		}
	}
	if !t.hmac(to, "hmac_secret", key, at) {
		to.drop("algorithms")
	}
}

// drop removes a key.
func (s *section) drop(key string) {
	for i, e := range s.entries {
		if e.key == key {
			s.entries = append(s.entries[:i], s.entries[i+1:]...)
			return
		}
	}
}

// issuer translates one of 1.0: Weir has the same keys for both roles of it.
func (t mercureHub) issuer(in *node, m *section) {
	id, at := t.text(in, "id")
	if at == nil {
		t.untaken(in, "an issuer without a name", "mercure.issuers")
		return
	}
	for _, have := range m.list("issuers") {
		if have.get("issuer") == id {
			t.untaken(in, "it is there twice; the first counts", "")
			return
		}
	}
	keys := map[string]*section{"publisher": {}, "subscriber": {}}
	for _, role := range []string{"publisher", "subscriber"} {
		words, wordsAt := t.words(in, role+".jwt")
		t.hubKey(role, words, wordsAt, keys[role])
		if u, uAt := t.texts(in, role+".jwks_uri"); len(u) > 0 && t.jwks(keys[role], u[0], uAt) && len(u) > 1 {
			if (auth.Config{KeySet: auth.KeySet{JWKSURL: u[0], Algorithms: u[1:]}}).Validate() == nil {
				keys[role].set("algorithms", u[1:], "")
			}
		}
	}
	if on, onAt := t.flag(in, "authorization_server"); on {
		t.note(Untaken, onAt, "issuers are always in the hub's metadata", "nothing")
	}
	use, other := keys["publisher"], keys["subscriber"]
	if use.empty() {
		use, other = other, use
	}
	if use.empty() {
		t.note(Security, at, "left out: it has no keys", "mercure.issuers")
		return
	}
	if !other.empty() && string(other.yaml("")) != string(use.yaml("")) {
		t.note(Security, in.at("subscriber.jwt"), "the key of subscribers is left out: an issuer has the same keys for both roles, those of publishers; a token says what it is for",
			"sign tokens of subscribers with the key of publishers, or as another issuer")
	}
	item := &section{}
	name := "issuer"
	if n := len(m.list("issuers")); n > 0 {
		name += strconv.Itoa(n + 1)
	}
	t.out.keySet(name, use)
	item.set("issuer", id, "")
	item.set("keys", name, "")
	m.add("issuers", item)
}

// transport translates where updates are kept.
func (t mercureHub) transport(in *node, ns *section) {
	name, at := t.first(in, "transport")
	options := in.at("transport_options")
	size, sizeAt := t.number(options, "size")
	if s, urlAt := t.first(in, "transport_url"); urlAt != nil && at == nil {
		u, err := url.Parse(s)
		if err != nil {
			t.note(Untaken, urlAt, "it is not a URL", "")
		} else {
			name, at = u.Scheme, urlAt
			if n, err := strconv.Atoi(u.Query().Get("size")); err == nil {
				size, sizeAt = n, urlAt
			}
		}
	}
	sizeAt = cmp.Or(sizeAt, at)
	switch name {
	case "", "bolt":
	case "local":
		ns.set("durability", "none", "as transport local: nothing can be resumed")
		return
	default:
		t.note(Changed, at, fmt.Sprintf("%.40q is a log outside; Weir keeps its log in ./weir-data, and several nodes share one by broker.nats.url or broker.nats.cluster", name), "")
	}
	ns.set("durability", "stored", "")
	if size > 0 {
		says := "of each topic; the hub counted all topics together"
		ns.set("history_size", min(size, 10_000_000), says)
		t.changed(sizeAt, "history_size is for each topic, not for all of them together")
	} else {
		says := "of each topic; the hub kept all for ever. history_bytes bounds them together"
		ns.set("history_size", 1_000_000, says)
		t.changed(sizeAt, "Weir's log has bounds: history_size for each topic, history_ttl, and history_bytes for all together")
	}
	ns.set("history_ttl", 365*24*time.Hour, "the hub knew no age")
}

// hubVariables are the container's, and those of hubs before Caddy, with the directive
// that each sets.
var hubVariables = map[string]string{
	"MERCURE_TRANSPORT_URL": "transport_url", "TRANSPORT_URL": "transport_url",
	"ALLOW_ANONYMOUS": "anonymous", "CORS_ALLOWED_ORIGINS": "cors_origins", "PUBLISH_ALLOWED_ORIGINS": "publish_origins",
	"HEARTBEAT_INTERVAL": "heartbeat", "WRITE_TIMEOUT": "write_timeout", "SUBSCRIPTIONS": "subscriptions", "DEMO": "demo",
	"DISPATCH_TIMEOUT": "dispatch_timeout", "MERCURE_PUBLISHER_JWKS_URL": "publisher_jwks_url", "MERCURE_SUBSCRIBER_JWKS_URL": "subscriber_jwks_url",
}

// environment turns variables into the tree that a Caddyfile gives.
func (t mercureInput) environment(env *node) error {
	taken := map[string]bool{}
	take := func(names ...string) *node {
		var first *node
		for _, name := range names {
			if v := env.child(name); v != nil {
				taken[strings.ToUpper(name)] = true
				if first == nil && v.value != "" {
					first = v
				} else {
					v.markUsed()
				}
			}
		}
		return first
	}
	t.root.put("mercure", &node{kind: object})
	t.envKeys(take)
	t.envAddress(take)
	if v := take("MERCURE_EXTRA_DIRECTIVES"); v != nil {
		v.markUsed()
		all, err := parseCaddyfile(t.file, v.value)
		if err != nil {
			return fmt.Errorf("%s: %w", v.where, err)
		}
		resolve(all, env)
		t.hubDirectives(&directive{block: all, line: v.line, words: []string{"mercure"}})
	}
	for _, m := range env.fields {
		name := strings.ToUpper(m.key)
		to, known := hubVariables[name]
		switch {
		case taken[name]:
		case known:
			t.place("mercure."+to, m.value)
		default:
			t.place("env."+strings.ReplaceAll(m.key, ".", "_"), m.value)
		}
	}
	return nil
}

// envKeys takes what verifies tokens from variables.
func (t mercureInput) envKeys(take func(...string) *node) {
	var keys [2]*node
	for i, role := range []string{"PUBLISHER", "SUBSCRIBER"} {
		key := take("MERCURE_"+role+"_JWT_KEY", role+"_JWT_KEY")
		if key == nil {
			key = take("JWT_KEY")
		}
		alg := take("MERCURE_"+role+"_JWT_ALG", role+"_JWT_ALGORITHM", "JWT_ALGORITHM")
		if key == nil {
			alg.markUsed()
			continue
		}
		keys[i] = &node{kind: list, line: key.line, where: key.where, items: []*node{key}}
		if alg != nil {
			keys[i].items = append(keys[i].items, alg)
		}
	}
	if id := take("MERCURE_TRUSTED_ISSUERS"); id != nil {
		i := &node{kind: object, line: id.line, where: id.where, fields: []member{{"id", id}}}
		for k, role := range []string{"publisher.jwt", "subscriber.jwt"} {
			if keys[k] != nil {
				i.put(role, keys[k])
			}
		}
		t.root.put("mercure.issuer", &node{kind: list, line: id.line, where: id.where, items: []*node{i}})
	} else {
		for k, role := range []string{"mercure.publisher_jwt", "mercure.subscriber_jwt"} {
			if keys[k] != nil {
				t.root.put(role, keys[k])
			}
		}
	}
}

// envAddress takes where the hub listens from variables.
func (t mercureInput) envAddress(take func(...string) *node) {
	v := take("SERVER_NAME", "ACME_HOSTS")
	cert, key := take("CERT_FILE"), take("KEY_FILE")
	if cert != nil && key != nil {
		t.root.put("tls", &node{kind: list, line: cert.line, where: cert.where, items: []*node{cert, key}})
	}
	if a := take("ADDR"); a != nil && v == nil {
		v = a
		if cert == nil {
			v = &node{kind: text, value: "http://" + a.value, line: a.line, where: a.where}
			a.markUsed()
		}
	} else if a != nil {
		a.markUsed()
	}
	if v != nil {
		t.root.put("address", v)
	}
}

// mercureReasons say why directives and variables are not translated: those of the hub
// stand under mercure, others of the site under site, blocks of the file under caddy,
// variables under env.
var mercureReasons = []reason{
	{"mercure.name", "there is one hub", "nothing"},
	{"mercure.ui mercure.debugger", "there is no page for trying topics", "weir sub, or the dashboard of the admin listener"},
	{"mercure.demo", "there is no demo", "weir demo"},
	{"mercure.dispatch_timeout", "a slow reader delays no other: its queue has a bound and a policy", "namespaces[].queue_messages, queue_bytes and policy"},
	{"mercure.topic_selector_cache mercure.topic_matcher_cache", "what patterns take has one bound", "mercure.max_pattern_bytes"},
	{"mercure.subscriber_list_cache_size", "there is no such cache: subscribers are found by an index", "nothing"},
	{"mercure.protocol_version_compatibility", "what hubs of 0.x speak is spoken as it is", "mercure.draft"},
	{"mercure.transport", "it is the other transport's", ""},
	{"mercure.transport_url", "transport counts", "nothing"},
	{"mercure.transport_options", "the log is in NATS JetStream: broker.nats", "broker.nats.dir says where; history_size, history_ttl and history_bytes how much"},
	{"mercure.license env.MERCURE_LICENSE", "Weir has no licence to enter: several nodes are in it", "nothing"},
	{"tls", "Weir takes certificates from files", "tls.certificates"},
	{"site.encode env.COMPRESS", "compression is the namespace's", "namespaces[].compress"},
	{"site.log", "there is an access log for routes, without query strings", "access_log.file"},
	{"site.log_skip", "there is an access log for routes alone", "access_log.file"},
	{"site.respond", "Weir does not serve pages", "routes, or the proxy before it"},
	{"site.header", "headers are those of routes", "routes[]"},
	{"site.reverse_proxy", "Weir can be that proxy, but the directive is not translated", "routes and clusters: docs/howto/proxy.md"},
	{"site.file_server site.root", "Weir does not serve files", "routes to one that is"},
	{"site.php_server site.php_fastcgi", "Weir does not serve PHP", "leave it where it is, with Weir before it: docs/howto/proxy.md"},
	{"site caddy env.CADDY_", "it is Caddy's, not the hub's", "routes and clusters: docs/howto/proxy.md"},
	{"caddy.options env.GLOBAL_OPTIONS", "they are Caddy's", "listen, tls and log"},
	{"env.MERCURE_URL", "it is the application's: where it publishes", "the same path at Weir's address"},
	{"env.MERCURE_PUBLIC_URL", "it is the application's: where browsers subscribe", "the same path at Weir's address; mercure.public_url"},
	{"env.MERCURE_JWT_SECRET", "it is the application's: what it signs with", "nothing, if it is the publisher's key"},
	{"env.ACME_ env.ACME_CERT_DIR", "accounts and certificates of an ACME authority are not translated", "tls.acme, or tls.certificates"},
	{"env.DEBUG", "the level of the log", "log.level: debug"},
	{"env.USE_FORWARDED_HEADERS", "the proxies trusted for a client's address are listed by network", "trusted.proxies"},
	{"env.READ_TIMEOUT", "the time for a request's head and body has bounds of its own", "downstream.head_timeout, downstream.body_timeout"},
	{"env.METRICS_", "metrics are at /metrics of the admin listener", "admin.listen"},
}
