package fronts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/test/judge"
)

// An attack is what a client may come up with, and what it gets.
type attack struct {
	name string
	do   func(p *probe) string
	want string
}

func malformedRequest(kv ...string) func(*probe) string {
	return func(p *probe) string {
		p.open(1, true, kv...)
		return p.outcome(1) + p.alive(3)
	}
}

// No backend may be requested these.
const malformedPath, smuggledPath = "/malformed", "/smuggled"

func attacks() []attack {
	return slices.Concat(attacksOnHeads(), attacksOnBodies(), attacksOnFlow(), attacksOnState())
}

func attacksOnHeads() []attack {
	const protocol, bad = "reset PROTOCOL_ERROR", "400"
	one := func(name, want string, kv ...string) attack {
		return attack{name: name, do: malformedRequest(kv...), want: want}
	}
	with := func(name, want string, more ...string) attack {
		return one(name, want, getting(malformedPath, more...)...)
	}
	return []attack{
		with("upper-case name", protocol, "X-Upper", "a"),
		with("connection field", protocol, "connection", "close"),
		with("keep-alive field", protocol, "keep-alive", "1"),
		with("proxy-connection field", protocol, "proxy-connection", "close"),
		with("transfer-encoding", protocol, "transfer-encoding", "chunked"),
		with("upgrade", protocol, "upgrade", "h2c"),
		with("te gzip", protocol, "te", "gzip"),
		with("te list", protocol, "te", "trailers, gzip"),
		with("empty name", protocol, "", "x"),
		with("a line in a value", protocol, "x-a", "b\r\nx-c: d"),
		with("LF in a value", protocol, "x-a", "b\nc"),
		with("NUL in a value", protocol, "x-a", "b\x00c"),
		with("a line in a name", protocol, "x-a: b\r\nx-c", "d"),
		with("space in a name", protocol, "x a", "d"),
		with("colon in a name", protocol, "x:a", "d"),
		with("leading space", bad, "x-a", " d"),
		with("trailing tab", bad, "x-a", "d\t"),
		with("pseudo-field after a field", protocol, "x-a", "d", ":path", "/x"),
		with("pseudo-field twice", protocol, ":path", "/x"),
		with("pseudo-field of replies", protocol, ":status", "200"),
		with("unknown pseudo-field", protocol, ":what", "200"),
		with(":protocol without CONNECT", protocol, ":protocol", "websocket"),
		with("a second host", bad, "host", "other.example"),
		one("no path", protocol, ":method", "GET", ":scheme", "http", ":authority", "a"),
		one("empty path", protocol, ":method", "GET", ":scheme", "http", ":authority", "a", ":path", ""),
		one("absolute path", protocol, ":method", "GET", ":scheme", "http", ":authority", "a", ":path", "http://b/malformed"),
		one("no slash", protocol, ":method", "GET", ":scheme", "http", ":authority", "a", ":path", malformedPath[1:]),
		one("no scheme", protocol, ":method", "GET", ":authority", "a", ":path", malformedPath),
		one("empty scheme", protocol, ":method", "GET", ":scheme", "", ":authority", "a", ":path", malformedPath),
		one("a scheme that is none", protocol, ":method", "GET", ":scheme", "http://x/?", ":authority", "a", ":path", malformedPath),
		one("no method", protocol, ":scheme", "http", ":authority", "a", ":path", malformedPath),
		one("empty method", protocol, ":method", "", ":scheme", "http", ":authority", "a", ":path", malformedPath),
		one("a request line in the method", protocol, ":method", "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\nGET", ":scheme", "http", ":authority", "a", ":path", malformedPath),
		one("a space in the method", protocol, ":method", "GET /smuggled", ":scheme", "http", ":authority", "a", ":path", malformedPath),
		one("a space in the path", protocol, getting(malformedPath+" HTTP/1.1")...),
		one("a line in the path", protocol, getting(malformedPath+" HTTP/1.1\r\nx: y")...),
		one("a line in the authority", protocol, ":method", "GET", ":scheme", "http", ":authority", "a\r\nx: y", ":path", malformedPath),
		one("a path in the authority", bad, ":method", "GET", ":scheme", "http", ":authority", "a/b", ":path", malformedPath),
		one("a user in the authority", bad, ":method", "GET", ":scheme", "http", ":authority", "u@a", ":path", malformedPath),
		one("no authority, no host", bad, ":method", "GET", ":scheme", "http", ":path", malformedPath),
		one("empty authority", bad, ":method", "GET", ":scheme", "http", ":authority", "", ":path", malformedPath),
		{name: "host alone", do: malformedRequest(":method", "GET", ":scheme", "http", ":path", "/who", "host", "b"), want: `200 "b"`},
		one("CONNECT with a path", protocol, ":method", "CONNECT", ":scheme", "http", ":authority", "a:1", ":path", malformedPath),
		one("CONNECT", "501", ":method", "CONNECT", ":authority", "a:1"),
		one("extended CONNECT without a path", protocol, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "a:1"),
		one("another :protocol", "501", ":method", "CONNECT", ":protocol", "connect-udp", ":scheme", "http", ":authority", "a:1", ":path", malformedPath),
		{name: "cookies in pieces", do: malformedRequest(getting("/header?cookie", "cookie", "a=b", "x-y", "z", "cookie", "c=d")...), want: `200 "[\"a=b; c=d\"]"`},
		{name: "fields that HTTP/1.1 would frame by", do: malformedRequest(getting("/header?http2-settings", "http2-settings", "AAMAAABkAAQAAP__")...), want: `200 "[]"`},
		{name: "a table of size 0, and back", do: func(p *probe) string {
			var b bytes.Buffer
			enc := hpack.NewEncoder(&b)
			write := func(id uint32) {
				b.Reset()
				for _, kv := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "site.example"}, {":path", "/who"}} {
					_ = enc.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]})
				}
				p.block(id, true, bytes.Clone(b.Bytes()))
			}
			write(1)
			first := p.outcome(1)
			enc.SetMaxDynamicTableSize(0)
			write(3)
			enc.SetMaxDynamicTableSize(4096)
			write(5)
			return first + p.outcome(3) + p.outcome(5)
		}, want: `200 "site.example"200 "site.example"200 "site.example"`},
		{name: "a table that is too large", do: func(p *probe) string {
			p.block(1, true, append([]byte{0x3f, 0xe2, 0x1f}, fields(getting("/who")...)...)) // 4097
			return p.outcome(1)
		}, want: "goaway COMPRESSION_ERROR"},
		{name: "an index that is not there", do: func(p *probe) string {
			p.block(1, true, []byte{0xff, 0x80, 0x01})
			return p.outcome(1)
		}, want: "goaway COMPRESSION_ERROR"},
		{name: "a client without a table", do: func(p *probe) string {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
			p.dec.SetAllowedMaxDynamicTableSize(0)
			p.open(1, true, getting("/who")...)
			return p.outcome(1) + p.alive(3)
		}, want: `200 "site.example"`},
	}
}

func attacksOnBodies() []attack {
	return []attack{
		{name: "less than content-length", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "10")...)
			_ = p.WriteData(1, true, []byte("hello"))
			return p.outcome(1) + p.alive(3)
		}, want: "reset PROTOCOL_ERROR"},
		{name: "more than content-length", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "3")...)
			_ = p.WriteData(1, true, []byte("helloGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
			return p.outcome(1) + p.alive(3)
		}, want: "reset PROTOCOL_ERROR"},
		{name: "content-length without a body", do: malformedRequest(posting("/echo", "content-length", "10")...), want: "reset PROTOCOL_ERROR"},
		{name: "content-length 0 and a body", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "0")...)
			_ = p.WriteData(1, true, []byte("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
			got := p.outcome(1)
			if got == "200" { // the request was complete without a body, and answered before that came (RFC 9113 §8.1)
				got = "reset PROTOCOL_ERROR"
			}
			return got + p.alive(3)
		}, want: "reset PROTOCOL_ERROR"},
		{name: "two lengths", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "5", "content-length", "6")...)
			_ = p.WriteData(1, true, []byte("hello"))
			return p.outcome(1)[:3] + p.alive(3)
		}, want: "400"},
		{name: "a signed length", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "+5")...)
			_ = p.WriteData(1, true, []byte("hello"))
			return p.outcome(1)[:3] + p.alive(3)
		}, want: "400"},
		{name: "a chunk's end in a body", do: func(p *probe) string {
			p.open(1, false, posting("/echo")...)
			_ = p.WriteData(1, true, []byte("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
			return p.outcome(1) + p.alive(3)
		}, want: `200 "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"`},
		{name: "padding", do: func(p *probe) string {
			p.open(1, false, posting("/echo")...)
			_ = p.WriteDataPadded(1, false, []byte("he"), make([]byte, 200))
			_ = p.WriteDataPadded(1, false, nil, make([]byte, 255))
			_ = p.WriteDataPadded(1, true, []byte("llo"), []byte{})
			return p.outcome(1) + p.alive(3)
		}, want: `200 "hello"`},
		{name: "padding longer than its frame", do: func(p *probe) string {
			p.open(1, false, posting("/echo")...)
			_ = p.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1, 2})
			return p.outcome(1)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "request trailers", do: func(p *probe) string {
			p.open(1, false, posting("/trailer", "te", "trailers", "trailer", "X-Sum")...)
			_ = p.WriteData(1, false, []byte("hello"))
			p.open(1, true, "x-sum", "9")
			return p.outcome(1) + p.alive(3)
		}, want: `200, trailer x-sum: 9 "hello"`},
		{name: "trailers that frame", do: func(p *probe) string {
			p.open(1, false, posting("/trailer", "te", "trailers", "trailer", "X-Sum")...)
			_ = p.WriteData(1, false, []byte("hello"))
			p.open(1, true, "content-length", "9", "host", "b", "x-sum", "1", "authorization", "x")
			return p.outcome(1) + p.alive(3)
		}, want: `200, trailer x-sum: 1 "hello"`},
		{name: "trailers with a pseudo-field", do: func(p *probe) string {
			p.open(1, false, posting("/echo")...)
			_ = p.WriteData(1, false, []byte("hello"))
			p.open(1, true, ":path", "/smuggled")
			return p.outcome(1) + p.alive(3)
		}, want: "reset PROTOCOL_ERROR"},
		{name: "trailers that do not end", do: func(p *probe) string {
			p.open(1, false, posting("/echo")...)
			p.open(1, false, "x-sum", "1")
			return p.outcome(1) + p.alive(3)
		}, want: "reset PROTOCOL_ERROR"},
		{name: "HEAD", do: malformedRequest(":method", "HEAD", ":scheme", "http", ":authority", "a", ":path", "/length"), want: "200"},
		{name: "204", do: malformedRequest(getting("/status?204")...), want: "204"},
		{name: "304", do: malformedRequest(getting("/status?304")...), want: "304"},
		{name: "early hints", do: malformedRequest(getting("/hints")...), want: `103, 200 "done"`},
		{name: "a reply that is cut", do: func(p *probe) string {
			p.open(1, true, getting("/cut")...)
			out := p.outcome(1) // how much came before is a matter of chance
			return out[max(strings.Index(out, "reset"), 0):] + p.alive(3)
		}, want: "reset INTERNAL_ERROR"},
		{name: "100-continue", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "expect", "100-continue")...)
			p.until(func() bool { return len(p.heads[1]) > 0 })
			_ = p.WriteData(1, true, []byte("hello"))
			return p.outcome(1) + p.alive(3)
		}, want: `100, 200 "hello"`},
		{name: "answered before the upload ends", do: func(p *probe) string {
			p.open(1, false, posting("/early")...)
			p.until(func() bool { return p.ended[1] })
			for range 3 {
				_ = p.WriteData(1, false, make([]byte, 16<<10))
			}
			_ = p.WriteData(1, true, nil)
			return p.outcome(1) + p.alive(3)
		}, want: "403"},
		{name: "an upload that is taken back", do: func(p *probe) string {
			p.open(1, false, posting("/echo", "content-length", "100000")...)
			_ = p.WriteData(1, false, make([]byte, 10_000))
			_ = p.WriteRSTStream(1, http2.ErrCodeCancel)
			return p.alive(3)
		}, want: ""},
	}
}

func attacksOnFlow() []attack {
	return []attack{
		{name: "a window that becomes negative", do: func(p *probe) string {
			p.open(1, true, getting("/big?200000")...)
			p.until(func() bool { return p.bodies[1] != nil && p.bodies[1].Len() == 65535 })
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}) // now -65435
			_ = p.WriteWindowUpdate(0, 1<<20)
			_ = p.WriteWindowUpdate(1, 65435) // 0: still nothing
			_ = p.WritePing(false, [8]byte{1})
			p.until(func() bool { return p.pongs == 1 })
			if n := p.bodies[1].Len(); n != 65535 {
				return fmt.Sprintf("%d bytes in a window of 65535", n)
			}
			_ = p.WriteWindowUpdate(1, 1)
			_ = p.WritePing(false, [8]byte{1})
			p.until(func() bool { return p.pongs == 2 })
			if n := p.bodies[1].Len(); n != 65536 {
				return fmt.Sprintf("%d bytes in a window of 65536", n)
			}
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			p.until(func() bool { return p.ended[1] })
			return fmt.Sprint(p.bodies[1].Len()) + p.alive(3)
		}, want: "200000"},
		{name: "a window that overflows by settings", do: func(p *probe) string {
			p.open(1, true, getting("/hang")...)
			p.until(func() bool { return len(p.heads[1]) > 0 })
			_ = p.WriteWindowUpdate(1, 1<<31-1-65535)
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65536})
			return p.outcome(1)
		}, want: "200 goaway FLOW_CONTROL_ERROR"},
		{name: "a stream's window that overflows", do: func(p *probe) string {
			p.open(1, true, getting("/hang")...)
			p.until(func() bool { return len(p.heads[1]) > 0 })
			_ = p.WriteWindowUpdate(1, 1<<31-1)
			return p.outcome(1) + p.alive(3)
		}, want: "200 reset FLOW_CONTROL_ERROR"},
		{name: "the connection's window that overflows", do: func(p *probe) string {
			_ = p.WriteWindowUpdate(0, 1<<31-1)
			return p.outcome(1)
		}, want: "goaway FLOW_CONTROL_ERROR"},
		{name: "more than a stream's window", do: func(p *probe) string {
			p.open(1, false, posting("/unread", "content-length", "100000000")...)
			for range 2000 { // the backend reads nothing: it is more than all buffers take
				if p.WriteData(1, false, make([]byte, 16<<10)) != nil {
					break
				}
				p.windows[1] = 0
			}
			out := p.outcome(1)
			if strings.Contains(out, "FLOW_CONTROL_ERROR") {
				return "FLOW_CONTROL_ERROR"
			}
			return out
		}, want: "FLOW_CONTROL_ERROR"},
		{name: "streams wait for the connection one by one", do: func(p *probe) string {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			for id := uint32(1); id < 20; id += 2 {
				p.open(id, true, getting("/big?100000")...)
			}
			for id := uint32(1); id < 20; id += 2 {
				p.until(func() bool {
					if !p.ended[id] {
						_ = p.WriteWindowUpdate(0, 20_000)
					}
					return p.ended[id]
				})
				if p.bodies[id] == nil || p.bodies[id].Len() != 100_000 {
					return "a body is incomplete"
				}
			}
			return "whole"
		}, want: "whole"},
	}
}

func attacksOnState() []attack {
	return []attack{
		{name: "a number that goes back", do: func(p *probe) string {
			p.open(5, true, getting("/who")...)
			p.outcome(5)
			p.open(3, true, getting("/who")...)
			return p.outcome(3)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "an even number", do: func(p *probe) string {
			p.open(2, true, getting("/who")...)
			return p.outcome(2)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "DATA for an idle stream", do: func(p *probe) string {
			_ = p.WriteData(7, true, nil)
			return p.outcome(7)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "WINDOW_UPDATE for an idle stream", do: func(p *probe) string {
			_ = p.WriteWindowUpdate(7, 1)
			return p.outcome(7)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "RST_STREAM for an idle stream", do: func(p *probe) string {
			_ = p.WriteRSTStream(7, http2.ErrCodeCancel)
			return p.outcome(7)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "PRIORITY for an idle stream", do: func(p *probe) string {
			_ = p.WritePriority(7, http2.PriorityParam{StreamDep: 0, Weight: 3})
			return p.alive(9)
		}, want: ""},
		{name: "PRIORITY_UPDATE of no stream", do: func(p *probe) string {
			_ = p.WriteRawFrame(0x10, 0, 0, []byte{0, 0, 0, 0, 'u', '=', '1'})
			return p.outcome(1)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "DATA after the end", do: func(p *probe) string {
			p.open(1, true, getting("/hang")...)
			p.until(func() bool { return len(p.heads[1]) > 0 })
			_ = p.WriteData(1, true, []byte("more"))
			return p.outcome(1) + p.alive(3)
		}, want: "200 reset STREAM_CLOSED"},
		{name: "a frame between pieces of a head", do: func(p *probe) string {
			b := fields(getting("/who")...)
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:3], EndStream: true})
			_ = p.WritePing(false, [8]byte{})
			return p.outcome(1)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "CONTINUATION of nothing", do: func(p *probe) string {
			_ = p.WriteContinuation(1, true, fields(getting("/who")...))
			return p.outcome(1)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "a head byte by byte", do: func(p *probe) string {
			b := fields(getting("/who")...)
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: nil, EndStream: true})
			for i := range b {
				_ = p.WriteContinuation(1, i == len(b)-1, b[i:i+1])
			}
			return p.outcome(1) + p.alive(3)
		}, want: `200 "site.example"`},
		{name: "PUSH_PROMISE", do: func(p *probe) string {
			_ = p.WriteRawFrame(http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 1, []byte{0, 0, 0, 2, 0x82})
			return p.outcome(1)
		}, want: "goaway PROTOCOL_ERROR"},
		{name: "an unknown frame", do: func(p *probe) string {
			_ = p.WriteRawFrame(0xfa, 0xff, 1, []byte("what"))
			return p.alive(1)
		}, want: ""},
		{name: "a frame that is too large", do: func(p *probe) string {
			_ = p.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 16<<10+1))
			return p.outcome(1)
		}, want: "goaway FRAME_SIZE_ERROR"},
		{name: "GOAWAY, then its streams end", do: func(p *probe) string {
			p.open(1, true, getting("/big?200000")...)
			_ = p.WriteGoAway(0, http2.ErrCodeNo, nil)
			_ = p.WriteWindowUpdate(0, 1<<20)
			_ = p.WriteWindowUpdate(1, 1<<20)
			p.until(func() bool { return p.ended[1] })
			if p.bodies[1] == nil {
				return p.outcome(1)
			}
			out := fmt.Sprint(p.bodies[1].Len())
			p.until(func() bool { return false })
			return out + " " + fmt.Sprint(errors.Is(p.err, io.EOF))
		}, want: "200000 true"},
		{name: "many uploads that are all refused early", do: func(p *probe) string {
			const streams = 200
			for i := range uint32(streams) {
				p.open(1+2*i, false, posting("/early")...)
			}
			for i := range uint32(streams) {
				p.until(func() bool { return p.ended[1+2*i] || p.goaway != nil })
			}
			for range 4 { // they continue as windows allow: they did not know
				for i := range uint32(streams) {
					_ = p.WriteData(1+2*i, false, make([]byte, 1000))
				}
			}
			for i := range uint32(streams) {
				p.open(1+2*i, true, "x-sum", "1")
			}
			_ = p.WritePing(false, [8]byte{})
			p.until(func() bool { return p.pongs == 1 || p.goaway != nil })
			if p.goaway != nil {
				return "goaway " + p.goaway.ErrCode.String() + " " + string(p.goaway.DebugData())
			}
			return p.alive(2001)
		}, want: ""},
	}
}

// TestHTTP2IsSafeFromWhatClientsComeUpWith has one client after the other break, or nearly
// break, RFC 9113 against the real binary. Each is answered as the RFC says, no other stream
// suffers, and the backend is asked nothing besides.
func TestHTTP2IsSafeFromWhatClientsComeUpWith(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		for _, secure := range []bool{false, true} {
			name := engine + ", cleartext"
			if secure {
				name = engine + ", TLS"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newRecorder(t)
				s := judge.New(t, judge.Options{Memory: true, TLS: secure, Config: map[string]any{
					"eventloop": map[string]any{"engine": engine},
					"routes":    []any{map[string]any{"path": "/*", "cluster": "b", "limits": map[string]any{"max_body": -1}}},
					"clusters":  []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": b.Listener.Addr().String()}}}},
				}})
				for _, a := range attacks() {
					got := a.do(newProbe(t, s))
					if len(a.want) == 3 && strings.HasPrefix(got, a.want) && !strings.Contains(got, "then") {
						got = a.want // the words of an error are not compared
					}
					if got != a.want {
						t.Errorf("%s: %s, want %s", a.name, got, a.want)
					}
				}
				for _, requested := range b.seen() {
					if strings.Contains(requested, malformedPath) || strings.Contains(requested, smuggledPath) {
						t.Errorf("the backend was asked %q", requested)
					}
				}
			})
		}
	}
}
