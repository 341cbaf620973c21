package downstream_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/front/socket/sockettest"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

// Every stream goes in chunks to a client of HTTP/1.1, and ends with the last one; to a
// client of HTTP/1.0 it ends with the connection.
func TestStreamsGoInChunks(t *testing.T) {
	t.Parallel()
	held := holding("news")
	held.Path, held.Cluster = "/held", "main"
	tape := recorded()
	tape.Path, tape.Cluster = "/recorded", "main"
	g := start(t, settings{
		routes: []policy.RouteConfig{held, tape},
		endpoints: func(f *wire.Formats) []socket.Endpoint {
			return (&sockettest.Front{Protocol: sockettest.New(f)}).Endpoints()
		},
	}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		if r.URL.Path == "/held" {
			h.Set("Grip-Hold", "stream")
			h.Set("Grip-Channel", "news")
			h.Set("Grip-Keep-Alive", `tick\n\n; format=cstring; timeout=1`)
		}
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
	}))
	cases := []struct {
		name, target string
		want         []string // what comes before the drain, in order
		last         string   // how the stream ends
	}{
		{"native", "/sse?channel=news", []string{"retry: ", "data: {\"n\":1}\n\n"}, `"code":1012`},
		{"envelope", "/sse?channel=news&channel=other", []string{"retry: ", "data: {\"channel\":\"news\"", "\"n\":1"}, `"code":1012`},
		{"several namespaces", "/sse?channel=news&channel=llm:x", []string{"retry: ", "id: ", "data: {\"channel\":\"news\"", "\"n\":1"}, `"code":1012`},
		{"held", "/held", []string{"data: first\n\n\n\nretry: ", "data: {\"n\":1}\n\n", "tick\n\n"}, `"code":1012`},
		{"protocol", "/test/lines?channel=news", []string{"subscribed news\n", "{\"n\":1}"}, "bye\n"},
		{"recording", "/recorded", []string{"data: first\n\n"}, ""},
	}
	type client struct {
		*wiretest.Conn
		name, last string
	}
	var clients []client
	for _, version := range []string{"1.1", "1.0"} {
		var open []*client
		for _, c := range cases {
			w := g.dial()
			w.Send(wiretest.CRLF("GET " + c.target + " HTTP/" + version + "\nHost: x\nX-API-Key: " + testKey + "\n\n"))
			res := w.Response()
			name := c.name + " over HTTP/" + version
			want := []string{"chunked"}
			if version == "1.0" {
				want = nil
			}
			if res.StatusCode != 200 || !slices.Equal(res.TransferEncoding, want) || !res.Close || res.ContentLength != -1 {
				t.Fatalf("%s: %d, transfer encoding %v, close %v, length %d", name, res.StatusCode, res.TransferEncoding, res.Close, res.ContentLength)
			}
			readTo(t, w, name, c.want[0])
			open = append(open, &client{w, name, c.last})
		}
		g.publish("news", `{"n":1}`)
		for i, c := range cases {
			for _, text := range c.want[1:] {
				readTo(t, open[i].Conn, open[i].name, text)
			}
			clients = append(clients, *open[i])
		}
	}
	g.push.Drain(wire.DrainPlan{})
	for _, c := range clients {
		b, err := io.ReadAll(c.R)
		if err != nil || !strings.Contains(string(b), c.last) {
			t.Errorf("%s ends with %q, %v", c.name, b, err)
		}
	}
}

// readTo reads up to text.
func readTo(t *testing.T, w *wiretest.Conn, name, text string) {
	t.Helper()
	var got strings.Builder
	for !strings.HasSuffix(got.String(), text) {
		c, err := w.R.ReadByte()
		if err != nil {
			t.Fatalf("%s: %q, %v instead of %q", name, got.String(), err, text)
		}
		got.WriteByte(c)
	}
}
