package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Validate returns everything that is wrong with c, joined, each part led by
// the path of the key or section it is about. It expects c completed, as Load
// and Default give it.
func (c Config) Validate() error {
	var all []error
	for _, f := range fieldsOf(reflect.TypeFor[Config]()) {
		all = append(all, validate(f.key, reflect.ValueOf(c).FieldByIndex(f.index))...)
	}
	all = append(all, checkListen("listen", c.Listen), checkNamespaces(c.Namespaces, c.Broker.Kind), c.checkExposure(), checkAdmin(c.Admin), checkExtensions(c))
	if c.Downstream.HTTP3 {
		all = append(all, checkHTTP3(c.TLS))
	}
	if c.Pushes() {
		all = append(all, c.checkProtocols(), c.checkPaths(), c.checkSources())
	} else {
		all = append(all, c.checkPushes(), c.checkKeySets())
	}
	return errors.Join(all...)
}

// validate calls the outermost section on each path that has a Validate; it
// speaks for what it holds.
func validate(path string, v reflect.Value) []error {
	var all []error
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			all = validate(path, v.Elem())
		}
	case shapeOf(v.Type()) == section:
		if x, ok := v.Interface().(interface{ Validate() error }); ok {
			for _, err := range Problems(x.Validate()) {
				all = append(all, at(path, err))
			}
			return all
		}
		for _, f := range fieldsOf(v.Type()) {
			all = append(all, validate(join(path, f.key), v.FieldByIndex(f.index))...)
		}
	case shapeOf(v.Type()) == list:
		for i := range v.Len() {
			all = append(all, validate(fmt.Sprintf("%s[%d]", path, i), v.Index(i))...)
		}
	case shapeOf(v.Type()) == mapping:
		for _, k := range sortedKeys(v) {
			all = append(all, validate(join(path, k.String()), v.MapIndex(k))...)
		}
	}
	return all
}

// at leads err with the path of what it is about; its hint stays reachable.
// Errors that already start with it are left alone.
func at(path string, err error) error {
	if strings.HasPrefix(err.Error(), path+".") || strings.HasPrefix(err.Error(), path+"[") {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// without is err with a start less that the path says already.
func without(start string, err error) error {
	return &reworded{err, strings.TrimPrefix(err.Error(), start)}
}

type reworded struct {
	error
	text string
}

func (e *reworded) Error() string { return redact.Text(e.text) }
func (e *reworded) Unwrap() error { return e.error }

// oneOf reports a value that is none of the allowed ones.
func oneOf(key, have string, allowed ...string) error {
	if slices.Contains(allowed, have) {
		return nil
	}
	err := fmt.Errorf("%s: %.40q is none of %s", key, have, strings.Join(allowed, ", "))
	if s := nearest(have, allowed); s != "" {
		return WithHint(err, "did you mean "+s+"?")
	}
	return err
}

// checkListen wants "host:port" with a numeric port; the host may be empty (all
// addresses), a literal address or a name.
func checkListen(key, addr string) error {
	const hint = "write host:port, for example 127.0.0.1:8000 or :8000"
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return WithHint(fmt.Errorf("%s: %.60q is not an address", key, addr), hint)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return WithHint(fmt.Errorf("%s: %.60q: the port is not within 0..65535", key, addr), hint)
	}
	return nil
}

// Loopback reports whether addr, "host:port", can be reached from this machine
// alone: a loopback address or the name localhost.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// HasKeys reports whether anything in auth or key_sets can let someone in.
func (c Config) HasKeys() bool {
	a := c.Auth
	return len(c.KeySets) > 0 || a.HMACSecret != "" || a.HMACSecretFile != "" || a.JWKSURL != "" ||
		len(a.PublicKeys) > 0 || len(a.APIKeys) > 0
}

// checkExposure keeps a server that cannot distinguish its clients on this machine, unless
// it has no channels: what routes let through is said there.
func (c Config) checkExposure() error {
	if Loopback(c.Listen) || checkListen("listen", c.Listen) != nil {
		return nil
	}
	if short := c.Auth.ShortKeys(); len(short) > 0 {
		return WithHint(fmt.Errorf("%s: under 16 bytes, and listen: %s can be reached from other machines", strings.Join(short, ", "), c.Listen),
			"make a key with: head -c 24 /dev/urandom | base64 -w0; or listen on 127.0.0.1")
	}
	if c.HasKeys() || !c.Pushes() {
		return nil
	}
	return WithHint(
		fmt.Errorf("listen: %s can be reached from other machines and there are no keys", c.Listen),
		"set auth.hmac_secret (WEIR_AUTH_HMAC_SECRET), auth.public_keys, auth.jwks_url or auth.api_keys; or listen on 127.0.0.1")
}

// checkHTTP3 wants TLS for HTTP/3, which has no other form.
func checkHTTP3(c tlsterm.Config) error {
	switch {
	case !c.Enabled():
		return WithHint(errors.New("downstream: http3: there is no TLS"), "set tls.certificates, or downstream.http3 to false")
	case c.MaxVersion == "1.2":
		return WithHint(errors.New("downstream: http3: it needs TLS 1.3, and tls.max_version is 1.2"), "leave tls.max_version out")
	}
	return nil
}

// checkAdmin wants an address, and keeps a listener without authentication on this machine.
func checkAdmin(a admin.Config) error {
	if !a.Enabled() {
		return nil
	}
	if err := checkListen("admin: listen", a.Listen); err != nil {
		return err
	}
	if a.Guarded() || admin.Loopback(a.Listen) {
		return nil
	}
	return WithHint(fmt.Errorf("admin: listen: %s can be reached from other machines and there is neither a token nor oidc", a.Listen),
		"set admin.token (WEIR_ADMIN_TOKEN) or admin.token_file, make one with: head -c 24 /dev/urandom | base64 -w0; or admin.oidc; or listen on 127.0.0.1")
}

// Validate wants a known level and format.
func (l Log) Validate() error {
	return errors.Join(
		oneOf("level", l.Level, "debug", "info", "warn", "error"),
		oneOf("format", l.Format, "text", "json"))
}

// Validate wants a drain time that an orchestrator would wait for.
func (s Shutdown) Validate() error {
	if s.Drain < 0 {
		return fmt.Errorf("drain: %v is negative", s.Drain)
	}
	return nil
}

// checkNamespaces is about the list as a whole.
func checkNamespaces(list []hub.Namespace, broker string) error {
	var all []error
	first := map[string]int{}
	for i, ns := range list {
		if j, dup := first[ns.Name]; dup {
			all = append(all, fmt.Errorf("namespaces[%d]: name: %q is taken by namespaces[%d]", i, ns.Name, j))
			continue
		}
		first[ns.Name] = i
		if err := new(limit.Class).UnmarshalText([]byte(ns.Class)); err != nil {
			all = append(all, fmt.Errorf("namespaces[%d]: class: %w", i, err))
		}
		if broker == BrokerMemory && ns.Durability == hub.Synced {
			all = append(all, WithHint(
				fmt.Errorf("namespaces[%d]: durability: the memory broker cannot keep %q", i, hub.Synced),
				"set broker.kind to nats, or the durability to stored"))
		}
	}
	return errors.Join(all...)
}

// checkProtocols is about namespaces that the sections of protocols name.
func (c Config) checkProtocols() error {
	var all []error
	want := func(key, name string) {
		if name != "" && !hasNamespace(c.Namespaces, name) {
			all = append(all, WithHint(fmt.Errorf("%s: there is no namespace %q", key, name), "add it to namespaces: - name: "+name))
		}
	}
	if c.Pusher.Enabled {
		for i, app := range c.Pusher.Apps {
			want(fmt.Sprintf("pusher.apps[%d].namespace", i), app.Namespace)
		}
	}
	if name := c.Mercure.WithDefaults().Namespace; c.Mercure.Enabled {
		for _, ns := range c.Namespaces {
			if ns.Name == name && ns.Partitions > 1 {
				all = append(all, WithHint(fmt.Errorf("mercure.namespace: %q has %d partitions, and a hub's topics have one order", name, ns.Partitions),
					"set partitions: 1 for it, or give mercure a namespace of its own"))
			}
		}
	}
	all = append(all, c.checkKeySets())
	if c.Centrifuge.Enabled {
		for _, name := range slices.Sorted(maps.Keys(c.Centrifuge.Namespaces)) {
			want("centrifuge.namespaces."+name, name)
		}
		want("centrifuge.personal_namespace", c.Centrifuge.PersonalNamespace)
		if c.Centrifuge.RPCSubject != "" && c.Broker.Kind == BrokerMemory {
			all = append(all, WithHint(errors.New("centrifuge.rpc_subject: the memory broker has no subjects"), "set broker.kind to nats, or use centrifuge.proxies.rpc"))
		}
		if ch := c.Centrifuge.EventsChannel; ch != "" {
			want("centrifuge.events_channel", hub.NamespaceOf(ch))
		}
	}
	if prefix := strings.TrimSuffix(c.Centrifuge.APIPrefix, "/"); c.Centrifuge.Enabled && c.Pusher.Enabled && (prefix == "/apps" || prefix == "/app") {
		all = append(all, fmt.Errorf("centrifuge.api_prefix: %s is Pusher's", prefix))
	}
	for i, r := range c.Routes {
		if r.Mercure && !c.Mercure.Enabled {
			all = append(all, WithHint(fmt.Errorf("routes[%d].mercure: there is no Mercure hub to announce", i), "set mercure.enabled: true"))
		}
	}
	return errors.Join(all...)
}

// checkExtensions wants names of their own, and routes and namespaces that exist.
func checkExtensions(c Config) error {
	return extension.CheckAll(c.Extensions, func(name string) bool {
		return slices.ContainsFunc(c.Routes, func(r policy.RouteConfig) bool { return r.WithDefaults().Name == name })
	}, func(name string) bool { return hasNamespace(c.Namespaces, name) })
}

// checkKeySets wants the key sets that protocols name.
func (c Config) checkKeySets() error {
	var all []error
	want := func(key, name string) {
		if _, ok := c.KeySets[name]; name == "" || ok {
			return
		}
		err, names := fmt.Errorf("%s: there is no key set %.40q", key, name), slices.Sorted(maps.Keys(c.KeySets))
		if s := nearest(name, names); s != "" {
			all = append(all, WithHint(err, "did you mean "+s+"?"))
			return
		}
		all = append(all, WithHint(err, fmt.Sprintf("add it: key_sets: {%s: {hmac_secret_file: …}}; or leave %s out for the keys of auth", name, key)))
	}
	want("centrifuge.keys", c.Centrifuge.Keys)
	want("centrifuge.subscription_keys", c.Centrifuge.SubscriptionKeys)
	want("mercure.publisher_keys", c.Mercure.PublisherKeys)
	want("mercure.subscriber_keys", c.Mercure.SubscriberKeys)
	for i, iss := range c.Mercure.Issuers {
		want(fmt.Sprintf("mercure.issuers[%d].keys", i), iss.Keys)
	}
	return errors.Join(all...)
}

// Validate wants a known kind and what that kind needs.
func (b Broker) Validate() error {
	all := []error{oneOf("kind", b.Kind, BrokerNATS, BrokerMemory, BrokerNone)}
	if b.Kind == BrokerNATS {
		for _, err := range Problems(b.NATS.Validate()) {
			all = append(all, at("nats", without("nats broker: ", err)))
		}
	}
	return errors.Join(all...)
}
