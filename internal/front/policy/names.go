package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// Fields that never continue: those of one hop (RFC 9110 §7.6.1), those of the
// message's framing, which the proxy writes anew, and in a request those that we
// write ourselves or that would let a client speak for us.
var (
	hopNames = []string{
		"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
		"proxy-authenticate", "proxy-authorization", "http2-settings",
	}
	requestNames = append([]string{
		"host", "expect", "traceparent", "tracestate",
		// What backends read as another target.
		"x-original-url", "x-rewrite-url", "x-original-host", "x-host", "x-http-host-override", "x-original-uri",
		// And as the certificate of the client.
		"client-cert", "client-cert-chain", "x-client-cert", "x-client-dn", "x-client-verify", "x-arr-clientcert",
		// CGI makes HTTP_PROXY of it.
		"proxy",
	}, hopNames...)
	// addressNames are what CDNs, load balancers and meshes report to backends of the client, its
	// address above all. They continue only from trusted proxies, and only those that
	// trusted.pass names: a proxy that writes one lets a client's others through.
	addressNames = []string{
		"forwarded", "x-real-ip", "x-client-ip", "x-clientip", "client-ip", "true-client-ip", "x-true-client-ip", "x-remote-ip", "x-remote-addr", "x-originating-ip", "x-original-forwarded-for",
		"x-cluster-client-ip", "x-envoy-external-address", "x-proxyuser-ip", "x-appengine-user-ip", "x-forwarded", "forwarded-for", "x-coming-from", "remote-addr",
		"cf-connecting-ip", "cf-connecting-ipv6", "cf-connecting-o2o", "cf-pseudo-ipv4", "cf-ipcountry", "fastly-client-ip", "fly-client-ip", "do-connecting-ip", "ali-cdn-real-ip", "cdn-src-ip", "x-cdn-src-ip", "incap-client-ip",
		"x-sucuri-clientip", "x-nf-client-connection-ip", "x-vercel-forwarded-for", "x-vercel-proxied-for", "x-azure-clientip", "x-azure-socketip", "x-arr-clientip",
		"cloudfront-viewer-address", "x-akamai-edgescape", "x-client-geo-location",
	}
	addressPrefixes = []string{"x-forwarded-", "x-envoy-"}
	// overrideNames let a client have another method than the one it was matched by.
	overrideNames    = []string{"x-http-method-override", "x-http-method", "x-method-override"}
	requestPrefixes  = []string{"x-weir-", "weir-", "grip-", "x-ssl-", "ssl-client-", "x-amzn-mtls-"}
	responseNames    = hopNames
	responsePrefixes = []string{"x-weir-", "weir-", "grip-"}
	// untouchable cannot appear in header rules.
	untouchable = append([]string{"host", "expect"}, hopNames...)
)

// A nameSet is field names in lower case, found without regard to case.
type nameSet struct {
	byLen    [32][]string
	longer   []string
	prefixes []string
	passed   []string // of what the prefixes cover these are not in the set
}

func (s *nameSet) add(name string) {
	name = strings.ToLower(name)
	if len(name) < len(s.byLen) {
		s.byLen[len(name)] = append(slices.Clip(s.byLen[len(name)]), name)
		return
	}
	s.longer = append(s.longer, name)
}

// names are those that were added, in small letters and in an order that is always the same.
func (s *nameSet) names() (list []string) {
	for _, names := range s.byLen {
		list = append(list, names...)
	}
	return append(list, s.longer...)
}

func (s *nameSet) addPrefix(p string) { s.prefixes = append(slices.Clip(s.prefixes), p) }

func (s *nameSet) has(name []byte) bool {
	list := s.longer
	if len(name) < len(s.byLen) {
		list = s.byLen[len(name)]
	}
	for _, n := range list {
		if http1.EqualFold(name, n) {
			return true
		}
	}
	for _, p := range s.prefixes {
		if len(name) >= len(p) && name[0]|0x20 == p[0] && http1.EqualFold(name[:len(p)], p) {
			return !slices.ContainsFunc(s.passed, func(n string) bool { return http1.EqualFold(name, n) })
		}
	}
	return false
}

// rules are compiled HeaderRules together with what is dropped anyway.
type rules struct {
	drop  nameSet
	lines []byte // of set and add
}

func newRules(cfg HeaderRules, names, prefixes []string) rules {
	var r rules
	for _, n := range names {
		r.drop.add(n)
	}
	for _, p := range prefixes {
		r.drop.addPrefix(p)
	}
	for _, n := range cfg.Remove {
		r.drop.add(n)
	}
	for _, n := range sortedKeys(cfg.Set) {
		r.drop.add(n)
		r.lines = http1.AppendField(r.lines, n, cfg.Set[n])
	}
	for _, n := range sortedKeys(cfg.Add) {
		r.lines = http1.AppendField(r.lines, n, cfg.Add[n])
	}
	return r
}

// requestRules compiles the rules of requests: for those of clients, and for those of
// trusted proxies, which may send the fields called pass, in lower case.
func requestRules(cfg HeaderRules, pass []string) (fromClients, fromProxies rules) {
	names, prefixes := slices.Concat(requestNames, addressNames), slices.Concat(requestPrefixes, addressPrefixes)
	fromClients = newRules(cfg, names, prefixes)
	if len(pass) == 0 {
		return fromClients, fromClients
	}
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(addressNames, n) && slices.Contains(pass, n) })
	fromProxies = newRules(cfg, names, prefixes)
	fromProxies.drop.passed = pass
	return fromClients, fromProxies
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// plainName reports whether a name is letters, digits and hyphens. Others are
// not passed to backends: CGI and its heirs make one variable of X-User, X_User
// and X.User, so that one of them could appear in for what we wrote or removed.
func plainName(name []byte) bool {
	for _, c := range name {
		if !plainBytes[c] {
			return false
		}
	}
	return true
}

var plainBytes = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-") {
		t[c] = true
	}
	return t
}()

// maxConnection bounds the Connection fields of a request: every other field is
// looked for in them.
const maxConnection = 256

func connectionBytes(fields []http1.Field) (n int) {
	for i := range fields {
		if len(fields[i].Name) == len("Connection") && http1.EqualFold(fields[i].Name, "connection") {
			n += len(fields[i].Value)
		}
	}
	return n
}

// listsNames reports whether some Connection field names anything besides the
// options that are understood.
func listsNames(fields []http1.Field) bool {
	for i := range fields {
		if len(fields[i].Name) != len("Connection") || !http1.EqualFold(fields[i].Name, "connection") {
			continue
		}
		switch v := fields[i].Value; {
		case http1.EqualFold(v, "keep-alive"), http1.EqualFold(v, "close"), http1.EqualFold(v, "upgrade"), len(v) == 0:
		default:
			return true
		}
	}
	return false
}

// listed reports whether a Connection field names this field: then it is for
// this hop only.
func listed(fields []http1.Field, name []byte) bool {
	for i := range fields {
		if len(fields[i].Name) == len("Connection") && http1.EqualFold(fields[i].Name, "connection") && hasElement(fields[i].Value, name) {
			return true
		}
	}
	return false
}

// hasElement is http1.HasToken for a token that is bytes.
func hasElement(list, token []byte) bool {
	for len(list) > 0 {
		end := 0
		for end < len(list) && list[end] != ',' {
			end++
		}
		e := list[:end]
		for len(e) > 0 && (e[0] == ' ' || e[0] == '\t') {
			e = e[1:]
		}
		for len(e) > 0 && (e[len(e)-1] == ' ' || e[len(e)-1] == '\t') {
			e = e[:len(e)-1]
		}
		if http1.EqualFold(e, token) {
			return true
		}
		list = list[min(end+1, len(list)):]
	}
	return false
}
