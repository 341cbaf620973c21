package migrate

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/front/auth"
)

// centrifugo is a translation of a configuration of Centrifugo 5 or 6.
type centrifugo struct{ *translation }

// translate translates a file or an environment.
func (t centrifugo) translate(data []byte) error {
	keys := func(in *node) {
		for _, m := range in.fields {
			t.place(canonical6(m.key, m.value), m.value)
		}
	}
	if err := t.read(data, keys, environment(t).lay); err != nil {
		return err
	}
	t.modern()
	t.out.at("centrifuge").set("enabled", true, "")
	t.broker()
	t.api()
	t.client()
	t.listeners() // after the keys: without any it stays on loopback
	t.namespaces()
	centrifugoBackends(t).proxies()
	t.remaining()
	return nil
}

// place puts a value where the newest form has it.
func (t *input) place(path string, v *node) {
	if !t.root.put(path, v) {
		v.markUsed()
		t.note(Untaken, v, twice, "")
	}
}

const twice = "it is there twice, under two names; the first counts"

// modern gives namespaces and proxies of 5 the keys of 6.
func (t centrifugo) modern() {
	for path, names := range map[string]map[string]string{
		"channel.namespaces": optionsOf5, "rpc.namespaces": optionsOf5, "proxies": proxyKeysOf5,
	} {
		n := t.root.at(path)
		if n == nil {
			continue
		}
		if j, ok := inlineJSON(n); ok {
			*n = *j
		}
		for i, item := range n.items {
			if item.kind != object {
				continue
			}
			six := &node{kind: object, line: item.line, where: item.where}
			for _, f := range item.fields {
				to := strings.ToLower(f.key)
				if name, ok := names[to]; ok {
					to = name
				}
				if !six.put(to, f.value) {
					t.note(Untaken, f.value, twice, "")
				}
			}
			n.items[i] = six
		}
	}
}

// listeners translates where it listens, and TLS.
func (t centrifugo) listeners() {
	h := t.root.at("http_server")
	address, addressAt := t.text(h, "address")
	port, at := t.text(h, "port")
	t.listen(net.JoinHostPort(address, cmp.Or(port, "8000")), cmp.Or(at, addressAt), t.tls(h))

	admin := t.out.at("admin")
	internalAddress, internalAt := t.text(h, "internal_address")
	internalPort, portAt := t.text(h, "internal_port")
	at = cmp.Or(portAt, internalAt)
	password, pw := t.text(t.root, "admin.password")
	t.flag(t.root, "admin.enabled") // Weir's is there anyway
	if pw != nil {
		t.adminToken(admin, password, pw)
	}
	if at == nil {
		return
	}
	t.adminListen(admin, net.JoinHostPort(internalAddress, cmp.Or(internalPort, "8001")), at)
	t.changed(at, "the admin listener has metrics, profiles and Weir's page; the server API stays on the public listener")
}

// tlsState reports what became of TLS.
type tlsState uint8

const (
	tlsNone tlsState = iota
	tlsDone
	tlsLost // it was there, and could not be translated
)

func (t centrifugo) tls(h *node) tlsState {
	enabled, on := t.flag(h, "tls.enabled")
	auto, autoAt := t.flag(h, "tls_autocert.enabled")
	if auto {
		t.note(Untaken, autoAt, "accounts and certificates of an ACME authority are not translated",
			"set tls.acme (docs/howto/certificates.md), or name files in tls.certificates; they are read again when they change")
		return tlsLost
	}
	if !enabled {
		return tlsNone
	}
	cert, certAt := t.text(h, "tls.cert_pem")
	key, keyAt := t.text(h, "tls.key_pem")
	if isPath(cert) {
		certAt = keyAt
	}
	if !isPath(cert) || !isPath(key) {
		t.note(Untaken, cmp.Or(certAt, on), "Weir reads certificates and keys from files", "write it to a file and name that in tls.certificates")
		return tlsLost
	}
	t.out.certificate(cert, key)
	if ca, at := t.text(h, "tls.client_ca_pem"); at != nil && isPath(ca) {
		t.out.at("tls").set("client_auth", "require", "")
		t.out.at("tls").set("client_ca_files", []string{ca}, "")
	} else if at != nil {
		t.note(Untaken, at, "Weir reads authorities from files: clients need no certificate", "write it to a file; tls.client_auth: require, tls.client_ca_files")
		return tlsLost
	}
	return tlsDone
}

func (s *section) certificate(cert, key string) {
	item := &section{}
	item.set("cert_file", cert, "")
	item.set("key_file", key, "")
	s.at("tls").add("certificates", item)
}

// isPath distinguishes the path of a file from a PEM and from base64 of one.
func isPath(s string) bool {
	return s != "" && len(s) < 512 && !strings.Contains(s, "-----BEGIN") && !strings.ContainsAny(s, "\n\x00") &&
		!(len(s) > 100 && !strings.ContainsAny(s, "/."))
}

// api translates the server API.
func (t centrifugo) api() {
	c := t.out.at("centrifuge")
	prefix, at := t.text(t.root, "http_api.handler_prefix")
	if at == nil {
		prefix = "/api"
	}
	if !strings.HasPrefix(prefix, "/") || len(strings.TrimRight(prefix, "/")) < 2 || strings.ContainsAny(prefix, "*?# ") {
		t.untaken(at, "it is not a path that can be taken", "centrifuge.api_prefix")
		prefix = "/api"
	}
	if mode, at := t.text(t.root, "http_api.error_mode"); mode == "transport" {
		c.set("api_error_mode", mode, "")
	} else if at != nil {
		t.untaken(at, "it is none that is known", "centrifuge.api_error_mode")
	}
	key, at := t.text(t.root, "http_api.key")
	if at == nil {
		return
	}
	t.secret(c, "api_key", key, at, "")
	if prefix == "/api" {
		c.set("api_prefix", prefix, "as in Centrifugo, instead of Weir's own publish and broadcast")
		t.changed(at, "at /api the calls of Centrifugo replace Weir's own publish and broadcast")
	} else {
		c.set("api_prefix", prefix, "")
	}
	if err := (auth.Config{APIKeys: []auth.APIKey{{Name: "centrifugo", Key: auth.Secret(key)}}}).Validate(); err != nil || len(key) < minAPIKey {
		t.note(Security, at, fmt.Sprintf("a key of %d bytes can be guessed: it is accepted for the calls of Centrifugo, and not for Weir's own API", len(key)),
			"a new centrifuge.api_key, made with: head -c 24 /dev/urandom | base64 -w0")
		return
	}
	t.apiKey("centrifugo", key, at, nil)
}

// minAPIKey is what a server wants that can be reached from other machines.
const minAPIKey = 16

// apiKey adds a key of Weir's own API.
func (t centrifugo) apiKey(name, key string, at *node, publish []string) {
	item := &section{}
	item.set("name", name, "")
	t.secret(item, "key", key, at, "")
	if publish != nil {
		item.set("publish", publish, "")
	}
	t.out.at("auth").add("api_keys", item)
}

// client translates who may connect, and the bounds of a client.
func (t centrifugo) client() {
	in, c := t.root.at("client"), t.out.at("centrifuge")
	if t.tokenKeys(in.at("token"), t.out.at("auth")) {
		t.out.at("auth").set("require_expiry", false, "as in Centrifugo: a token without exp does not end")
	}
	sub, subAt := t.flag(in, "subscription_token.enabled")
	if sub {
		set := &section{}
		if t.tokenKeys(in.at("subscription_token"), set) {
			set.set("require_expiry", false, "as in Centrifugo")
			t.out.keySet("subscriptions", set)
			c.set("subscription_keys", "subscriptions", "")
		} else {
			t.note(Security, subAt, "subscription tokens have no keys of their own now: those of connection tokens verify them", "a set in key_sets, named in centrifuge.subscription_keys")
		}
	} else if tok := in.at("subscription_token"); tok != nil {
		tok.markUsed() // off there as well
	}
	t.origins(in, "allowed_origins")
	t.moveFlag(in, "allow_anonymous_connect_without_token", c, "anonymous_connect")
	if b, at := t.flag(in, "insecure"); b {
		c.set("insecure", true, "")
		t.note(Security, at, "clients are let in without a token, as before", "take centrifuge.insecure out")
	}
	t.pings(in, c)
	t.moveSpan(in, "expired_close_delay", time.Nanosecond, c, "expired_close_delay")
	t.moveSpan(in, "stale_close_delay", time.Nanosecond, c, "stale_timeout")
	t.moveNumber(in, "channel_limit", c, "channel_limit", 1, 10_000)
	t.moveNumber(in, "queue_max_size", c, "max_queue", 1<<10, 1<<30)
	t.moveNumber(in, "user_connection_limit", c, "user_connection_limit", 0, 1_000_000)
	t.moveNumber(in, "history_max_publication_limit", c, "history_limit", 1, 10_000)
	t.moveNumber(in, "recovery_max_publication_limit", c, "recovery_limit", 1, 10_000)
	t.moveNumber(t.root, "websocket.message_size_limit", c, "max_command", 256, 16<<20)
	if n, at := t.number(in, "connection_limit"); n > 0 {
		t.out.at("eventloop").set("max_conns", min(n, 100_000_000), "bounds all connections, not only those of clients")
		t.changed(at, "eventloop.max_conns bounds all connections of the public listener, not only those of clients")
	}
	personal := in.at("subscribe_to_user_personal_channel")
	t.moveFlag(personal, "enabled", c, "user_personal_channel")
	if single, at := t.flag(personal, "single_connection"); single {
		t.note(Untaken, at, "a newer connection of a user does not end the older", "centrifuge.user_connection_limit: 1 refuses the newer")
	}
}

// pings translates how often clients are pinged.
func (t centrifugo) pings(in *node, c *section) {
	ping, pingAt := t.span(in, "ping_interval", time.Nanosecond)
	pong, pongAt := t.span(in, "pong_timeout", time.Nanosecond)
	if pingAt == nil {
		ping = 25 * time.Second
	}
	if pongAt == nil {
		pong = 8 * time.Second
	}
	if ping <= 0 || pong <= 0 || pong >= ping {
		t.untaken(cmp.Or(pingAt, pongAt), "Weir wants pings, and each answered before the next", "centrifuge.ping_interval and pong_timeout")
		return
	}
	if pingAt != nil {
		c.set("ping_interval", ping, "")
	}
	if pongAt != nil {
		c.set("pong_timeout", pong, "")
	}
}

// remaining translates what is about the process.
func (t centrifugo) remaining() {
	t.logLevel(t.root, "log.level")
	if d, at := t.span(t.root, "shutdown.timeout", time.Nanosecond); at != nil && d > 0 {
		t.out.at("shutdown").set("drain", d, "the longest that a drain takes")
		t.changed(at, "clients are closed one after the other over that time, not all at once")
	}
	if name, at := t.text(t.root, "node.name"); at != nil {
		if err := (cluster.Config{Name: name}).Validate(); err != nil {
			t.untaken(at, "it is not a name of a node: "+err.Error(), "cluster.name")
		} else {
			t.out.at("cluster").set("name", name, "")
		}
	}
	if on, at := t.flag(t.root, "websocket.compression"); on {
		for _, ns := range t.out.list("namespaces") {
			ns.set("compress", true, "")
		}
		t.changed(at, "each message is compressed once and shared; SSE clients that ask have it too")
	}
	for _, elsewhere := range [][2]string{
		{"prometheus.enabled", "metrics are at /metrics of the admin listener, under Weir's own names"},
		{"health.enabled", "health is at /healthz and /readyz of the public listener"},
		{"debug.enabled", "profiles are at /debug/pprof of the admin listener"},
	} {
		if on, at := t.flag(t.root, elsewhere[0]); on {
			t.changed(at, "%s", elsewhere[1])
		}
	}
	for _, name := range []string{"sse", "http_stream", "uni_sse", "uni_http_stream", "uni_websocket"} {
		if on, at := t.flag(t.root, name+".enabled"); at != nil && !on {
			t.changed(at, "all transports of the protocol are served")
		}
	}
	t.consumeDisabled(t.root, "")
	t.consumeDefaults()
}

// consumeDisabled takes switches that are off and what is empty: what Weir does not have is
// off there as well. What is not known stays, to be named.
func (t *input) consumeDisabled(n *node, path string) {
	off := n.kind == boolean && strings.EqualFold(n.value, "false") || n.leaf() && n.value == ""
	if _, known := t.why(path); off && known {
		n.used = true
	}
	for _, i := range n.items {
		t.consumeDisabled(i, path+"[]")
	}
	for _, f := range n.fields {
		t.consumeDisabled(f.value, join(path, strings.ToLower(f.key)))
	}
}

// consumeDefaults takes what is as it is in Weir without being said.
func (t centrifugo) consumeDefaults() {
	for path, same := range map[string]string{
		"channel.private_prefix": "$", "channel.namespace_boundary": ":", "channel.user_boundary": "#", "channel.user_separator": ",",
		"rpc.namespace_boundary": ":", "websocket.handler_prefix": "/connection/websocket", "sse.handler_prefix": "/connection/sse",
		"http_stream.handler_prefix": "/connection/http_stream", "uni_sse.handler_prefix": "/connection/uni_sse",
		"uni_websocket.handler_prefix": "/connection/uni_websocket", "uni_http_stream.handler_prefix": "/connection/uni_http_stream",
		"emulation.handler_prefix": "/emulation", "engine.type": "memory", "broker.type": "memory", "presence_manager.type": "memory",
		"usage_stats.disabled": "true", "prometheus.handler_prefix": "/metrics", "debug.handler_prefix": "/debug/pprof",
	} {
		if n := t.root.at(path); n != nil && n.value == same {
			n.markUsed()
		}
	}
}

// logLevel translates a level of the log.
func (t *translation) logLevel(n *node, path string) {
	s, at := t.text(n, path)
	switch level := strings.ToLower(s); level {
	case "":
	case "debug", "info", "warn", "error":
		t.out.at("log").set("level", level, "")
	case "trace":
		t.out.at("log").set("level", "debug", "was trace")
		t.changed(at, "debug is the lowest level")
	case "fatal", "none", "panic":
		t.out.at("log").set("level", "error", "was "+level)
		t.changed(at, "error is the highest level")
	default:
		t.untaken(at, "it is not a level", "log.level: debug, info, warn or error")
	}
}

func portOf(addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 0 || n > 65535 {
		return -1
	}
	return n
}
