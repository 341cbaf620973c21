package policy

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/front/router"
)

// forwardingFields reports which fields of our own the upstream gets. One that a header rule
// sets or removes is the rule's.
type forwardingFields struct {
	xFor, xProto, xHost, forwarded, via, trace bool
}

func newForwardingFields(cfg *RouteConfig) forwardingFields {
	ruled := func(name string) bool {
		has := func(n string) bool { return strings.EqualFold(n, name) }
		for n := range cfg.RequestHeaders.Set {
			if has(n) {
				return true
			}
		}
		return slices.ContainsFunc(cfg.RequestHeaders.Remove, has)
	}
	x := cfg.Forwarding == "x-forwarded" || cfg.Forwarding == "both"
	return forwardingFields{
		xFor: x && !ruled("X-Forwarded-For"), xProto: x && !ruled("X-Forwarded-Proto"), xHost: x && !ruled("X-Forwarded-Host"),
		forwarded: (cfg.Forwarding == "forwarded" || cfg.Forwarding == "both") && !ruled("Forwarded"),
		via:       !ruled("Via"), trace: !ruled("traceparent"),
	}
}

// rewritten makes the path that the upstream gets. It reports false if that has
// no single reading.
func (r *admission) rewritten(x *Exchange) bool {
	rw := &r.cfg.Rewrite
	switch {
	case r.rewrite != nil:
		x.outBuf = r.rewrite.expand(x.outBuf[:0], x)
	case rw.StripPrefix != "" || rw.AddPrefix != "":
		rest := x.path
		if n := len(rw.StripPrefix); n > 0 && len(rest) >= n && string(rest[:n]) == rw.StripPrefix && (len(rest) == n || rest[n] == '/') {
			rest = rest[n:]
		}
		x.outBuf = append(append(x.outBuf[:0], rw.AddPrefix...), rest...)
		if len(x.outBuf) == 0 {
			x.outBuf = append(x.outBuf, '/')
		}
	default:
		x.out = x.path
		return true
	}
	out, odd, err := router.Normalize(x.cleanBuf[:0], x.outBuf)
	if err != nil || r.checkPath(odd).Action != Forward {
		return false
	}
	if &out[0] != &x.outBuf[0] {
		x.cleanBuf = out
	}
	x.out = out
	return true
}

// AppendRequestHead appends the head for the upstream, empty line included, in
// the one form that every reader reads alike: the path normalised and rewritten,
// one Host, framing by f alone, no field of this hop or that Connection names, no
// name but of letters, digits and hyphens. After Admit, before Retain.
func (r *heads) AppendRequestHead(dst []byte, x *Exchange, f Framing) []byte {
	dst = append(append(dst, x.Method...), ' ')
	dst = append(dst, x.out...)
	trace := string(x.Method) == "TRACE"
	if x.Query != nil {
		dst = append(dst, '?')
		switch {
		case trace: // the answer shows what the backend got
			dst = appendQuery(dst, redact.AppendQuery(nil, x.Query, r.redact))
		case r.cfg.Auth.Forward && x.presented == byQuery:
			dst = appendWithoutToken(dst, x.Query)
		default:
			dst = appendQuery(dst, x.Query)
		}
	}
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	switch h := r.cfg.Rewrite.Host; {
	case h == "$upstream", h == "" && len(x.Host) == 0:
		dst = append(dst, f.Host...)
	case h != "":
		dst = append(dst, h...)
	default:
		dst = appendHost(dst, x.Host)
	}
	dst = append(dst, "\r\n"...)
	perHop, drop := listsNames(x.Fields), &r.request.drop
	if r.deps.Trust.Trusts(x.Peer.Addr()) {
		drop = &r.fromProxy.drop
	}
	for i := range x.Fields {
		fl := &x.Fields[i]
		if !plainName(fl.Name) || r.isCredential(fl.Name, x) || perHop && listed(x.Fields, fl.Name) || removed(x.extension, fl.Name) ||
			f.shared != nil && !f.shared.has(fl.Name) {
			continue
		}
		switch {
		case f.announces(fl.Name):
			dst = r.appendAnnounced(dst, fl.Value)
		case !drop.has(fl.Name) && !(trace && redact.Name(fl.Name)):
			dst = appendPassed(dst, fl, x)
		}
	}
	dst = r.appendRuled(dst, x)
	if f.shared == nil {
		dst = r.appendOrigin(dst, x)
	}
	dst = r.appendOwn(dst, x)
	dst = f.append(dst)
	if f.Expect {
		dst = append(dst, "Expect: 100-continue\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// appendRuled appends the fields of the route's rules, then those of the authorization server
// and those of extensions, which replace the ones before.
func (r *heads) appendRuled(dst []byte, x *Exchange) []byte {
	var replaced []string
	if x.extension != nil {
		replaced = x.extension.Removed
	}
	dst = extension.WithoutLines(dst, r.request.lines, replaced)
	if x.decision != nil {
		dst = extension.WithoutLines(dst, x.decision.Lines, replaced)
	}
	if x.extension != nil {
		dst = append(dst, x.extension.Lines...)
	}
	return dst
}

// RequestTrailers returns those of lines, the fields behind a request's body, that the
// upstream may get, in their place: what a client may not say in the head it may not say
// behind the body either, and keys are read from heads alone.
func (r *heads) RequestTrailers(x *Exchange, lines []byte) []byte {
	out := lines[:0]
	for line := range bytes.Lines(lines) {
		if name, _, ok := bytes.Cut(line, []byte(":")); ok && r.mayTrail(name) && !removed(x.extension, name) {
			out = append(out, line...)
		}
	}
	return out
}

// mayTrail reports whether a field of this name may follow a request's body.
func (r *heads) mayTrail(name []byte) bool {
	return plainName(name) && !r.request.drop.has(name) && !http1.EqualFold(name, "x-api-key")
}

// appendAnnounced appends a Trailer field with those names of list that may follow the
// body: servers show announced fields to their handlers, whether they come or not.
func (r *heads) appendAnnounced(dst, list []byte) []byte {
	start, name := len(dst), "Trailer: "
	for part := range bytes.SplitSeq(list, []byte(",")) {
		if part = bytes.Trim(part, " \t"); len(part) > 0 && r.mayTrail(part) {
			dst = append(append(dst, name...), part...)
			name = ", "
		}
	}
	if len(dst) == start {
		return dst
	}
	return append(dst, "\r\n"...)
}

// appendPassed appends a field that continues: without the cookie of our own admin listener,
// which browsers send to every port, and with one hop less left.
func appendPassed(dst []byte, fl *http1.Field, x *Exchange) []byte {
	switch len(fl.Name) {
	case len("Cookie"):
		if http1.EqualFold(fl.Name, "cookie") && bytes.Contains(fl.Value, adminCookie) {
			if rest := http1.AppendWithoutCookie(nil, fl.Value, auth.AdminCookie); len(rest) > 0 {
				dst = http1.AppendField(dst, fl.Name, rest)
			}
			return dst
		}
	case len("Max-Forwards"):
		if x.hopsLeft >= 0 && http1.EqualFold(fl.Name, "max-forwards") {
			return http1.AppendIntField(dst, "Max-Forwards", int64(x.hopsLeft))
		}
	}
	return http1.AppendField(dst, fl.Name, fl.Value)
}

var adminCookie = []byte(auth.AdminCookie)

// isCredential reports whether a field proved the identity that the upstream receives.
func (r *heads) isCredential(name []byte, x *Exchange) bool {
	return r.cfg.Auth.Forward &&
		(x.presented == byHeader && http1.EqualFold(name, "authorization") || x.presented == byKey && http1.EqualFold(name, "x-api-key"))
}

// appendOrigin appends where the request comes from, by which way, and its trace.
func (r *heads) appendOrigin(dst []byte, x *Exchange) []byte {
	peer := x.Peer.Addr().Unmap()
	if r.forwarding.xFor {
		dst = append(dst, "X-Forwarded-For: "...)
		if x.Client != peer {
			dst = append(appendAddr(dst, x.Client), ", "...)
		}
		dst = append(appendAddr(dst, peer), "\r\n"...)
	}
	scheme, host := x.scheme(r.deps.Trust, peer)
	if r.forwarding.xProto {
		dst = append(append(append(dst, "X-Forwarded-Proto: "...), scheme...), "\r\n"...)
	}
	if r.forwarding.xHost && len(host) > 0 {
		dst = append(appendHost(append(dst, "X-Forwarded-Host: "...), host), "\r\n"...)
	}
	if r.forwarding.forwarded {
		dst = appendForwarded(dst, x.Client, peer, scheme, host)
	}
	if r.forwarding.via {
		switch x.Minor {
		case 0:
			dst = append(dst, "Via: 1.0 weir\r\n"...)
		case 2:
			dst = append(dst, "Via: 2.0 weir\r\n"...)
		case 3:
			dst = append(dst, "Via: 3.0 weir\r\n"...)
		default:
			dst = append(dst, "Via: 1.1 weir\r\n"...)
		}
	}
	if r.forwarding.trace {
		dst = appendTrace(dst, x)
	}
	return dst
}

// appendOwn appends who the client is, for the upstream.
func (r *heads) appendOwn(dst []byte, x *Exchange) []byte {
	if r.cfg.Auth.Forward && x.Identity.By != "" {
		dst = appendIdentity(dst, x.Identity)
	}
	if x.Certificate != nil {
		dst = r.appendCertificate(dst, x.Certificate)
	}
	return dst
}

// scheme returns the scheme and host that the client used, by the word of a
// trusted proxy or by what came here.
func (x *Exchange) scheme(t *limit.Trust, peer netip.Addr) (scheme string, host []byte) {
	scheme, host = "http", x.Host
	if x.TLS {
		scheme = "https"
	}
	if !t.Trusts(peer) {
		return scheme, host
	}
	s, h := t.Origin(x.Fields)
	switch {
	case http1.EqualFold(s, "https"):
		scheme = "https"
	case http1.EqualFold(s, "http"):
		scheme = "http"
	}
	if validHost(h) {
		host = h
	}
	return scheme, host
}

func appendAddr(dst []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(dst, "unknown"...) // a Unix socket
	}
	return a.AppendTo(dst)
}

// appendForwarded appends Forwarded (RFC 7239 §4).
func appendForwarded(dst []byte, client, peer netip.Addr, scheme string, host []byte) []byte {
	dst = append(dst, "Forwarded: "...)
	dst = appendNode(dst, client)
	if len(host) > 0 {
		dst = append(dst, `;host="`...) // quoted: a port's colon is not a token byte
		dst = append(appendHost(dst, host), '"')
	}
	dst = append(append(dst, ";proto="...), scheme...)
	if peer != client {
		dst = appendNode(append(dst, ", "...), peer)
	}
	return append(dst, "\r\n"...)
}

func appendNode(dst []byte, a netip.Addr) []byte {
	if a.Is6() {
		return append(a.AppendTo(append(dst, `for="[`...)), `]"`...)
	}
	return appendAddr(append(dst, "for="...), a)
}

func appendIdentity(dst []byte, id *auth.Identity) []byte {
	dst = http1.AppendField(dst, "X-Weir-User", id.Subject)
	dst = http1.AppendField(dst, "X-Weir-Auth", id.By)
	if scopes := id.Scopes(); len(scopes) > 0 {
		dst = append(dst, "X-Weir-Scopes:"...)
		start := len(dst)
		for _, s := range scopes {
			dst = append(append(dst, ' '), s...)
		}
		for i := start; i < len(dst); i++ {
			if c := dst[i]; c < 0x20 || c == 0x7f {
				dst[i] = ' '
			}
		}
		dst = append(dst, "\r\n"...)
	}
	return dst
}

// setsAdminCookie reports whether a backend would replace the operator's session.
func setsAdminCookie(fl *http1.Field) bool {
	if len(fl.Name) != len("Set-Cookie") || !http1.EqualFold(fl.Name, "set-cookie") {
		return false
	}
	name, _, _ := bytes.Cut(fl.Value, equals)
	return http1.EqualFold(bytes.Trim(name, " \t\""), auth.AdminCookie)
}

var equals = []byte("=")

// announces reports whether a field is the Trailer of a message that has trailers.
func (f *Framing) announces(name []byte) bool {
	return f.Trailers && f.Chunked && http1.EqualFold(name, "trailer")
}

// append writes the fields of the framing.
func (f *Framing) append(dst []byte) []byte {
	switch {
	case f.Chunked:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case f.Length >= 0:
		dst = http1.AppendIntField(dst, "Content-Length", f.Length)
	}
	switch {
	case f.Upgrade != nil:
		dst = http1.AppendField(append(dst, "Connection: Upgrade\r\n"...), "Upgrade", f.Upgrade)
	case f.Close:
		dst = append(dst, "Connection: close\r\n"...)
	case f.KeepAlive:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	return append(dst, f.Extra...)
}

// AppendResponseHead appends the head for the client, empty line included. fields
// are the upstream's; what is of one hop, framing or Weir's own among them is
// dropped.
func (r *heads) AppendResponseHead(dst []byte, x *Exchange, status int, fields []http1.Field, f Framing) []byte {
	dst = http1.AppendStatusLine(dst, status)
	perHop, dated := listsNames(fields), r.dated
	for i := range fields {
		fl := &fields[i]
		if perHop && listed(fields, fl.Name) || r.response.drop.has(fl.Name) && !f.announces(fl.Name) {
			continue
		}
		if setsAdminCookie(fl) || removed(x.response, fl.Name) {
			continue
		}
		dated = dated || len(fl.Name) == len("Date") && http1.EqualFold(fl.Name, "date")
		dst = http1.AppendField(dst, fl.Name, fl.Value)
	}
	if x.response == nil {
		dst = append(dst, r.response.lines...)
	} else {
		dst = extension.WithoutLines(dst, r.response.lines, x.response.Removed)
		dst = append(dst, x.response.Lines...)
		dated = dated || slices.Contains(x.response.Removed, "date")
	}
	if x.link != "" && status < 400 {
		dst = http1.AppendField(dst, "Link", x.link)
	}
	if !dated {
		dst = append(dst, f.Date...)
	}
	dst = r.AppendCORS(dst, x)
	dst = f.append(dst)
	return append(dst, "\r\n"...)
}
