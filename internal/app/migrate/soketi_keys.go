package migrate

import (
	"strings"
	"unicode"
)

// soketiVariables are the variables after SOKETI_, and their keys.
var soketiVariables = func() map[string]string {
	m := map[string]string{
		"ADAPTER_NATS_PASSWORD":                  "adapter.nats.pass",
		"ADAPTER_REDIS_PUB_OPTIONS":              "adapter.redis.redisPubOptions",
		"ADAPTER_REDIS_SUB_OPTIONS":              "adapter.redis.redisSubOptions",
		"APP_MANAGER_MYSQL_USE_V2":               "appManager.mysql.useMysql2",
		"CACHE_REDIS_OPTIONS":                    "cache.redis.redisOptions",
		"CHANNEL_CACHE_TTL":                      "channelLimits.cacheTtl",
		"CLUSTER_BROADCAST_ADDRESS":              "cluster.broadcast",
		"CLUSTER_HOST":                           "cluster.hostname",
		"CLUSTER_KEEPALIVE_INTERVAL":             "cluster.helloInterval",
		"CLUSTER_MULTICAST_ADDRESS":              "cluster.multicast",
		"CLUSTER_UNICAST_ADDRESSES":              "cluster.unicast",
		"DB_MYSQL_USERNAME":                      "database.mysql.user",
		"DB_POSTGRES_USERNAME":                   "database.postgres.user",
		"DB_REDIS_INSTANCE_NAME":                 "database.redis.name",
		"DEFAULT_APP_MAX_BACKEND_EVENTS_PER_SEC": "appManager.array.apps.0.maxBackendEventsPerSecond",
		"DEFAULT_APP_MAX_CLIENT_EVENTS_PER_SEC":  "appManager.array.apps.0.maxClientEventsPerSecond",
		"DEFAULT_APP_MAX_CONNS":                  "appManager.array.apps.0.maxConnections",
		"DEFAULT_APP_MAX_READ_REQ_PER_SEC":       "appManager.array.apps.0.maxReadRequestsPerSecond",
		"DEFAULT_APP_USER_AUTHENTICATION":        "appManager.array.apps.0.enableUserAuthentication",
		"EVENT_MAX_SIZE_IN_KB":                   "eventLimits.maxPayloadInKb",
		"HTTP_ACCEPT_TRAFFIC_MEMORY_THRESHOLD":   "httpApi.acceptTraffic.memoryThreshold",
		"METRICS_SERVER_PORT":                    "metrics.port",
		"PRESENCE_MAX_MEMBERS":                   "presence.maxMembersPerChannel",
		"PRESENCE_MAX_MEMBER_SIZE":               "presence.maxMemberSizeInKb",
		"QUEUE_REDIS_OPTIONS":                    "queue.redis.redisOptions",
		"QUEUE_SQS_URL":                          "queue.sqs.queueUrl",
		"RATE_LIMITER_REDIS_OPTIONS":             "rateLimiter.redis.redisOptions",
		"SSL_CA":                                 "ssl.caPath",
		"SSL_CERT":                               "ssl.certPath",
		"SSL_KEY":                                "ssl.keyPath",
		"SSL_PASS":                               "ssl.passphrase",
		"WEBHOOKS_BATCHING":                      "webhooks.batching.enabled",
	}
	// The others have the name of their key, but for what it starts with.
	for _, of := range []struct{ variable, key, keys string }{
		{"", "", `adapter.cluster.requestsTimeout adapter.driver adapter.nats.nodesNumber adapter.nats.prefix
			adapter.nats.requestsTimeout adapter.nats.servers adapter.nats.timeout adapter.nats.token adapter.nats.user
			adapter.redis.clusterMode adapter.redis.prefix adapter.redis.requestsTimeout appManager.cache.enabled
			appManager.cache.ttl appManager.driver appManager.dynamodb.endpoint appManager.dynamodb.region
			appManager.dynamodb.table appManager.mysql.table appManager.mysql.version appManager.postgres.table
			appManager.postgres.version cache.driver cache.redis.clusterMode channelLimits.maxNameLength cluster.checkInterval
			cluster.ignoreProcess cluster.masterTimeout cluster.nodeTimeout cluster.port cluster.prefix debug host metrics.driver
			metrics.enabled metrics.host metrics.prometheus.prefix mode pathPrefix port queue.driver queue.redis.clusterMode
			queue.redis.concurrency queue.sqs.batchSize queue.sqs.clientOptions queue.sqs.endpoint queue.sqs.pollingWaitTimeMs
			queue.sqs.processBatch queue.sqs.region rateLimiter.driver rateLimiter.redis.clusterMode shutdownGracePeriod
			userAuthenticationTimeout webhooks.batching.duration`},
		{"EVENT_", "eventLimits.", "maxBatchSize maxChannelsAtOnce maxNameLength"},
		{"DB_", "database.", `mysql.database mysql.host mysql.password mysql.port postgres.database postgres.host postgres.password postgres.port
			redis.clusterNodes redis.db redis.host redis.keyPrefix redis.password redis.port redis.sentinels redis.sentinelPassword
			redis.username`},
		{"DB_POOLING_", "databasePooling.", "enabled max min"},
		{"DEFAULT_APP_", "appManager.array.apps.0.", "enabled enableClientMessages id key secret webhooks"},
	} {
		for key := range strings.FieldsSeq(of.keys) {
			m[of.variable+variableName(key)] = of.key + key
		}
	}
	return m
}()

// variableName is a key as it is in the names of variables: MAX_CONNECTIONS of maxConnections.
func variableName(key string) string {
	var b strings.Builder
	for i, r := range strings.ReplaceAll(key, ".", "_") {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// soketiReasons say of keys of soketi why they are not translated.
var soketiReasons = []reason{
	{"adapter.redis", "nodes share the log of NATS JetStream, not Redis", "broker.nats.url, or broker.nats.cluster without any other server"},
	{"adapter.cluster", "nodes share the log of NATS JetStream", "broker.nats.cluster"},
	{"adapter.nats", "the broker has bounds of its own", "broker.nats"},
	{"cluster", "nodes do not look for each other in the network", "broker.nats.url, or broker.nats.cluster with the other nodes' addresses"},
	{"appmanager database databasepooling", "applications are read from the configuration", "pusher.apps"},
	{"appmanager.array.apps[].maxbackendeventspersecond appmanager.array.apps[].maxreadrequestspersecond", "calls of an application have no rate", "a limit in the proxy before Weir"},
	{"appmanager.array.apps[].max", "bounds are for all applications", "pusher.max_members, max_member_data, max_channels, max_event_data, max_batch"},
	{"appmanager.array.apps[].maxpresencememberperchannel appmanager.array.apps[].maxpresencemembersperchannel", "bounds are for all applications", "pusher.max_members"},
	{"appmanager.array.apps[].maxpresencemembersizeinkb", "bounds are for all applications", "pusher.max_member_data"},
	{"appmanager.array.apps[].maxchannelnamelength channellimits.maxnamelength", "a name of a channel has at most 164 bytes, as with Pusher", "nothing"},
	{"appmanager.array.apps[].maxeventnamelength eventlimits.maxnamelength", "a name of an event has at most 200 bytes, as the protocol has it", "nothing"},
	{"appmanager.array.apps[].maxeventchannelsatonce", "bounds are for all applications", "pusher.max_channels"},
	{"appmanager.array.apps[].maxeventpayloadinkb", "bounds are for all applications", "pusher.max_event_data"},
	{"appmanager.array.apps[].maxeventbatchsize", "bounds are for all applications", "pusher.max_batch"},
	{"appmanager.array.apps[].haswebhooks", "it follows from the webhooks", "nothing"},
	{"appmanager.array.apps[].webhooks[].lambda appmanager.array.apps[].webhooks[].lambda_function", "webhooks go to an address; a Lambda is not called", "give the function a URL"},
	{"cache", "cache channels have their last event from the log", "namespaces[].history_ttl"},
	{"channellimits.cachettl", "it is at least 1s", "namespaces[].history_ttl"},
	{"cors", "the REST API is for servers, not for pages", "pusher.apps[].allowed_origins says whose pages may connect"},
	{"httpapi.requestlimitinmb", "a request is bounded by what it may have in it", "pusher.max_batch and max_event_data"},
	{"httpapi.accepttraffic", "memory has bounds by the whole process", "governor.thresholds and governor.memory"},
	{"instance", "nodes name themselves", "cluster.name"},
	{"metrics", "metrics are at /metrics of the admin listener, under Weir's own names", "admin.listen"},
	{"mode", "one process does all", "nothing"},
	{"pathprefix", "the paths are /app and /apps", "strip the prefix in the proxy before Weir, or leave it out in the clients (wsPath)"},
	{"queue", "webhooks wait in the process", "pusher.webhook_queue, webhook_retry"},
	{"ratelimiter", "rates are counted by each node", "pusher.client_event_rate, message_rate"},
	{"ssl", "certificates are read from files, a certificate and a key together", "tls.certificates"},
	{"userauthenticationtimeout", "it is the application's", "pusher.apps[].authorize_within"},
	{"webhooks", "events are always sent in batches", "pusher.webhook_window"},
}
