package fronts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// askHTTP2 sends q over HTTP/2, frame by frame, so that no library corrects it. It
// returns false for what cannot be said there: it is not a request, or more than one, or is
// about how HTTP/1.1 frames one, or longer than the first window.
func askHTTP2(t *testing.T, addr string, q question) (got []reply, ok bool) {
	t.Helper()
	in := bufio.NewReader(strings.NewReader(q.raw))
	r, err := http.ReadRequest(in)
	if err != nil || r.ProtoMinor != 1 || r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" || r.Header.Get("Connection") != "" {
		return nil, false
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) > 60_000 || in.Buffered() > 0 || strings.Contains(q.raw, "Content-Length: 5\r\nTransfer-Encoding") {
		return nil, false
	}
	fields, ok := fieldsOf(q.raw)
	if !ok {
		return nil, false
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = enc.WriteField(f)
	}
	fr := http2.NewFramer(c, c)
	fr.AllowIllegalWrites = true
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = fr.WriteSettings()
	head := block.Bytes()
	first := min(len(head), 16<<10)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head[:first], EndStream: len(body) == 0, EndHeaders: first == len(head)})
	for head = head[first:]; len(head) > 0; {
		n := min(len(head), 16<<10)
		_ = fr.WriteContinuation(1, n == len(head), head[:n])
		head = head[n:]
	}
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		_ = fr.WriteData(1, n == len(body), body[:n])
		body = body[n:]
	}
	return answered(t, fr, q), true
}

// fieldsOf are the fields of a head that is written in HTTP/1.1, as HTTP/2 has them.
func fieldsOf(raw string) (fields []hpack.HeaderField, ok bool) {
	head, _, _ := strings.Cut(raw, "\r\n\r\n")
	line, rest, _ := strings.Cut(head, "\r\n")
	method, target, ok := strings.Cut(line, " ")
	target, _, ok2 := strings.Cut(target, " ")
	if !ok || !ok2 || !strings.HasPrefix(target, "/") && target != "*" {
		return nil, false
	}
	fields = []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: target}}
	hosts := 0
	var others []hpack.HeaderField
	for line := range strings.SplitSeq(rest, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		switch {
		case !ok && line != "":
			return nil, false
		case line == "", name == "connection", name == "keep-alive", name == "transfer-encoding", name == "proxy-connection", name == "te", name == "trailer":
		case name == "host" && hosts == 0:
			hosts++
			fields = append(fields, hpack.HeaderField{Name: ":authority", Value: value})
		default:
			others = append(others, hpack.HeaderField{Name: name, Value: value})
		}
	}
	return append(fields, others...), hosts > 0
}

// answered reads the answer to the one request.
func answered(t *testing.T, fr *http2.Framer, q question) []reply {
	t.Helper()
	var one reply
	var body bytes.Buffer
	ours := false
	for ended := false; !ended; {
		f, err := fr.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = fr.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				switch h.Name {
				case ":status":
					one.status = int(h.Value[0]-'0')*100 + int(h.Value[1]-'0')*10 + int(h.Value[2]-'0')
				case "x-backend":
					ours = true
				case "set-cookie":
					one.cookies++
				}
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			body.Write(f.Data())
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			if one.status == 0 { // it is how HTTP/2 refuses what is malformed
				one.status = http.StatusBadRequest
			}
			ended = true
		}
	}
	if ours {
		one.seen = &seen{}
		if body.Len() > 0 && json.Unmarshal(body.Bytes(), one.seen) != nil {
			t.Errorf("%s: the backend's answer came as %q", q.name, body.Bytes())
		}
	} else {
		one.cookies = 0
	}
	return []reply{one}
}
