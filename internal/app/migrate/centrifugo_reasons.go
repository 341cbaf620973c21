package migrate

import (
	"slices"
	"strings"
)

// centrifugoReasons say of keys of Centrifugo 6 why they are not translated.
var centrifugoReasons = []reason{
	{"http_server.http3", "Weir does not speak HTTP/3", "nothing: WebSocket and streams go over HTTP/1.1 and HTTP/2"},
	{"http_server.tls_autocert", "accounts and certificates of an ACME authority are not translated", "set tls.acme (docs/howto/certificates.md), or name files in tls.certificates; they are read again when they change"},
	{"http_server.tls", "the listener's TLS has certificates and client authorities alone", ""},
	{"http_server.internal_tls", "the admin listener speaks plain HTTP", "leave it on loopback, or put a proxy with TLS before it"},
	{"http_server.tls_external", "TLS is the public listener's alone", "nothing"},
	{"http_server.h2c_external", "HTTP/2 is always served, with and without TLS", "nothing"},
	{"http_server.external_http2_extended_connect", "WebSocket over HTTP/2 is not served", "nothing: clients take HTTP/1.1 for WebSocket"},
	{"log.file", "the log goes to standard error", "redirect it, or let the service manager keep it"},
	{"engine.redis", "Weir keeps messages in NATS JetStream, in its own process or outside, not in Redis", "several nodes share a log by broker.nats.url, or by broker.nats.cluster without any other server"},
	{"engine", "there is no engine of that kind", "broker.kind is nats or memory"},
	{"broker.redis", "Weir keeps messages in NATS JetStream, in its own process or outside, not in Redis", "several nodes share a log by broker.nats.url, or by broker.nats.cluster without any other server"},
	{"broker.redisnats", "Weir keeps messages in NATS JetStream alone", "broker.nats.url"},
	{"broker.postgres", "Weir keeps messages in NATS JetStream, not in PostgreSQL", "broker.nats.url, or the server in Weir's own process"},
	{"broker.nats.allow_wildcards", "subscribing to patterns of channels is not available", "subscribe to the channels that are meant, several on a connection"},
	{"broker.nats.raw_mode", "what others publish into NATS subjects is not forwarded", "publish by the server API, or by POST /api/publish"},
	{"broker.nats.dial_timeout", "Weir has a bound of its own", "broker.nats.ack_timeout bounds a publish"},
	{"broker.nats.write_timeout", "Weir has a bound of its own", "broker.nats.ack_timeout bounds a publish"},
	{"broker.nats.tls", "only files are taken", "broker.nats.tls.ca, cert and key"},
	{"broker.nats", "the broker is not nats", "broker.kind: nats, broker.nats.url"},
	{"presence_manager", "presence is kept by the nodes themselves, with a lease each", "nothing, or the section presence"},
	{"map_broker", "map subscriptions are not available: requests for them are answered with error 108", "subscribe to a channel with policy conflate and keys, or to one in cache recovery mode"},
	{"controller", "nodes find each other by the broker", "nothing"},
	{"shared_poll", "shared poll subscriptions are not available: requests for them are answered with error 108", "publish when something changes"},
	{"client.token.hmac_previous_secret_key_valid_until", "the previous secret is valid for as long as it is in the file", "take auth.hmac_previous_secret out by then"},
	{"client.subscription_token.hmac_previous_secret_key_valid_until", "the previous secret is valid for as long as it is in the file", "take it out by then"},
	{"client.token.audience_regex", "the audience is compared, not matched", "list them in auth.audience"},
	{"client.token.issuer_regex", "the issuer is compared, not matched", "auth.issuer takes one"},
	{"client.token.user_id_claim", "the user is the claim sub", "have tokens with sub"},
	{"client.token.insecure_skip_jwks_endpoint_safety_check", "keys are fetched by https, or by http on loopback", "nothing"},
	{"client.subscription_token", "the user is the claim sub, audience and issuer are compared", "have tokens with sub"},
	{"client.disallow_anonymous_connection_tokens", "a token without a user is one of an anonymous user", "do not issue such tokens"},
	{"client.expired_sub_close_delay", "subscriptions have the time that connections have", "centrifuge.expired_close_delay"},
	{"client.presence_update_interval", "nodes answer for their clients' presence, not clients for their own", "nothing; cluster.lease is how long a node that died is trusted"},
	{"client.concurrency", "commands of a client are worked on in order", "nothing"},
	{"client.channel_position_check_delay", "every node reads what it missed from the log; positions are not polled", "nothing"},
	{"client.channel_position_max_time_lag", "every node reads what it missed from the log; positions are not polled", "nothing"},
	{"client.connection_rate_limit", "there is no rate of connecting for the whole server", "tls.handshake_rate bounds handshakes; routes have limits by client"},
	{"client.connect_include_server_time", "the connect reply has no time", "have the application send it"},
	{"client.insecure_skip_token_signature_verify", "signatures are always verified", "set the keys of the issuer"},
	{"client.user_id_http_header", "a header is not treated as who a user is", "centrifuge.proxies.connect with that header in http_headers"},
	{"client.connect_code_to_unidirectional_disconnect", "codes are not rewritten", "nothing"},
	{"client.subscribe_to_user_personal_channel.single_connection", "a newer connection of a user does not end the older", "centrifuge.user_connection_limit: 1 refuses the newer"},
	{"client.proxy", "of proxies there are endpoint, timeout, headers and connection meta", "let the backend answer in HTTP with JSON"},
	{"channel.proxy", "of proxies there are endpoint, timeout, headers and connection meta", "let the backend answer in HTTP with JSON"},
	{"channel.proxy.subscribe_stream", "subscribe streams are not available", "have the backend publish"},
	{"channel.proxy.map_publish", "map subscriptions are not available", ""},
	{"channel.proxy.map_remove", "map subscriptions are not available", ""},
	{"channel.proxy.shared_poll_refresh", "shared poll subscriptions are not available", ""},
	{"rpc.proxy", "of proxies there are endpoint, timeout, headers and connection meta", "let the backend answer in HTTP with JSON"},
	{"channel.max_length", "a channel's name may have 1024 bytes", "channel_regex in centrifuge.namespaces bounds it"},
	{"channel.private_prefix", "the prefix is $", "rename the channels"},
	{"channel.namespace_boundary", "the boundary is :", "rename the channels"},
	{"channel.user_boundary", "the boundary is #", "rename the channels"},
	{"channel.user_separator", "the separator is a comma", "rename the channels"},
	{"channel.history_meta_ttl", "a log's epoch lives as long as the log", "nothing"},
	{"rpc.namespaces", "all calls go to one backend", "let the backend behind centrifuge.proxies.rpc.endpoint distinguish methods"},
	{"rpc.namespace_boundary", "all calls go to one backend", "nothing"},
	{"rpc.ping", "there is no call that the server answers by itself", "the protocol has pings of its own"},
	{"rpc.without_namespace", "all calls go to one backend", "centrifuge.proxies.rpc.endpoint"},
	{"proxies", "of proxies there is one for each event, and of its keys endpoint, timeout, headers and connection meta", "let the backend behind it distinguish channels"},
	{"granular_proxy_mode", "proxies are found by their names", "nothing"},
	{"http_api.insecure", "the server API is not served without a key", "centrifuge.api_key"},
	{"http_api.external", "the server API is on the public listener", "keep it from the outside by the proxy before Weir, or by a long key"},
	{"http_api.disabled", "the server API requires a key; without one every request is refused", "nothing"},
	{"http_api.handler_prefix", "it is not a path", "centrifuge.api_prefix"},
	{"grpc_api", "there is no gRPC API", "the same calls by HTTP: centrifuge.api_prefix"},
	{"consumers", "Weir does not consume from queues and tables", "have what consumes call publish of the server API; an idempotency_key makes repeating safe"},
	{"websocket.handler_prefix", "the path is /connection/websocket", "rewrite it in the proxy before Weir, or in the clients"},
	{"websocket.disabled", "all transports of the protocol are served", "nothing"},
	{"websocket", "buffers are leased while bytes are on their way; there is nothing to set for a connection", "nothing; eventloop.write_stall closes readers that stopped"},
	{"sse", "the paths are those of the protocol, and centrifuge.max_command bounds a request", "rewrite paths in the proxy before Weir"},
	{"http_stream", "the paths are those of the protocol, and centrifuge.max_command bounds a request", "rewrite paths in the proxy before Weir"},
	{"emulation", "the paths are those of the protocol, and centrifuge.max_command bounds a request", "rewrite paths in the proxy before Weir"},
	{"uni_sse", "the paths are those of the protocol, and codes are not rewritten", "rewrite paths in the proxy before Weir"},
	{"uni_http_stream", "the paths are those of the protocol, and codes are not rewritten", "rewrite paths in the proxy before Weir"},
	{"uni_websocket", "there is nothing to set for unidirectional WebSocket", "nothing"},
	{"webtransport", "Weir does not speak WebTransport", "list WebSocket, http_stream or sse as transports in the client"},
	{"uni_grpc", "there is no gRPC", "unidirectional SSE, WebSocket and HTTP stream"},
	{"sockjs", "Weir does not speak SockJS, as Centrifugo 6 does not", "http_stream or sse as transports in the client"},
	{"sockjs_", "Weir does not speak SockJS, as Centrifugo 6 does not", "http_stream or sse as transports in the client"},
	{"tarantool_", "there is no Tarantool, as in Centrifugo 6", "broker.kind nats"},
	{"init", "there is no endpoint for that", "nothing"},
	{"admin.secret", "who administers shows a token; there are no sessions to sign", "nothing"},
	{"admin.insecure", "beyond loopback the admin listener wants a token", "admin.token"},
	{"admin", "Weir's own page is on the admin listener", "admin.listen"},
	{"prometheus", "metrics are at /metrics of the admin listener, under Weir's own names", "docs/reference/metrics.md"},
	{"health", "health is at /healthz and /readyz of the public listener", "point the probes there"},
	{"debug", "profiles are at /debug/pprof of the admin listener", "nothing"},
	{"swagger", "there is no page for the API", "docs/reference/centrifuge.md"},
	{"opentelemetry", "traces go where the configuration specifies, not where the environment does", "telemetry.endpoint"},
	{"graphite", "metrics are scraped, pushed to a Pushgateway, or sent by OpenTelemetry", "metrics.pushgateway.url or telemetry.endpoint"},
	{"usage_stats", "Weir sends none", "nothing"},
	{"node.info_metrics_aggregate_interval", "nodes send it with every heartbeat", "cluster.heartbeat"},
	{"shutdown_termination_delay", "there is one delay", "shutdown.drain"},
	{"pid_file", "Weir writes no such file", "ask the service manager"},
	{"enable_unreleased_features", "there are none", "nothing"},
	{"gomaxprocs", "it is a variable of the environment", "GOMAXPROCS"},
	{"proxy_grpc", "backends are queried by HTTP", "give an http or https endpoint"},
	{"proxy_grpc_", "backends are queried by HTTP", "give an http or https endpoint"},
	{"proxy_binary_encoding", "backends are asked in JSON", "have the backend take data, not b64data"},
	{"proxy_http_status_code_transforms", "codes are not rewritten", "have the backend answer error or disconnect"},
	{"global_redis_presence_user_mapping", "presence is kept by the nodes themselves", "nothing"},
}

// optionReasons say the same of options of a namespace.
var optionReasons = []reason{
	{"history_meta_ttl", "a log's epoch lives as long as the log", "nothing"},
	{"delta_publish", "differences are made for subscriptions that request them, whatever the publisher says", "nothing"},
	{"map", "map subscriptions are not available: requests for them are answered with error 108", "subscribe to a channel with policy conflate and keys, or to one in cache recovery mode"},
	{"subscription_type", "there are streams alone: requests for others are answered with error 108", "nothing"},
	{"map_clients_presence_channel_prefix", "map subscriptions are not available", "presence"},
	{"map_users_presence_channel_prefix", "map subscriptions are not available", "presence"},
	{"shared_poll", "shared poll subscriptions are not available: requests for them are answered with error 108", "publish when something changes"},
	{"subscribe_stream_proxy_enabled", "subscribe streams are not available", "have the backend publish"},
	{"subscribe_stream_proxy_name", "subscribe streams are not available", "have the backend publish"},
	{"subscribe_stream_proxy_bidirectional", "subscribe streams are not available", "have the backend publish"},
	{"proxy_cache_empty", "there is no such event", "the backend may publish"},
	{"cache_empty_proxy_name", "there is no such event", "the backend may publish"},
}

// reasonsOf returns the reasons for keys of a server. Paths are in lower case, and an
// element of a list has the path of the list.
func reasonsOf(k Kind) []reason {
	var all []reason
	switch k {
	case Centrifugo:
		all = slices.Clone(centrifugoReasons)
		for _, r := range optionReasons {
			for _, at := range []string{"channel.without_namespace.", "channel.namespaces."} {
				all = append(all, reason{at + r.path, r.why, r.instead})
			}
		}
	case Mercure:
		all = slices.Clone(mercureReasons)
	case Soketi:
		all = slices.Clone(soketiReasons)
	case Reverb:
		all = slices.Clone(reverbReasons)
	}
	for i := range all {
		all[i].path = strings.ToLower(strings.ReplaceAll(all[i].path, "[]", ""))
	}
	return all
}
