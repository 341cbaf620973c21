package migrate

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// broker translates the engine.
func (t centrifugo) broker() {
	b := t.out.at("broker")
	kind, at := t.text(t.root, "engine.type")
	if other, otherAt := t.text(t.root, "broker.type"); otherAt != nil {
		if on, onAt := t.flag(t.root, "broker.enabled"); on || onAt == nil {
			kind, at = other, otherAt
		}
	}
	t.presenceManager()
	switch kind {
	case "", "memory":
		b.set("kind", "memory", "as the memory engine: history ends with the process; nats keeps it, in ./weir-data")
		return
	case "nats":
		b.set("kind", "nats", "")
		t.natsBroker(b.at("nats"), at)
		return
	case "redis", "redisnats", "postgres", "tarantool":
		says := "was " + kind + "; the log is in ./weir-data, for one node; more nodes share one by nats.url or nats.cluster"
		b.set("kind", "nats", says)
		t.changed(at, "%s", says)
	default:
		t.untaken(at, fmt.Sprintf("%.40q is not an engine", kind), "broker.kind is nats or memory")
	}
	if n := t.root.at("broker.nats"); n != nil && kind == "redisnats" {
		t.natsBroker(b.at("nats"), at)
	}
}

func (t centrifugo) presenceManager() {
	if kind, at := t.text(t.root, "presence_manager.type"); at != nil && kind != "memory" {
		t.changed(at, "presence is kept by the nodes themselves, over the broker")
	}
	if _, at := t.flag(t.root, "presence_manager.enabled"); at != nil {
		at.markUsed()
	}
}

// natsBroker translates where NATS is.
func (t centrifugo) natsBroker(to *section, kind *node) {
	in := t.root.at("broker.nats")
	address, at := t.text(in, "url")
	if at == nil {
		address, at = "nats://127.0.0.1:4222", kind
	}
	if t.natsURL(to, address, at) {
		t.natsPrefix(in, to)
	}
}

// natsURL sets the address of NATS, or addresses separated by commas.
func (t *translation) natsURL(to *section, address string, at *node) bool {
	for u := range strings.SplitSeq(address, ",") {
		if p, err := url.Parse(strings.TrimSpace(u)); err != nil || p.Host == "" {
			t.untaken(at, "it is not an address of NATS", "broker.nats.url")
			return false
		}
	}
	const says = "needs JetStream there: the log is kept in it"
	if t.o.Redact && strings.Contains(address, "@") {
		t.secrets++
		address = "nats://replace-me:replace-me@127.0.0.1:4222"
	}
	to.set("url", address, says)
	t.changed(at, "broker.nats.url %s", says)
	return true
}

func (t *translation) natsPrefix(in *node, to *section) {
	prefix, at := t.text(in, "prefix")
	if at == nil {
		return
	}
	if len(prefix) <= 32 && regexp.MustCompile(`^[A-Za-z0-9_]+$`).MatchString(prefix) {
		to.set("prefix", prefix, "the subjects are Weir's own: others do not find Centrifugo's there")
		t.changed(at, "subjects and streams start with it, but are not those of Centrifugo")
		return
	}
	t.untaken(at, "a prefix is 1 to 32 letters, digits and _", "broker.nats.prefix")
}

// namespaces translates the options of channels.
func (t centrifugo) namespaces() {
	without := t.root.at("channel.without_namespace")
	if without == nil {
		without = &node{kind: object}
	}
	t.namespace(hub.DefaultNamespace, without)
	names := []string{hub.DefaultNamespace}
	list := t.root.at("channel.namespaces")
	if list != nil && list.kind != 0 && list.items == nil && list.value != "" {
		t.untaken(list, "it is not a list of namespaces", "")
	}
	for _, in := range itemsOf(list) {
		if in.kind != object {
			t.untaken(in, "it is not a namespace", "")
			continue
		}
		name, at := t.text(in, "name")
		switch {
		case at == nil:
			t.untaken(in, "a namespace without a name", "")
		case slices.Contains(names, name):
			t.untaken(in, fmt.Sprintf("channels of %q are in the namespace that channels without one have in Weir, or it is there twice", name), "give it another name")
		case !namespaceName(name):
			t.note(Untaken, at, fmt.Sprintf("%.60q is not a name: want 1 to 32 bytes of A-Z, a-z, 0-9, _ and -; its channels are not served", name), "give it another name, and its channels")
			in.markUsed()
		default:
			names = append(names, name)
			t.namespace(name, in)
		}
	}
	if s, at := t.text(t.root, "client.subscribe_to_user_personal_channel.personal_channel_namespace"); slices.Contains(names, s) {
		t.out.at("centrifuge").set("personal_namespace", s, "")
	} else if at != nil {
		t.untaken(at, "there is no such namespace", "centrifuge.personal_namespace")
	}
}

func itemsOf(n *node) []*node {
	if n == nil {
		return nil
	}
	return n.items
}

// namespace translates the options of one.
func (t centrifugo) namespace(name string, in *node) {
	ns := &section{}
	ns.set("name", name, "")
	t.out.add("namespaces", ns)
	size, sizeAt := t.number(in, "history_size")
	ttl, ttlAt := t.span(in, "history_ttl", time.Nanosecond)
	t.history(ns, size, ttl, cmp.Or(sizeAt, ttlAt))
	if size <= 0 || ttl <= 0 {
		t.withoutHistory(in)
	} else {
		t.changed(nil, "offsets rise along a channel, but are not dense: the log is the namespace's; SDKs keep the newest, code that counts by offsets is to be changed")
	}

	to := &section{}
	for _, key := range sameOptions {
		t.moveFlag(in, key, to, key)
	}
	if s, at := t.text(in, "force_recovery_mode"); s == "stream" || s == "cache" {
		to.set("force_recovery_mode", s, "")
	} else if at != nil {
		t.untaken(at, "it is neither stream nor cache", "")
	}
	if kinds, at := t.texts(in, "allowed_delta_types"); slices.Contains(kinds, "fossil") {
		to.set("allow_delta", true, "")
	} else if len(kinds) > 0 {
		t.untaken(at, "there is fossil alone", "")
	}
	if s, at := t.text(in, "channel_regex"); at != nil {
		if _, err := regexp.Compile(s); err != nil {
			t.note(Security, at, "left out, any name is allowed: "+err.Error(), "centrifuge.namespaces."+name+".channel_regex")
		} else {
			to.set("channel_regex", s, "")
		}
	}
	t.dataFormat(in, to)
	if kind, at := t.text(in, "subscription_type"); at != nil && kind != "stream" {
		at.used = false // said by its reason
	}
	centrifugoBackends(t).eventProxies(name, in, to)
	if !to.empty() {
		t.out.at("centrifuge.namespaces").set(name, to, "")
	}
}

// withoutHistory names the options that request recovery where nothing is kept.
func (t centrifugo) withoutHistory(in *node) {
	for _, key := range []string{"force_recovery", "allow_recovery", "force_positioning", "allow_positioning", "auto_cache_recover"} {
		if on, at := t.flag(in, key); on {
			t.changed(at, "without history_size and history_ttl subscriptions are neither recoverable nor positioned: Centrifugo grants both, and recovers nothing")
		}
	}
}

func (t centrifugo) dataFormat(in *node, to *section) {
	s, at := t.text(in, "publication_data_format")
	if at == nil {
		s, at = t.text(t.root, "channel.publication_data_format")
	}
	switch s {
	case "":
	case "json", "json_object", "binary":
		to.set("publication_data_format", s, "")
	default:
		t.untaken(at, "it is none of json, json_object and binary", "")
	}
}

// centrifugoBackends translates the backends that Centrifugo calls.
type centrifugoBackends struct{ *translation }

// eventProxies translates for which events of a namespace's channels a backend is asked.
func (t centrifugoBackends) eventProxies(name string, in *node, to *section) {
	for _, event := range []string{"subscribe", "publish", "sub_refresh"} {
		which, at := t.wanted(in, event+"_")
		if at == nil {
			continue
		}
		if !t.useProxy(event, which, at) {
			t.note(Security, at, "the backend is not queried for channels of namespace "+name+": what namespace and token allow counts", "")
			continue
		}
		to.set(event+"_proxy", true, "")
	}
}

// wanted returns the name of the proxy that in has switched on by keys with a prefix, and where; nil
// if none is.
func (t centrifugoBackends) wanted(in *node, prefix string) (name string, at *node) {
	on, at := t.flag(in, prefix+"proxy_enabled")
	name, nameAt := t.text(in, prefix+"proxy_name")
	if at == nil && nameAt != nil && t.root.at("granular_proxy_mode") != nil { // the granular mode of 5: the name switches it on
		on, at = true, nameAt
	}
	if !on {
		return "", nil
	}
	return cmp.Or(name, defaultProxy), at
}

// defaultProxy is the name of the one configured beside its event.
const defaultProxy = "default"

// proxyAt returns the options of a proxy: of those with a name, or of the one beside
// the event.
func (t centrifugoBackends) proxyAt(event, name string) *node {
	if name == defaultProxy {
		if p := t.root.at(centrifugoProxies[event]); p.at("endpoint") != nil {
			return p
		}
	}
	for _, p := range itemsOf(t.root.at("proxies")) {
		if n := p.at("name"); n != nil && n.value == name {
			n.markUsed()
			return p
		}
	}
	return nil
}

// useProxy makes a proxy the one that is asked for an event. There is one for each:
// it reports false if it is another.
func (t centrifugoBackends) useProxy(event, name string, at *node) bool {
	all := t.out.at("centrifuge.proxies")
	p := t.proxyAt(event, name)
	if p == nil {
		t.note(Untaken, at, fmt.Sprintf("there is no proxy %.60q", name), "centrifuge.proxies."+event)
		return false
	}
	endpoint, endpointAt := t.text(p, "endpoint")
	if have, ok := all.get(event).(*section); ok && have.get("endpoint") != nil {
		if have.get("endpoint") == endpoint {
			return true
		}
		t.note(Untaken, at, "there is one backend for each event, and "+event+" has one", "let that backend distinguish channels")
		return false
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		t.note(Untaken, endpointAt, "backends are queried by HTTP, and this is no such address", "centrifuge.proxies."+event+".endpoint")
		return false
	}
	to := all.at(event)
	if u.User != nil {
		t.secrets++
		if t.o.Redact {
			u.User = url.UserPassword("replace-me", "replace-me")
			endpoint = u.String()
		}
	}
	to.set("endpoint", endpoint, "")
	t.proxyOptions(p, to)
	return true
}

func (t centrifugoBackends) proxyOptions(p *node, to *section) {
	if d, at := t.span(p, "timeout", time.Nanosecond); at != nil && d > 0 {
		to.set("timeout", d, "")
	}
	headers, at := t.texts(p, "http_headers")
	if at == nil {
		headers, at = t.texts(t.root, "proxy_http_headers")
	}
	headers = t.headerNames(headers, at)
	if more, moreAt := t.texts(p, "emulated_headers"); len(more) > 0 {
		headers = append(headers, t.headerNames(more, moreAt)...)
		t.changed(moreAt, "a client may name any of http_headers in its connect command: one list for both")
	}
	if len(headers) > 0 {
		to.set("http_headers", headers, "")
	}
	meta, metaAt := t.flag(p, "include_connection_meta")
	if metaAt == nil {
		meta, _ = t.flag(t.root, "proxy_include_connection_meta")
	}
	if meta {
		to.set("include_connection_meta", true, "")
	}
	static := p.at("http.static_headers")
	if static == nil {
		static = t.root.at("proxy_static_http_headers")
	}
	t.staticHeaders(static, to)
}

// headerNames are those of names that are some.
func (t centrifugoBackends) headerNames(names []string, at *node) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		bad := !httpguts.ValidHeaderFieldName(name)
		if bad {
			t.untaken(at, "there is one that is the name of no header field", "")
		}
		return bad
	})
}

// staticHeaders translates header fields: an object, or a list of key and value.
func (t *translation) staticHeaders(in *node, to *section) {
	if in == nil {
		return
	}
	set := func(name, value string, at *node) {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			t.untaken(at, "it is not a header field", "")
			return
		}
		if strings.EqualFold(name, "authorization") || strings.Contains(strings.ToLower(name), "key") || strings.Contains(strings.ToLower(name), "token") {
			t.secret(to.at("static_headers"), name, value, at, "")
			return
		}
		to.at("static_headers").set(name, value, "")
	}
	for _, f := range in.fields {
		if v, at := t.scalar(f.value); at != nil {
			set(f.key, v, at)
		}
	}
	for _, item := range in.items {
		k, at := t.text(item, "key")
		v, _ := t.text(item, "value")
		if at != nil {
			set(k, v, at)
		}
	}
}

// proxies translates the backends that are asked whatever the channel.
func (t centrifugoBackends) proxies() {
	for _, event := range []string{"connect", "refresh"} {
		in := t.root.at(centrifugoProxies[event])
		on, at := t.flag(in, "enabled")
		name, nameAt := t.text(t.root, "client.proxy."+event+"_name")
		switch {
		case nameAt != nil:
			t.useProxy(event, name, nameAt)
		case at == nil && of5(in.at("endpoint")):
			t.useProxy(event, defaultProxy, in.at("endpoint"))
		case on:
			t.useProxy(event, defaultProxy, at)
		}
	}
	t.rpcProxy()
}

// of5 reports whether an endpoint is one of Centrifugo 5, where it switches the proxy
// on; in 6 there is a key for that.
func of5(endpoint *node) bool {
	if endpoint == nil || endpoint.value == "" {
		return false
	}
	return strings.HasPrefix(strings.TrimPrefix(strings.ToLower(endpoint.where), "centrifugo_"), "proxy_")
}

func (t centrifugoBackends) rpcProxy() {
	used := false
	for _, in := range append([]*node{t.root.at("rpc.without_namespace")}, itemsOf(t.root.at("rpc.namespaces"))...) {
		if name, at := t.wanted(in, ""); at != nil {
			used = t.useProxy("rpc", name, at) || used
		}
	}
	if e := t.root.at("rpc.proxy.endpoint"); !used && of5(e) {
		t.useProxy("rpc", defaultProxy, e)
	}
	for _, name := range []string{"proxy_http_headers", "proxy_static_http_headers", "proxy_include_connection_meta"} {
		if n := t.root.at(name); n != nil {
			n.markUsed() // taken by those that are there
		}
	}
}
