package websocket

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

// RFC 6455 §1.3: the RFC's own key.
func TestAcceptKey(t *testing.T) {
	if got := AcceptKey([]byte("dGhlIHNhbXBsZSBub25jZQ==")); string(got[:]) != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Errorf("AcceptKey = %s", got)
	}
}

func TestCheckUpgrade(t *testing.T) {
	good := map[string]string{
		"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	}
	check := func(method string, http11 bool, name, value string) error {
		fields := maps.Clone(good)
		if name != "" {
			fields[name] = value
		}
		key, err := CheckUpgrade(method, http11, func(n string) []byte {
			if v, ok := fields[n]; ok {
				return []byte(v)
			}
			return nil
		})
		if err == nil && string(key) != strings.TrimSpace(fields["Sec-WebSocket-Key"]) {
			t.Errorf("key %q", key)
		}
		return err
	}
	yes := func(name, value string) {
		t.Helper()
		if err := check("GET", true, name, value); err != nil {
			t.Errorf("%s: %q refused: %v", name, value, err)
		}
	}
	no := func(name, value string, status int) {
		t.Helper()
		var he *HandshakeError
		if err := check("GET", true, name, value); !errors.As(err, &he) || he.Status != status {
			t.Errorf("%s: %q: %v, want status %d", name, value, err, status)
		}
	}
	yes("", "")
	yes("Upgrade", "WebSocket")
	yes("Upgrade", "h2c, websocket")
	no("Upgrade", "", 426)
	no("Upgrade", "websockets", 426)
	no("Upgrade", "h2c", 426)
	yes("Connection", "keep-alive, Upgrade")
	yes("Connection", "\tupgrade ")
	no("Connection", "keep-alive", 426)
	no("Connection", "", 426)
	yes("Sec-WebSocket-Version", " 13 ")
	no("Sec-WebSocket-Version", "8", 426)
	no("Sec-WebSocket-Version", "13, 8", 426)
	no("Sec-WebSocket-Version", "", 426)
	yes("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	yes("Sec-WebSocket-Key", " AAAAAAAAAAAAAAAAAAAAAA== ")
	no("Sec-WebSocket-Key", "", 400)
	no("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA", 400)
	no("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAAA=", 400)
	no("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAAAA", 400)
	no("Sec-WebSocket-Key", "AAAAAAAAAAAAA!AAAAAAAA==", 400)
	no("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAA\r\n==", 400)

	var he *HandshakeError
	if err := check("POST", true, "", ""); !errors.As(err, &he) || he.Status != 405 {
		t.Errorf("POST: %v", err)
	}
	if err := check("GET", false, "", ""); !errors.As(err, &he) || he.Status != 426 {
		t.Errorf("HTTP/1.0: %v", err)
	}
}

func TestAppendHandshakeResponse(t *testing.T) {
	f := func(extensions, subprotocol, want string) {
		t.Helper()
		got := string(AppendHandshakeResponse(nil, []byte("dGhlIHNhbXBsZSBub25jZQ=="), extensions, subprotocol))
		want = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" + want + "\r\n"
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f("", "", "")
	f("permessage-deflate", "chat", "Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: chat\r\n")
}

func TestSelectSubprotocol(t *testing.T) {
	f := func(offered, want string, ours ...string) {
		t.Helper()
		if got := SelectSubprotocol([]byte(offered), ours...); got != want {
			t.Errorf("SelectSubprotocol(%q, %q) = %q, want %q", offered, ours, got, want)
		}
	}
	f("chat, superchat", "chat", "superchat", "chat")
	f("superchat ,chat", "superchat", "superchat", "chat")
	f("Chat", "", "chat")
	f("chat", "")
	f("", "", "chat", "")
	f(",", "", "")
}

func TestSameOrigin(t *testing.T) {
	f := func(origin, host string, want bool) {
		t.Helper()
		if got := SameOrigin([]byte(origin), []byte(host)); got != want {
			t.Errorf("SameOrigin(%q, %q) = %v", origin, host, got)
		}
	}
	f("", "example.org", true)
	f("https://example.org", "example.org", true)
	f("http://Example.org:8000", "example.org:8000", true)
	f("https://example.org:8000", "example.org", false)
	f("https://example.org.evil.test", "example.org", false)
	f("https://", "", false)
	f("null", "null", false)
	f("https://a.test,https://example.org", "example.org", false)
}
