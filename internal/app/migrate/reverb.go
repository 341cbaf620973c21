package migrate

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
)

// reverbVariables are Reverb's, and the keys that they are in soketi's words; "" for those
// that are translated here.
var reverbVariables = map[string]string{
	"REVERB_APP_ID":                         "appManager.array.apps.0.id",
	"REVERB_APP_KEY":                        "appManager.array.apps.0.key",
	"REVERB_APP_SECRET":                     "appManager.array.apps.0.secret",
	"REVERB_APP_MAX_CONNECTIONS":            "appManager.array.apps.0.maxConnections",
	"REVERB_SERVER_HOST":                    "host",
	"REVERB_SERVER_PORT":                    "port",
	"REVERB_APP_ACCEPT_CLIENT_EVENTS_FROM":  "reverb.clientEvents",
	"REVERB_APP_ACTIVITY_TIMEOUT":           "reverb.activityTimeout",
	"REVERB_APP_MAX_MESSAGE_SIZE":           "reverb.maxMessageSize",
	"REVERB_SCALING_ENABLED":                "reverb.scaling",
	"REVERB_APP_PING_INTERVAL":              "reverb.pingInterval",
	"REVERB_APP_RATE_LIMITING_ENABLED":      "reverb.rateLimit.enabled",
	"REVERB_APP_RATE_LIMIT_MAX_ATTEMPTS":    "reverb.rateLimit.maxAttempts",
	"REVERB_APP_RATE_LIMIT_DECAY_SECONDS":   "reverb.rateLimit.decaySeconds",
	"REVERB_APP_RATE_LIMIT_TERMINATE":       "reverb.rateLimit.terminate",
	"REVERB_MAX_REQUEST_SIZE":               "reverb.maxRequestSize",
	"REVERB_SERVER_PATH":                    "reverb.path",
	"REVERB_SCALING_CHANNEL":                "reverb.scalingChannel",
	"REVERB_PULSE_INGEST_INTERVAL":          "reverb.pulse",
	"REVERB_TELESCOPE_INGEST_INTERVAL":      "reverb.telescope",
	"REVERB_SERVER":                         "reverb.server",
	"REVERB_HOST":                           "",
	"REVERB_PORT":                           "",
	"REVERB_SCHEME":                         "",
	"REVERB_APP_RATE_LIMITING_MAX_ATTEMPTS": "reverb.rateLimit.maxAttempts",
}

var reverbReasons = []reason{
	{"reverb.pingInterval", "a client is pinged after 9/8 of the silence after which it pings itself", "pusher.activity_timeout"},
	{"reverb.rateLimit", "messages of a connection have a rate of their own", "pusher.message_rate, client_event_rate"},
	{"reverb.maxRequestSize", "a REST call may have what its events may", "pusher.max_event_data, max_batch, max_channels"},
	{"reverb.path", "the paths are /app and /apps", "strip the path in the proxy before Weir"},
	{"reverb.scalingChannel", "nodes share the log of NATS JetStream, not Redis", "broker.nats.url, or broker.nats.cluster without any other server"},
	{"reverb.pulse reverb.telescope", "metrics are Prometheus's", "admin.listen"},
	{"reverb.server", "there is one server", ""},
}

// reverb is a translation of the variables of Laravel Reverb, in the form of soketi.
type reverb struct{ soketi }

// translate translates the variables of Laravel Reverb: what config/reverb.php reads. Other
// variables of the application's are passed over.
func (t reverb) translate(data []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("<?php")) {
		return config.WithHint(fmt.Errorf("%s: PHP is not read", t.file), "give the application's .env, whose REVERB_ variables it reads")
	}
	for _, in := range []struct {
		name string
		data []byte
	}{{t.file, data}, {t.o.EnvName, t.o.Env}} {
		if len(in.data) == 0 {
			continue
		}
		env, err := parseEnv(in.name, in.data)
		if err != nil {
			return err
		}
		t.variables(env)
	}
	p := t.out.at("pusher")
	p.set("enabled", true, "")
	p.set("health_paths", []string{"/up"}, "")
	t.defaults()
	t.apps()
	t.limits()
	t.broker()
	t.listeners()
	t.consumeDisabled(t.root, "")
	return nil
}

func (t reverb) variables(env *node) {
	for _, m := range env.fields {
		path, known := reverbVariables[m.key]
		switch {
		case known && path != "":
			t.dotted(path, m.value)
		case known, !strings.HasPrefix(m.key, "REVERB_"): // where pages connect; the application's
			m.value.markUsed()
		default:
			m.value.markUsed()
			t.note(Unknown, m.value, "not a variable of Reverb", "")
		}
	}
}

// defaults puts what Reverb has in other words, or by default, into soketi's.
func (t reverb) defaults() {
	set := func(path, value string, from *node) {
		n := &node{kind: text, value: value, where: path}
		if from != nil {
			n.line, n.where = from.line, from.where
		}
		t.dotted(path, n)
		t.root.at(path).markUsed()
	}
	if t.root.at("port") == nil {
		set("port", "8080", nil)
	}
	if on, at := t.flag(t.root, "reverb.scaling"); on {
		set("adapter.driver", "redis", at)
	}
	size := 10_000
	if n, at := t.number(t.root, "reverb.maxMessageSize"); at != nil && n > 0 {
		size = n
	}
	set("eventLimits.maxPayloadInKb", strconv.Itoa((size+1023)/1024), nil)
	p := t.out.at("pusher")
	if d, at := t.span(t.root, "reverb.activityTimeout", time.Second); at == nil {
		p.set("activity_timeout", 30*time.Second, "")
	} else if d >= time.Second {
		p.set("activity_timeout", d, "")
	}
	from, at := t.text(t.root, "reverb.clientEvents")
	if from == "" {
		from = "all"
	}
	if from == "none" || t.root.at("appManager.array.apps") == nil {
		return
	}
	set("appManager.array.apps.0.enableClientMessages", "true", at)
	p.set("client_event_rate", 100, "Reverb had no bound here; message_rate bounds all that a connection sends")
	if from == "members" {
		t.changed(at, "client events are taken on private and presence channels that the client follows")
	}
}
