package mercure

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
)

const (
	textPlain    = "text/plain; charset=utf-8"
	metadataPath = "/.well-known/oauth-protected-resource"
)

// A refusal is why a request is not served, in OAuth's words (RFC 6750 §3.1).
type refusal struct {
	status int
	code   string // of WWW-Authenticate; "" for none
	text   string // the text for the client; "" means the status
}

var (
	noToken     = &refusal{http.StatusUnauthorized, "", ""}
	badToken    = &refusal{http.StatusUnauthorized, "invalid_token", ""}
	notGranted  = &refusal{http.StatusForbidden, "insufficient_scope", ""}
	badOrigin   = &refusal{http.StatusForbidden, "", "pages of this origin may not do this"}
	unreachable = &refusal{http.StatusServiceUnavailable, "", ""} // Away is the answer
)

func malformed(e *protocol.Error) *refusal {
	return &refusal{e.Status, "invalid_request", e.Message}
}

// refuse answers. Hubs of draft 07 answer 401 to whatever a token does not allow.
func (s *Server) refuse(r socket.Request, d protocol.Dialect, why *refusal) {
	if why == unreachable {
		r.Away(r.Method() != http.MethodPost)
		return
	}
	status := why.status
	if why == noToken || why == badToken || why == notGranted || why == badOrigin {
		s.counts.denied.Add(1)
	}
	var fields []socket.Field
	switch {
	case d == protocol.Draft08 && (why == noToken || why.code != "" && status < http.StatusRequestEntityTooLarge),
		s.serve.Draft08 && status == http.StatusUnauthorized: // no client of draft 07 minds
		fields = []socket.Field{{Name: "WWW-Authenticate", Value: s.conf().challenge(r, why)}}
	case d == protocol.Draft07 && why == notGranted:
		status = http.StatusUnauthorized
	}
	text := why.text
	text = cmp.Or(text, http.StatusText(status))
	r.Answer(status, textPlain, []byte(text+"\n"), fields...)
}

// challenge is the WWW-Authenticate of a refusal. Those that are about the token say where
// the metadata is.
func (x *settings) challenge(r socket.Request, why *refusal) string {
	v := "Bearer"
	sep := " "
	if why.code != "" {
		v += sep + `error="` + why.code + `"`
		sep = ", "
	}
	if m := x.metadataURL(r); m != "" && why.status != http.StatusBadRequest {
		v += sep + `resource_metadata="` + m + `"`
	}
	return v
}

// metadataURL is where clients find the metadata: where the hub is, as the configuration
// says or the client has found it. "" without metadata.
func (x *settings) metadataURL(r socket.Request) string {
	cfg := &x.cfg
	if cfg.Resource == "" {
		return ""
	}
	at := cmp.Or(origin(cfg.PublicURL), origin(cfg.Resource))
	if at == "" {
		if at = "http://" + r.Host(); r.Secure() {
			at = "https://" + r.Host()
		}
	}
	return at + metadataPath + cfg.Path
}

// serveMetadata is RFC 9728's.
func (s *Server) serveMetadata(r socket.Request) {
	doc := struct {
		Resource   string   `json:"resource"`
		Servers    []string `json:"authorization_servers,omitempty"`
		Details    []string `json:"authorization_details_types_supported"`
		Bearer     []string `json:"bearer_methods_supported"`
		Cookie     string   `json:"mercure_cookie"`
		Matchers   []string `json:"mercure_matcher_types_supported"`
		Subscribed bool     `json:"mercure_subscriptions,omitempty"`
	}{
		Resource: s.conf().cfg.Resource, Details: []string{protocol.DetailType}, Bearer: []string{"header"}, Cookie: s.conf().cfg.Cookie08,
		Matchers: []string{protocol.Exact.String(), protocol.URLPattern.String()}, Subscribed: s.conf().cfg.Subscriptions,
	}
	for _, iss := range s.conf().cfg.Issuers {
		doc.Servers = append(doc.Servers, iss.Issuer)
	}
	if doc.Resource == "" {
		r.Answer(http.StatusNotFound, textPlain, []byte("the hub has no resource identifier\n"))
		return
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic("mercure: the metadata has no JSON: " + err.Error())
	}
	r.Answer(http.StatusOK, "application/json", b)
}
