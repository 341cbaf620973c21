package loadgen

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/websocket"
)

// An adapter is what a server speaks beyond the bare protocol. It is fixed at New.
type adapter struct {
	name string
	// channel is what channels are called, "{channel}" in it is the number.
	channel string
	// checkpoint: an event stream is open with its first block, not with its head.
	checkpoint bool
	// control: events with a type of their own are not messages.
	control bool
	// peek is how much of a publish's answer shows whether it was accepted.
	peek int
}

// newAdapter completes the paths of target and publish; publish may be nil.
func newAdapter(spec *Spec, target, publish *target) *adapter {
	a := &adapter{name: spec.Adapter, channel: spec.Channel}
	param := ""
	if spec.Kind == Echo && a.name == "weir" {
		target.defaultPath("/echo")
	}
	if !spec.streams() {
		return a
	}
	switch a.name {
	case "weir":
		a.checkpoint, a.control = true, true
		param = "channel"
		target.defaultPath("/" + spec.streamTransport())
		publish.defaultPath(target.prefix() + "/api/publish")
	case "mercure":
		param = "topic"
		if strings.Contains(target.path, "match=") {
			param = "match"
		}
		target.defaultPath("/.well-known/mercure")
		publish.defaultPath("/.well-known/mercure")
	case "centrifuge":
		a.peek = 256
		target.defaultPath("/connection/websocket")
		publish.defaultPath("/api/publish")
	case "nchan":
		target.defaultPath("/sub/{channel}")
		publish.defaultPath("/pub/{channel}")
	}
	if a.channel == "" {
		a.channel = target.queryValue(param)
	}
	if a.channel == "" {
		a.channel = "bench-{channel}"
	}
	if param != "" && target.queryValue(param) == "" {
		sep := "?"
		if strings.Contains(target.path, "?") {
			sep = "&"
		}
		target.path += sep + param + "=" + queryTemplate(a.channel)
	}
	return a
}

// queryTemplate escapes a template for a query, but for its braces.
func queryTemplate(s string) string {
	return strings.NewReplacer("%7B", "{", "%7D", "}").Replace(url.QueryEscape(s))
}

// streamTransport is "ws" or "sse".
func (s *Spec) streamTransport() string {
	switch s.Kind {
	case WebSocket, Echo:
		return "ws"
	case SSE:
		return "sse"
	}
	return s.Transport
}

func (t *target) defaultPath(path string) {
	if t != nil && (t.path == "" || t.path == "/") {
		t.path = path
	} else if t != nil && strings.HasPrefix(t.path, "/?") {
		t.path = path + t.path[1:]
	}
}

// prefix is what precedes Weir's own paths (downstream.builtin_prefix), if the
// target is one of them.
func (t *target) prefix() string {
	path, _, _ := strings.Cut(t.path, "?")
	for _, own := range []string{"/sse", "/ws"} {
		if prefix, ok := strings.CutSuffix(path, own); ok {
			return prefix
		}
	}
	return ""
}

// queryValue is a parameter of the path, as a template.
func (t *target) queryValue(name string) string {
	_, query, _ := strings.Cut(t.path, "?")
	if name == "" {
		return ""
	}
	v, _ := http1.QueryValue([]byte(query), name)
	return string(v)
}

// channelName is what channel c, from 0, is called.
func (g *traffic) channelName(c int) string {
	return strings.ReplaceAll(g.adapter.channel, "{channel}", strconv.Itoa(c+g.spec.FirstChannel))
}

// channelNumber is the number of the channel of connection n, as text.
func (g *traffic) channelNumber(n int) string {
	return g.channelDigits(n % g.spec.Channels)
}

// channelDigits is the number of channel c, from 0, as text.
func (g *traffic) channelDigits(c int) string { return strconv.Itoa(c + g.spec.FirstChannel) }

// subscribe is the request target of a stream.
func (a *adapter) subscribe(g *Generator, h *stream, resume bool) string {
	path := fill(g.target.path, int(h.num), g.channelDigits(int(h.channel)))
	if a.name == "weir" && h.proto.ws != nil {
		if !strings.Contains(path, "hello=") {
			path += "&hello=1"
		}
		if resume {
			path += "&since=" + url.QueryEscape(string(h.pos))
		}
	}
	return path
}

// opened comes when a WebSocket's handshake is done.
func (a *adapter) opened(h *stream) {
	switch a.name {
	case "weir":
		// It reports when it is subscribed.
	case "centrifuge":
		h.send(a.connect(h))
	default:
		h.subscribed()
	}
}

// send sends text messages.
func (h *stream) send(texts ...string) {
	b := h.s.scratch[:0]
	for _, t := range texts {
		b = websocket.AppendMaskedFrame(b, websocket.OpText, []byte(t), maskKey())
	}
	h.w.Write(b)
	h.s.scratch = b
}

// connect is Centrifuge's first frame: connect and subscribe in one.
func (a *adapter) connect(h *stream) string {
	ch, _ := json.Marshal(h.s.g.channelName(int(h.channel))) // a string always can be
	sub := `{"id":2,"subscribe":{"channel":` + string(ch)
	if h.resume {
		epoch, _ := json.Marshal(string(h.pos))
		sub += `,"recover":true,"epoch":` + string(epoch) + `,"offset":` + strconv.FormatUint(h.offset, 10)
	}
	return `{"id":1,"connect":{}}` + "\n" + sub + `}}`
}

// frame is a text or binary message.
func (a *adapter) frame(h *stream, b []byte) {
	switch a.name {
	case "weir":
		a.weirFrame(h, b)
	case "centrifuge":
		for len(b) > 0 && h.w != nil && h.state != leaving {
			line := b
			if i := bytes.IndexByte(b, '\n'); i >= 0 {
				line, b = b[:i], b[i+1:]
			} else {
				b = nil
			}
			a.reply(h, line)
		}
	default:
		h.message(b)
	}
}

var typePrefix = []byte(`{"type":"`) // never changed

func (a *adapter) weirFrame(h *stream, b []byte) {
	if !bytes.HasPrefix(b, typePrefix) {
		if h.s.g.spec.Reconnect {
			h.note(textAfter(b, `"id":"`))
		}
		h.message(b)
		return
	}
	switch string(textAfter(b, `{"type":"`)) {
	case "subscribed":
		h.subscribed()
		h.note(textAfter(b, `"id":"`))
	case "gap":
		h.s.rec.delivery.Gaps++
		h.note(textAfter(b, `"id":"`))
	}
}

// note remembers a position.
func (h *stream) note(pos []byte) {
	if len(pos) > 0 {
		h.pos = append(h.pos[:0], pos...)
	}
}

// reply is one object of Centrifuge's.
func (a *adapter) reply(h *stream, b []byte) {
	switch {
	case len(b) == 0:
	case string(b) == "{}":
		h.s.rec.delivery.Pings++
		h.send("{}")
	case bytes.HasPrefix(b, []byte(`{"id":`)):
		a.answer(h, b)
	case bytes.Contains(b, []byte(`"pub":`)):
		// offset is behind data, or before it.
		if n, ok := numberAfter(afterStamp(b), `"offset":`); ok {
			h.offset = n
		} else if n, ok := numberAfter(b, `"offset":`); ok {
			h.offset = n
		}
		h.message(b)
	case bytes.Contains(b, []byte(`"unsubscribe":`)), bytes.Contains(b, []byte(`"disconnect":`)):
		h.closed = endCode(b)
		h.leave(plainError("unsubscribed by the server"))
	}
}

func afterStamp(b []byte) []byte {
	_, rest, _ := nextStamp(b)
	return rest
}

func (a *adapter) answer(h *stream, b []byte) {
	id, _ := numberAfter(b, `"id":`)
	if bytes.Contains(b, []byte(`"error":`)) && !bytes.Contains(b, []byte(`"publications":`)) {
		code, _ := numberAfter(b, `"code":`)
		h.w.Close(plainError("error " + strconv.FormatUint(code, 10) + " " + string(textAfter(b, `"message":"`))))
		return
	}
	if id != 2 {
		return
	}
	recovered := bytes.Contains(b, []byte(`"recovered":true`))
	if h.resume && !recovered {
		h.resume = false
		h.s.rec.delivery.Gaps++
	}
	h.subscribed()
	h.note(textAfter(b, `"epoch":"`))
	if n, ok := numberAfter(b, `"offset":`); ok {
		h.offset = n
	}
	if recovered && bytes.Contains(b, magicBytes) {
		if i := bytes.LastIndex(b, []byte(`"offset":`)); i >= 0 {
			if n, ok := numberAfter(b[i:], `"offset":`); ok {
				h.offset = max(h.offset, n)
			}
		}
		h.message(b)
	}
}

// refused reports why a publish that was answered with 2xx was not taken, or "".
func (a *adapter) refused(body []byte) string {
	if a.name != "centrifuge" || !bytes.Contains(body, []byte(`"error":`)) {
		return ""
	}
	code, _ := numberAfter(body, `"code":`)
	return "error " + strconv.FormatUint(code, 10)
}
