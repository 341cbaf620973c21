package centrifuge

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// maxAPIBody bounds a call of the server API.
const maxAPIBody = 4 << 20

// ownAPI is the prefix of Weir's own API. There the endpoints are mounted one by one,
// beside what else is below it, and replace Weir's publish and broadcast.
const ownAPI = "/api"

const (
	pathConnection = "/connection/"
	word           = "centrifuge"
)

// Endpoints are the paths it serves, for the fronts; none unless enabled.
func (s *Server) Endpoints() []socket.Endpoint {
	if !s.conf().cfg.Enabled {
		return nil
	}
	body := s.conf().cfg.MaxCommand
	calls := &api{s}
	list := []socket.Endpoint{
		{Path: pathConnection + "websocket", Methods: "GET", Serve: s.kinds.serveWebSocket},
		{Path: pathConnection + "sse", Methods: "GET, POST", MaxBody: body, Stream: true, Serve: s.kinds.serveSSE},
		{Path: pathConnection + "http_stream", Methods: "POST", MaxBody: body, Serve: s.kinds.serveHTTPStream},
		{Path: "/emulation", Methods: "POST", MaxBody: 2*body + 1<<10, Serve: s.emulated.serve},
		{Path: pathConnection + "uni_websocket", Methods: "GET", Serve: s.kinds.serveUniWebSocket},
		{Path: pathConnection + "uni_sse", Methods: "GET, POST", MaxBody: body, Stream: true, Serve: s.kinds.serveUniSSE},
		{Path: pathConnection + "uni_http_stream", Methods: "POST", MaxBody: body, Serve: s.kinds.serveUniHTTPStream},
	}
	if s.conf().cfg.APIPrefix != ownAPI {
		list = append(list, socket.Endpoint{Path: s.conf().cfg.APIPrefix + "/*", Methods: "POST", MaxBody: maxAPIBody, Serve: calls.serve})
	} else {
		for _, name := range apiNames() {
			list = append(list, socket.Endpoint{Path: ownAPI + "/" + name, Methods: "POST", MaxBody: maxAPIBody, Replaces: true, Serve: calls.serve})
		}
	}
	for i := range list {
		list[i].Protocol = word
	}
	return list
}

// query returns the parameters of a request; what is not a query is none.
func query(r socket.Request) url.Values {
	q, _ := url.ParseQuery(r.Query())
	return q
}

// encodingOf returns the encoding that a client requests in the query.
func encodingOf(q url.Values) protocol.Encoding {
	if q.Get("cf_protocol") == "protobuf" || q.Get("format") == "protobuf" {
		return protocol.Protobuf
	}
	return protocol.JSON
}

// isBinary reports whether a body is Protobuf.
func isBinary(r socket.Request) bool {
	t, _, _ := strings.Cut(r.Header("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(t), "application/octet-stream")
}

// captured returns the header fields that proxies are sent.
func (x *settings) captured(r socket.Request) map[string]string {
	var m map[string]string
	_, access := r.Origin()
	for _, name := range x.forwarded {
		if access != auth.OriginTrusted && (name == "cookie" || name == "authorization") {
			continue // the browser adds them by itself, whatever the page
		}
		if v := r.Header(name); v != "" && len(v) <= maxHeader {
			if m == nil {
				m = map[string]string{}
			}
			m[name] = strings.Clone(v)
		}
	}
	return m
}

func (ks *kinds) serveWebSocket(r socket.Request) {
	enc := encodingOf(query(r))
	headers := ks.srv.conf().captured(r)
	var chosen string
	var id *auth.Identity
	pings := r.HeartbeatInterval(time.Duration(ks.srv.conf().cfg.PingInterval))
	r.WebSocket(socket.WebSocketOptions{
		Subprotocols: []string{"centrifuge-protobuf", "centrifuge-json"}, Chosen: &chosen, Identity: &id, MaxMessage: ks.srv.conf().cfg.MaxCommand,
	}, func(t socket.Transport) socket.Session {
		switch chosen {
		case "centrifuge-protobuf":
			enc = protocol.Protobuf
		case "centrifuge-json":
			enc = protocol.JSON
		}
		return as(ks.ws[enc].begin(t, headers, pings), id)
	})
}

func (ks *kinds) serveUniWebSocket(r socket.Request) {
	headers := ks.srv.conf().captured(r)
	first := query(r).Get("cf_connect")
	var id *auth.Identity
	pings := r.HeartbeatInterval(time.Duration(ks.srv.conf().cfg.PingInterval))
	r.WebSocket(socket.WebSocketOptions{MaxMessage: ks.srv.conf().cfg.MaxCommand, Identity: &id}, func(t socket.Transport) socket.Session {
		c := as(ks.uniWS.begin(t, headers, pings), id)
		if first != "" {
			t.Post(func() { c.uniMessage([]byte(first)) })
		}
		return c
	})
}

// as notes who the client of s is by the decision of an extension, until it connects; nil: not
// decided.
func as(s *session, id *auth.Identity) *session {
	if id != nil {
		s.ensureExtras().identity = id
	}
	return s
}

// uniMessage is the first message of a unidirectional client; what else it says is of
// no interest.
func (s *session) uniMessage(b []byte) {
	if s.flags&(ended|connecting|connected) != 0 {
		return
	}
	r, err := protocol.ParseConnect(b)
	if err != nil {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	s.connect(0, r)
}

// admitPage answers a request of a page that may not connect.
func admitPage(r socket.Request) bool {
	if !r.AdmitPage() {
		r.Fail(&wire.Error{Status: http.StatusForbidden, Message: "origin not allowed", Hint: "add the page's origin to auth.allowed_origins"})
		return false
	}
	return true
}

// serve accepts a connection that starts with what the client said in its request.
func (k *kind) serve(r socket.Request, contentType string, said []byte, resume string) {
	if !admitPage(r) {
		return
	}
	headers := k.srv.conf().captured(r)
	said = slices.Clone(said)
	var id *auth.Identity
	pings := r.HeartbeatInterval(time.Duration(k.srv.conf().cfg.PingInterval))
	r.Stream(socket.StreamOptions{ContentType: contentType, Identity: &id}, func(t socket.Transport) socket.Session {
		c := as(k.begin(t, headers, pings), id)
		if resume != "" {
			c.ensureExtras().resume = resume
		}
		if k.sse {
			t.Write([]byte("\n")) // eventsource 2.0.2 loses what comes in one read with an empty line that ends in CR LF
		}
		t.Post(func() {
			if k.uni {
				c.uniMessage(said)
			} else {
				c.input(said)
			}
		})
		return c
	})
}

// connectInput returns what a client of an event stream said: in the query, or in the body.
func connectInput(r socket.Request) []byte {
	if r.Method() == http.MethodPost {
		return r.Body()
	}
	return []byte(query(r).Get("cf_connect"))
}

const eventStream = "text/event-stream"

func (ks *kinds) serveSSE(r socket.Request) {
	b := connectInput(r)
	if len(b) == 0 {
		r.Fail(&wire.Error{Status: http.StatusBadRequest, Message: "no connect command", Hint: "send it in cf_connect"})
		return
	}
	ks.sse.serve(r, eventStream, b, "")
}

func (ks *kinds) serveHTTPStream(r socket.Request) {
	k, contentType := ks.stream[protocol.JSON], "application/json"
	if isBinary(r) {
		k, contentType = ks.stream[protocol.Protobuf], "application/octet-stream"
	}
	if len(r.Body()) == 0 {
		r.Fail(&wire.Error{Status: http.StatusBadRequest, Message: "no connect command", Hint: "send it as the body"})
		return
	}
	k.serve(r, contentType, r.Body(), "")
}

func (ks *kinds) serveUniSSE(r socket.Request) {
	resume := r.Header("Last-Event-ID")
	if resume == "" {
		resume = query(r).Get("lastEventId")
	}
	ks.uniSSE.serve(r, eventStream, connectInput(r), strings.Clone(resume))
}

func (ks *kinds) serveUniHTTPStream(r socket.Request) {
	ks.uniStream.serve(r, "application/json", r.Body(), "")
}
