package migrate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher"
)

// soketi is a translation of a configuration of soketi.
type soketi struct{ *translation }

// translate translates soketi's JSON, with or without dots in its keys, or its variables.
func (t soketi) translate(data []byte) error {
	keys := func(in *node) {
		for _, m := range in.fields {
			t.dotted(m.key, m.value)
		}
	}
	if err := t.read(data, keys, t.environment); err != nil {
		return err
	}
	t.out.at("pusher").set("enabled", true, "")
	t.out.at("pusher").set("health_paths", []string{"/", "/ready"}, "")
	t.apps()
	t.limits()
	t.broker()
	t.listeners()
	t.consumeDisabled(t.root, "")
	return nil
}

// dotted places a key as "appManager.array.apps.0.id", where numbers are elements of
// lists.
func (t soketi) dotted(key string, v *node) {
	parts := strings.Split(key, ".")
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || i == 0 || n < 0 || n > 1000 {
			continue
		}
		path := strings.Join(parts[:i], ".")
		if t.root.at(path) == nil {
			t.root.put(path, &node{kind: list, line: v.line, where: path})
		}
		l := t.root.at(path)
		if l == nil || l.kind != list {
			break
		}
		for len(l.items) <= n {
			l.items = append(l.items, &node{kind: object, line: v.line, where: fmt.Sprintf("%s[%d]", path, len(l.items))})
		}
		if rest := strings.Join(parts[i+1:], "."); rest != "" && l.items[n].kind == object {
			l.items[n].overlay(rest, v)
		} else {
			l.items[n] = v
		}
		return
	}
	if v.kind == object {
		t.place(key, v)
		return
	}
	t.root.overlay(key, v)
}

// overlay is lay; what has no place is dropped.
func (n *node) overlay(path string, v *node) {
	if !n.lay(path, v) {
		v.markUsed()
	}
}

// environment lays variables SOKETI_X over what there is.
func (t soketi) environment(env *node) {
	for _, m := range env.fields {
		name, ok := strings.CutPrefix(m.key, "SOKETI_")
		path, known := soketiVariables[name]
		if !ok || !known {
			m.value.markUsed()
			t.note(Unknown, m.value, "not a variable of soketi", "")
			continue
		}
		t.dotted(path, inlined(m.value))
	}
}

// apps translates the applications.
func (t soketi) apps() {
	if s, at := t.text(t.root, "appManager.driver"); at != nil && s != "array" {
		t.note(Untaken, at, fmt.Sprintf("applications are read from the configuration, not from %.40s", printable(s)), "list them in pusher.apps; a change takes a restart")
	}
	apps := t.root.at("appManager.array.apps")
	if apps != nil {
		if j, ok := inlineJSON(apps); ok && j.kind == list {
			*apps = *j
		}
	}
	items := itemsOf(apps)
	if len(items) == 0 {
		t.note(Security, apps, "there are no applications in it: soketi has one then, whose secret everybody knows; Weir has none", "pusher.apps")
		t.out.at("pusher").set("enabled", false, "there is no application: add one to apps")
		t.namespace("default")
		return
	}
	taken := map[string]bool{}
	for i, in := range items {
		if in.kind == object {
			t.app(in, i, len(items), taken)
		} else {
			t.untaken(in, "it is not an application", "")
		}
	}
	if len(t.out.list("namespaces")) == 0 {
		t.namespace("default")
		t.out.at("pusher").set("enabled", false, "there is no application: add one to apps")
	}
}

// appKey finds a key of an application under any of its spellings.
func appKey(in *node, camel, snake string) string {
	for _, key := range []string{camel, snake, "App" + camel} {
		if in.child(key) != nil {
			return key
		}
	}
	return camel
}

func (t soketi) app(in *node, i, of int, taken map[string]bool) {
	id, idAt := t.text(in, appKey(in, "id", "id"))
	key, keyAt := t.text(in, appKey(in, "key", "key"))
	secret, secretAt := t.text(in, appKey(in, "secret", "secret"))
	space := "default"
	if of > 1 {
		space = spaceOf(id, i)
	}
	probe := pusher.App{ID: id, Key: key, Secret: "x", Namespace: space}
	err := pusher.Config{Enabled: true, Apps: []pusher.App{probe}}.Validate()
	switch {
	case idAt == nil || keyAt == nil || secretAt == nil:
		t.untaken(in, "an application wants id, key and secret", "")
		return
	case err != nil:
		_, why, _ := strings.Cut(err.Error(), ".")
		t.untaken(in, why, "give it another, here and in the clients")
		return
	case taken["id "+id] || taken["key "+key] || taken["space "+space]:
		t.untaken(in, "an application with that id or key is there", "")
		return
	}
	taken["id "+id], taken["key "+key], taken["space "+space] = true, true, true
	app := &section{}
	app.set("id", id, "")
	app.set("key", key, "")
	t.secret(app, "secret", secret, secretAt, "")
	if space != "default" {
		app.set("namespace", space, "each application has a namespace of its own")
	}
	t.appOptions(in, app)
	t.out.at("pusher").add("apps", app)
	t.namespace(space)
	t.appAPIKey(id, secret, space, of, secretAt)
}

// appAPIKey makes the secret a key of Weir's own API: without a key in the section auth
// Weir serves this machine alone.
func (t soketi) appAPIKey(id, secret, space string, of int, at *node) {
	if len(secret) < minAPIKey || len(secret) > 1024 {
		t.note(Security, at, fmt.Sprintf("a secret of %d bytes can be guessed", len(secret)), "give the application a new one, here and in the application")
		return
	}
	item := &section{}
	item.set("name", "app "+id, "the application may publish by Weir's own API, too, with its secret as X-API-Key; without a key here Weir serves this machine alone")
	if t.o.Redact {
		item.set("key", placeholder(at), "")
	} else {
		sum := sha256.Sum256([]byte(secret))
		item.set("sha256", hex.EncodeToString(sum[:]), "")
	}
	publish := []string{space + ":**"}
	if of == 1 {
		publish = []string{"**"}
	}
	item.set("publish", publish, "")
	t.out.at("auth").add("api_keys", item)
}

// spaceOf makes the name of a namespace from that of an application.
func spaceOf(id string, i int) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '-'
		}
	}, id)
	if len(name) > 28 || name == "" || name == "default" || name != id {
		name = fmt.Sprintf("app%d", i+1)
	}
	return name
}

// namespace adds the namespace of an application.
func (t soketi) namespace(name string) {
	ns := &section{}
	ns.set("name", name, "")
	ns.set("durability", "stored", "cache channels have their last event from the log")
	ns.set("history_size", 1, "the protocol has no history; with more, clients of other protocols can resume")
	ttl := time.Hour
	if d, at := t.span(t.root, "channelLimits.cacheTtl", time.Second); at != nil && d >= time.Second {
		ttl = d
	}
	ns.set("history_ttl", ttl, "")
	if ttl < 2*time.Minute {
		ns.set("idempotency_window", ttl, "")
	}
	size := t.maxEvent()
	ns.set("max_message_bytes", size+size/4+4096, "an event with its name")
	if q := 4 * (size + size/4 + 4096); q > 256<<10 {
		ns.set("queue_bytes", q, "")
	}
	t.out.add("namespaces", ns)
}

// maxEvent is the most that the data of an event may have.
func (t soketi) maxEvent() int {
	kb := 100.0
	if n := t.root.at("eventLimits.maxPayloadInKb"); n != nil {
		if f, err := strconv.ParseFloat(n.value, 64); err == nil && f > 0 {
			kb = f
		}
	}
	return int(min(max(kb*1024, 1024), 800<<10))
}

// appOptions translates what an application may do.
func (t soketi) appOptions(in *node, app *section) {
	if on, at := t.flag(in, appKey(in, "enabled", "enabled")); at != nil && !on {
		app.set("enabled", false, "")
	}
	t.moveFlag(in, appKey(in, "enableClientMessages", "enable_client_messages"), app, "client_events")
	if n, at := t.number(in, appKey(in, "maxConnections", "max_connections")); at != nil && n > 0 {
		app.set("max_connections", n, "")
	}
	if on, at := t.flag(in, appKey(in, "enableUserAuthentication", "enable_user_authentication")); on {
		d, timeAt := t.span(t.root, "userAuthenticationTimeout", time.Millisecond)
		if timeAt == nil || d <= 0 {
			d = 30 * time.Second
		}
		says := "subscribing to a private or presence channel will do instead of signing in"
		app.set("authorize_within", d, says)
		t.changed(at, "%s", says)
	} else if n := t.root.at("userAuthenticationTimeout"); n != nil {
		n.markUsed() // no client has to sign in
	}
	if n, at := t.number(in, appKey(in, "maxClientEventsPerSecond", "max_client_events_per_sec")); at != nil && n > 0 {
		p := t.out.at("pusher")
		if have, _ := p.get("client_event_rate").(int); n > have {
			p.set("client_event_rate", n, "of each connection, as in soketi; the same for all applications")
		}
		t.changed(at, "pusher.client_event_rate is the same for all applications; the highest counts")
	}
	if on := app.get("client_events"); on == true && t.out.at("pusher").get("client_event_rate") == nil {
		t.out.at("pusher").set("client_event_rate", 100, "soketi had no bound here; message_rate bounds all that a connection sends")
		t.changed(in.child(appKey(in, "enableClientMessages", "enable_client_messages")), "client events have a bound in Weir: pusher.client_event_rate of each connection")
	}
	for _, k := range [][2]string{{"maxBackendEventsPerSecond", "max_backend_events_per_sec"}, {"maxReadRequestsPerSecond", "max_read_req_per_sec"}, {"maxConnections", "max_connections"}, {"maxClientEventsPerSecond", "max_client_events_per_sec"}} {
		if n := in.child(appKey(in, k[0], k[1])); n != nil && strings.HasPrefix(n.value, "-") {
			n.markUsed() // no bound there as well
		}
	}
	t.webhooks(in, app)
}

// webhooks translates the webhooks of an app.
func (t soketi) webhooks(in *node, app *section) {
	hooks := in.child(appKey(in, "webhooks", "webhooks"))
	if hooks != nil {
		if j, ok := inlineJSON(hooks); ok {
			*hooks = *j
		}
	}
	for _, h := range itemsOf(hooks) {
		address, at := t.text(h, "url")
		if at == nil {
			t.untaken(h, "webhooks go to an address; a Lambda is not called", "give the function a URL")
			continue
		}
		events, _ := t.texts(h, "event_types")
		item := &section{}
		item.set("url", address, "")
		var taken []string
		for _, e := range events {
			if err := checkHook(pusher.Webhook{URL: "http://x", Events: []string{e}}); err != nil {
				t.note(Untaken, h.at("event_types"), fmt.Sprintf("%.40q is not an event that there is", printable(e)), "")
			} else if !slices.Contains(taken, e) {
				taken = append(taken, e)
			}
		}
		if err := checkHook(pusher.Webhook{URL: address}); err != nil || len(events) > 0 && len(taken) == 0 {
			t.untaken(h, "it is not an address, or wants no event that there is", "pusher.apps[].webhooks")
			continue
		}
		if len(taken) > 0 {
			item.set("events", taken, "")
		}
		t.moveText(h, "filter.channel_name_starts_with", item, "channel_prefix")
		t.moveText(h, "filter.channel_name_ends_with", item, "channel_suffix")
		if headers := h.at("headers"); headers != nil {
			to := &section{}
			to.at("headers")
			t.staticHeaders(headers, to)
			if fields, ok := to.get("static_headers").(*section); ok {
				item.set("headers", fields, "")
			}
		}
		app.add("webhooks", item)
	}
}

func checkHook(w pusher.Webhook) error {
	return pusher.Config{Enabled: true, Apps: []pusher.App{{ID: "a", Key: "b", Secret: "c", Webhooks: []pusher.Webhook{w}}}}.Validate()
}

// limits translates bounds.
func (t soketi) limits() {
	p := t.out.at("pusher")
	t.root.at("eventLimits.maxPayloadInKb").markUsed()
	p.set("max_event_data", t.maxEvent(), "")
	t.moveNumber(t.root, "eventLimits.maxChannelsAtOnce", p, "max_channels", 1, 10_000)
	t.moveNumber(t.root, "eventLimits.maxBatchSize", p, "max_batch", 1, 1000)
	t.moveNumber(t.root, "presence.maxMembersPerChannel", p, "max_members", 1, 1_000_000)
	if kb, at := t.number(t.root, "presence.maxMemberSizeInKb"); at != nil && kb > 0 {
		p.set("max_member_data", min(kb, 32)*1024, "")
	}
	if on, _ := t.flag(t.root, "webhooks.batching.enabled"); on {
		t.moveSpan(t.root, "webhooks.batching.duration", time.Millisecond, p, "webhook_window")
	} else if n := t.root.at("webhooks.batching.duration"); n != nil {
		n.markUsed()
	}
	if on, at := t.flag(t.root, "debug"); on && at != nil {
		t.out.at("log").set("level", "debug", "")
	}
	if d, at := t.span(t.root, "shutdownGracePeriod", time.Millisecond); at != nil && d > 0 {
		t.out.at("shutdown").set("drain", d, "the longest that a drain takes")
		t.changed(at, "clients are closed one after the other over that time")
	}
}

// broker translates how nodes find each other.
func (t soketi) broker() {
	b := t.out.at("broker")
	kind, at := t.text(t.root, "adapter.driver")
	switch kind {
	case "", "local":
		b.set("kind", "memory", "as the local adapter; nats keeps what cache channels have over a restart, in ./weir-data")
	case "nats":
		b.set("kind", "nats", "")
		t.nats(b.at("nats"), at)
	case "redis", "cluster":
		says := "was " + kind + "; the log is in ./weir-data, for one node; more nodes share one by nats.url or nats.cluster"
		b.set("kind", "nats", says)
		t.changed(at, "%s", says)
	default:
		t.untaken(at, fmt.Sprintf("%.40q is not an adapter", kind), "broker.kind is nats or memory")
		b.set("kind", "memory", "")
	}
}

func (t soketi) nats(to *section, kind *node) {
	in := t.root.at("adapter.nats")
	servers, at := t.texts(in, "servers")
	if len(servers) == 0 {
		servers, at = []string{"127.0.0.1:4222"}, kind
	}
	for i, s := range servers {
		if !strings.Contains(s, "://") {
			servers[i] = "nats://" + s
		}
	}
	if !t.natsURL(to, strings.Join(servers, ","), at) {
		return
	}
	t.moveText(in, "user", to, "user")
	for _, key := range [][2]string{{"pass", "password"}, {"token", "token"}} {
		if s, at := t.text(in, key[0]); at != nil {
			t.secret(to, key[1], s, at, "")
		}
	}
	t.natsPrefix(in, to)
}

// listeners translates where it listens.
func (t soketi) listeners() {
	host, _ := t.text(t.root, "host")
	port, at := t.text(t.root, "port")
	cert, certAt := t.text(t.root, "ssl.certPath")
	key, _ := t.text(t.root, "ssl.keyPath")
	tls := tlsNone
	if pass, passAt := t.text(t.root, "ssl.passphrase"); passAt != nil && pass != "" && certAt != nil {
		t.note(Security, passAt, "keys are read without a passphrase", "openssl pkey -in KEY -out NEW, and name that in tls.certificates")
		tls = tlsLost
	} else if certAt != nil && key != "" {
		t.out.certificate(cert, key)
		tls = tlsDone
	}
	t.listen(net.JoinHostPort(anyHost(host), cmp.Or(port, "6001")), at, tls)
	if on, onAt := t.flag(t.root, "metrics.enabled"); on {
		mhost, _ := t.text(t.root, "metrics.host")
		mport, mAt := t.text(t.root, "metrics.port")
		t.adminListen(t.out.at("admin"), net.JoinHostPort(anyHost(mhost), cmp.Or(mport, "9601")), cmp.Or(mAt, onAt))
		t.changed(onAt, "metrics are at /metrics of the admin listener, under Weir's own names")
	} else if m := t.root.at("metrics"); m != nil {
		m.markUsed() // off there as well
	}
}

// anyHost is host, or "" for all of IPv4, so that Weir listens on IPv6 as well.
func anyHost(host string) string {
	if host == "0.0.0.0" {
		return ""
	}
	return host
}
