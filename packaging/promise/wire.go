package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/websocket"
)

// patience bounds the conversation.
const patience = time.Minute

// A talk is the recorded conversation with a server.
type talk struct {
	ctx    context.Context
	addr   string
	server *exec.Cmd
	facts  []fact
}

const conversationKey = "promise-key-0123456789"

// conversation lists what a server answers on its public listener: status codes, the fields
// of its JSON with their types, the fields of events, close codes.
func conversation(_, weir string) ([]fact, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir, err := os.MkdirTemp("", "promise")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t, err := serve(ctx, weir, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = t.server.Process.Kill()
		_ = t.server.Wait() // killed, or ended already
	}()
	return t.facts, errors.Join(t.requests(), t.streams(), t.sockets(), t.drained())
}

// serve starts a server on a port of its own and waits for it.
func serve(ctx context.Context, weir, dir string) (*talk, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &talk{ctx: ctx, addr: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	t.server = exec.CommandContext(ctx, weir, "serve", "--listen", t.addr, "--admin-listen", "off", "--data-dir", dir)
	t.server.Env = append(environment(), "WEIR_BROKER_KIND=memory", "WEIR_SHUTDOWN_DRAIN=2s", `WEIR_NAMESPACES=[{"name":"default","anonymous":true}]`,
		`WEIR_AUTH_API_KEYS=[{"name":"promise","key":"`+conversationKey+`"}]`)
	t.server.Stderr = os.Stderr
	if err := t.server.Start(); err != nil {
		return nil, err
	}
	for {
		res, err := http.Get("http://" + t.addr + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return t, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("weir serve is not ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// environment is this process's, without settings of Weir.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
}

// record lists a fact.
func (t *talk) record(name, format string, arg ...any) {
	t.facts = append(t.facts, fact{name, fmt.Sprintf(format, arg...)})
}

// json lists the fields of text, whatever their values.
func (t *talk) json(name string, text []byte) error {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("%s: %w: %.200q", name, err, text)
	}
	t.shape(name, v)
	return nil
}

func (t *talk) shape(name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			t.shape(name+" "+key, value)
		}
	case []any:
		for _, value := range v {
			t.shape(name+"[]", value)
		}
	default:
		t.record(name, "%s", strings.Replace(fmt.Sprintf("%T", v), "float64", "number", 1))
	}
}

// requests are publications and what is refused.
func (t *talk) requests() error {
	for _, r := range []struct{ name, method, path, key, body string }{
		{"POST /api/publish", "POST", "/api/publish", conversationKey, `{"channel":"a","data":{"x":1},"key":"k","id":"m1","event":"made","tags":{"t":"v"},"idempotency_key":"1"}`},
		{"POST /api/publish text", "POST", "/api/publish", conversationKey, `{"channel":"a","text":"words","private":false}`},
		{"POST /api/publish repeated key", "POST", "/api/publish", conversationKey, `{"channel":"a","data":2,"idempotency_key":"1"}`},
		{"POST /api/publish malformed", "POST", "/api/publish", conversationKey, `{`},
		{"POST /api/publish unknown namespace", "POST", "/api/publish", conversationKey, `{"channel":"no:a","data":1}`},
		{"POST /api/publish without a key", "POST", "/api/publish", "", `{"channel":"a","data":1}`},
		{"POST /api/broadcast", "POST", "/api/broadcast", conversationKey, `{"channels":["a","no:a"],"data":1}`},
		{"unknown path", "GET", "/nothing", "", ""},
		{"GET /api/publish", "GET", "/api/publish", conversationKey, ""},
		{"GET /ws without an upgrade", "GET", "/ws?channel=a", "", ""},
	} {
		req, err := http.NewRequestWithContext(t.ctx, r.method, "http://"+t.addr+r.path, strings.NewReader(r.body))
		if err != nil {
			return err
		}
		if r.key != "" {
			req.Header.Set("X-API-Key", r.key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			return err
		}
		t.record(r.name+": status", "%d %s", res.StatusCode, res.Header.Get("Content-Type"))
		if err := t.json(r.name+":", body); err != nil {
			return err
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		res, err := http.Get("http://" + t.addr + path)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		t.record("GET "+path, "%d", res.StatusCode)
	}
	return nil
}

// stream opens an event stream.
func (t *talk) stream(query string) (*http.Response, *bufio.Reader, error) {
	req, err := http.NewRequestWithContext(t.ctx, "GET", "http://"+t.addr+"/sse?"+query, nil)
	if err != nil {
		return nil, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	return res, bufio.NewReader(res.Body), nil
}

// block lists the next block of a stream: its fields, and those of its data.
func (t *talk) block(name string, r *bufio.Reader) error {
	var fields []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": ")
		switch {
		case line == "\n" && len(fields) > 0:
			t.record(name, "%s", strings.Join(fields, " "))
			return nil
		case line == "\n":
		case field == "event":
			fields = append(fields, "event="+value)
		default:
			fields = append(fields, field)
			if field == "data" && strings.HasPrefix(value, "{") {
				if err := t.json(name+" data", []byte(value)); err != nil {
					return err
				}
			}
		}
	}
}

// streams are server-sent events: the plain form, the envelope, a gap.
func (t *talk) streams() error {
	for _, s := range []struct {
		query  string
		blocks int
	}{{"channel=a&lastEventId=0", 2}, {"channel=a&lastEventId=0&envelope=1", 2}, {"channel=a&channel=b&lastEventId=0", 2}, {"channel=a&lastEventId=unknown", 2}} {
		res, r, err := t.stream(s.query)
		if err != nil {
			return err
		}
		name := "GET /sse?" + s.query
		t.record(name+": status", "%d %s", res.StatusCode, res.Header.Get("Content-Type"))
		for i := range s.blocks {
			if err := t.block(fmt.Sprintf("%s: block %d", name, i), r); err != nil {
				return err
			}
		}
		_ = res.Body.Close()
	}
	return nil
}

// dial opens a WebSocket.
func (t *talk) dial(query string) (*websocket.Conn, error) {
	c, _, err := websocket.Dial(t.ctx, "ws://"+t.addr+"/ws?"+query, websocket.DialOptions{}) //nolint:bodyclose // it has none, or is read
	return c, err
}

// sockets are WebSockets: the first frame, the envelope, ping and pong, a gap.
func (t *talk) sockets() error {
	for _, query := range []string{"channel=a&since=0&hello=1", "channel=a&since=unknown"} {
		c, err := t.dial(query)
		if err != nil {
			return err
		}
		defer c.CloseNow()
		if err := c.Write(websocket.OpText, []byte(`{"type":"ping"}`)); err != nil {
			return err
		}
		seen := map[string]bool{} // kinds of frames, of which each is listed once
		want := []string{"pong", "subscribed", "message"}
		if strings.Contains(query, "unknown") {
			want = []string{"pong", "gap"}
		}
		for slices.ContainsFunc(want, func(k string) bool { return !seen[k] }) {
			_, text, err := c.Read(t.ctx)
			if err != nil {
				return fmt.Errorf("/ws?%s: %w", query, err)
			}
			var head struct{ Type string }
			_ = json.Unmarshal(text, &head) // t.json reports what is not JSON
			kind := head.Type
			if kind == "" {
				kind = "message"
			}
			if seen[kind] {
				continue
			}
			seen[kind] = true
			if err := t.json("GET /ws?"+query+": "+kind, bytes.TrimSpace(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// drained is how an orderly end looks to streams and sockets.
func (t *talk) drained() error {
	res, r, err := t.stream("channel=b")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if err := t.block("GET /sse: first block", r); err != nil {
		return err
	}
	c, err := t.dial("channel=b")
	if err != nil {
		return err
	}
	defer c.CloseNow()
	if err := t.server.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := t.block("GET /sse: drained", r); err != nil {
		return err
	}
	for {
		_, _, err := c.Read(t.ctx)
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
			t.record("GET /ws: drained", "close code %d", closed.Code)
			return nil
		}
		if err != nil {
			return fmt.Errorf("/ws: drained: %w", err)
		}
	}
}
