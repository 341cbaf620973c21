package migrate

import (
	"maps"
	"slices"
	"strings"
)

// Centrifugo 6 has sections where 5 has words joined by underscores. centrifugoKeys
// are the keys of 5 and where they stand in 6. A key that both have is one of 5 if its
// value is not a section.
var centrifugoKeys = func() map[string]string {
	m := map[string]string{
		"address": "http_server.address", "port": "http_server.port",
		"internal_address": "http_server.internal_address", "internal_port": "http_server.internal_port",
		"tls_cert": "http_server.tls.cert_pem", "tls_key": "http_server.tls.key_pem", "tls": "http_server.tls.enabled",
		"tls_cert_pem": "http_server.tls.cert_pem", "tls_key_pem": "http_server.tls.key_pem",
		"tls_client_ca": "http_server.tls.client_ca_pem", "tls_client_ca_pem": "http_server.tls.client_ca_pem",
		"tls_root_ca": "http_server.tls.server_ca_pem", "tls_root_ca_pem": "http_server.tls.server_ca_pem",
		"tls_server_name": "http_server.tls.server_name", "tls_insecure_skip_verify": "http_server.tls.insecure_skip_verify",
		"tls_external": "http_server.tls_external", "http3": "http_server.http3.enabled",
		"tls_autocert": "http_server.tls_autocert.enabled",
		"log_level":    "log.level", "log_file": "log.file", "name": "node.name",
		"node_info_metrics_aggregate_interval": "node.info_metrics_aggregate_interval",
		"engine":                               "engine.type", "broker": "broker.type", "pid_file": "pid_file",
		"api_key": "http_api.key", "api_insecure": "http_api.insecure", "api_error_mode": "http_api.error_mode",
		"api_external": "http_api.external", "api_disable": "http_api.disabled", "api_handler_prefix": "http_api.handler_prefix",
		"separate_subscription_token_config": "client.subscription_token.enabled",
		"allowed_origins":                    "client.allowed_origins", "ping_interval": "client.ping_interval", "pong_timeout": "client.pong_timeout",
		"allow_anonymous_connect_without_token": "client.allow_anonymous_connect_without_token",
		"disallow_anonymous_connection_tokens":  "client.disallow_anonymous_connection_tokens",
		"user_subscribe_to_personal":            "client.subscribe_to_user_personal_channel.enabled",
		"user_personal_channel_namespace":       "client.subscribe_to_user_personal_channel.personal_channel_namespace",
		"user_personal_single_connection":       "client.subscribe_to_user_personal_channel.single_connection",
		"global_history_meta_ttl":               "channel.history_meta_ttl", "namespaces": "channel.namespaces",
		"rpc_namespaces": "rpc.namespaces", "rpc_ping": "rpc.ping.enabled", "rpc_ping_method": "rpc.ping.method",
		"rpc_namespace_boundary": "rpc.namespace_boundary",
		"global_presence_ttl":    "engine.redis.presence_ttl",
		"redis_use_lists":        "engine.redis.history_use_lists",
		"usage_stats_disable":    "usage_stats.disabled", "shutdown_timeout": "shutdown.timeout",
		"websocket_disable": "websocket.disabled", "granular_proxy_mode": "granular_proxy_mode",
		"proxy_subscribe": "channel.without_namespace.subscribe_proxy_enabled", "proxy_publish": "channel.without_namespace.publish_proxy_enabled",
		"proxy_sub_refresh":  "channel.without_namespace.sub_refresh_proxy_enabled",
		"connect_proxy_name": "client.proxy.connect_name", "refresh_proxy_name": "client.proxy.refresh_name", "rpc_proxy_name": "rpc.without_namespace.proxy_name",
	}
	for _, p := range []struct{ from, to string }{
		{"token_", "client.token."}, {"subscription_token_", "client.subscription_token."},
		{"client_", "client."}, {"channel_", "channel."}, {"websocket_", "websocket."}, {"uni_websocket_", "uni_websocket."},
		{"uni_sse_", "uni_sse."}, {"uni_http_stream_", "uni_http_stream."}, {"sse_", "sse."}, {"http_stream_", "http_stream."},
		{"admin_", "admin."}, {"prometheus_", "prometheus."}, {"health_", "health."}, {"swagger_", "swagger."},
		{"emulation_", "emulation."}, {"graphite_", "graphite."}, {"opentelemetry_", "opentelemetry."}, {"nats_", "broker.nats."},
		{"redis_", "engine.redis."}, {"grpc_api_", "grpc_api."}, {"uni_grpc_", "uni_grpc."}, {"webtransport_", "webtransport."},
		{"tls_autocert_", "http_server.tls_autocert."},
	} {
		m[p.from+"*"] = p.to + "*"
	}
	for _, name := range []string{
		"admin", "prometheus", "health", "swagger", "debug", "sse", "http_stream", "uni_sse", "uni_http_stream", "uni_websocket",
		"uni_grpc", "grpc_api", "webtransport", "graphite", "opentelemetry",
	} {
		m[name] = name + ".enabled"
	}
	for _, name := range centrifugoOptions {
		m[name] = "channel.without_namespace." + name
	}
	for five, six := range centrifugoProxies {
		m["proxy_"+five+"_endpoint"] = six + ".endpoint"
		m["proxy_"+five+"_timeout"] = six + ".timeout"
	}
	return m
}()

// centrifugoProxies are the events for which a backend is asked.
var centrifugoProxies = map[string]string{
	"connect": "client.proxy.connect", "refresh": "client.proxy.refresh",
	"subscribe": "channel.proxy.subscribe", "publish": "channel.proxy.publish", "sub_refresh": "channel.proxy.sub_refresh",
	"rpc": "rpc.proxy", "subscribe_stream": "channel.proxy.subscribe_stream",
}

// centrifugoOptions are those of a namespace that Weir has by the same name, and
// those that are looked at besides.
var centrifugoOptions = slices.Concat(sameOptions, []string{
	"history_size", "history_ttl", "history_meta_ttl", "allowed_delta_types", "delta_publish", "channel_regex", "force_recovery_mode",
	"subscribe_proxy_name", "publish_proxy_name", "sub_refresh_proxy_name",
})

var sameOptions = []string{
	"presence", "join_leave", "force_push_join_leave", "force_recovery", "auto_cache_recover", "force_positioning", "allow_recovery", "allow_positioning",
	"allow_subscribe_for_client", "allow_subscribe_for_anonymous",
	"allow_publish_for_client", "allow_publish_for_subscriber", "allow_publish_for_anonymous",
	"allow_presence_for_client", "allow_presence_for_subscriber", "allow_presence_for_anonymous",
	"allow_history_for_client", "allow_history_for_subscriber", "allow_history_for_anonymous",
	"allow_user_limited_channels", "allow_tags_filter",
}

// optionsOf5 are keys of namespaces that have another name in 6.
var optionsOf5 = map[string]string{
	"proxy_subscribe": "subscribe_proxy_enabled", "proxy_publish": "publish_proxy_enabled", "proxy_sub_refresh": "sub_refresh_proxy_enabled",
	"proxy_subscribe_stream": "subscribe_stream_proxy_enabled", "rpc_proxy_name": "proxy_name",
	"proxy_subscribe_stream_bidirectional": "subscribe_stream_proxy_bidirectional",
}

// proxyKeysOf5 are keys of proxies, as optionsOf5.
var proxyKeysOf5 = map[string]string{"static_http_headers": "http.static_headers", "http_status_to_code_transforms": "http.status_to_code_transforms"}

// canonical6 is where Centrifugo 6 has a key of the first level.
func canonical6(key string, v *node) string {
	key = strings.ToLower(key)
	if v.kind == object && !strings.HasPrefix(key, "proxy_") {
		return key
	}
	if to, ok := centrifugoKeys[key]; ok {
		return to
	}
	best := ""
	for from := range centrifugoKeys {
		if p, ok := strings.CutSuffix(from, "*"); ok && strings.HasPrefix(key, p) && len(p) > len(best) {
			best = p
		}
	}
	if best == "" || isSection6(key) {
		return key
	}
	return strings.TrimSuffix(centrifugoKeys[best+"*"], "*") + strings.TrimPrefix(key, best)
}

// isSection6 reports whether a name is that of a list or section of 6 which looks like
// a key of 5.
func isSection6(key string) bool {
	return slices.Contains([]string{"http_api", "grpc_api", "rpc", "client", "channel"}, key)
}

// canonicalEnv6 is where Centrifugo 6 has a variable CENTRIFUGO_X. In the names
// of variables an underscore may also be the end of a section, so that it is
// found out from the sections that there are.
func canonicalEnv6(name string) string {
	name = strings.ToLower(name)
	for _, section := range envSections6 {
		if rest, ok := strings.CutPrefix(name, strings.ReplaceAll(section, ".", "_")+"_"); ok {
			return section + "." + rest
		}
	}
	return canonical6(name, &node{kind: text})
}

// envSections6 are the sections of 6, the longest first.
var envSections6 = func() []string {
	list := []string{
		"http_server.tls", "http_server.tls_autocert", "http_server.http3", "http_server", "log", "engine.redis", "engine", "broker.nats", "broker.redis", "broker",
		"presence_manager", "map_broker", "controller", "shared_poll", "client.token", "client.subscription_token",
		"client.subscribe_to_user_personal_channel", "client", "channel.without_namespace", "channel", "rpc.proxy", "rpc.without_namespace", "rpc.ping", "rpc",
		"http_api", "usage_stats", "node", "shutdown",
	}
	for p := range maps.Values(centrifugoProxies) {
		list = append(list, p, p+".http")
	}
	slices.SortFunc(list, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(list)
}()
