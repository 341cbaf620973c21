package judge

// APIKey publishes on every server that New starts.
const APIKey = "judge-key-f3b1c2"

// HMACKey signs the tokens that a test makes.
const HMACKey = "judge-hmac-secret-0123456789abcdef0123456789"

// compose is the one place that knows how the configuration is spelt. Every key
// is there that the judges rely on, and only those.
func (s *Server) compose(o Options, dir string) map[string]any {
	kind := "nats"
	if o.Memory {
		kind = "memory"
	}
	base := map[string]any{
		"listen":     s.Public,
		"admin":      map[string]any{"listen": s.Admin},
		"broker":     map[string]any{"kind": kind, "nats": map[string]any{"dir": dir}},
		"log":        map[string]any{"level": "debug"},
		"shutdown":   map[string]any{"drain": "1s"},
		"namespaces": []any{namespace()},
		"auth": map[string]any{
			"hmac_secret": HMACKey,
			"api_keys":    []any{map[string]any{"name": "judge", "key": APIKey}},
		},
	}
	if s.Authority != "" {
		base["tls"] = map[string]any{"certificates": []any{map[string]any{"cert_file": s.Authority, "key_file": s.key}}}
	}
	return overlay(base, o.Config)
}

// namespace is the one that everyone may follow.
func namespace() map[string]any {
	return map[string]any{"name": "default", "anonymous": true, "durability": "stored", "history_size": 1_000_000}
}

// Namespace lays change over that namespace's keys.
func Namespace(change map[string]any) map[string]any {
	return map[string]any{"namespaces": []any{overlay(namespace(), change)}}
}

// Echo turns on the WebSocket echo at /echo, which only judges and probes have a
// use for, and the 16 MiB messages that the Autobahn suite sends.
func Echo() map[string]any {
	return map[string]any{
		"push":      map[string]any{"echo": true, "max_client_message": 32 << 20},
		"eventloop": map[string]any{"max_queue": 64 << 20},
	}
}

// Deadlines makes the one limit on slow clients that is longer than a judge's
// patience shorter; head, body and keep-alive are at their defaults.
func Deadlines() map[string]any {
	return map[string]any{"eventloop": map[string]any{"write_stall": "5s"}}
}

// Origins lets pages of these origins connect.
func Origins(origins ...string) map[string]any {
	return map[string]any{"auth": map[string]any{"allowed_origins": origins}}
}
