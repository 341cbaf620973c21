package migrate

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/protocol/mercure"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// mercureHub is a translation of a configuration of Mercure's hub.
type mercureHub struct{ *translation }

// translate translates a Caddyfile with a directive mercure, or the variables that the
// hub's container is given.
func (t mercureHub) translate(data []byte) error {
	vars := &node{kind: object}
	if len(t.o.Env) > 0 {
		var err error
		if vars, err = parseEnv(t.o.EnvName, t.o.Env); err != nil {
			return err
		}
	}
	switch formatOf(t.file) {
	case ".env":
		env, err := parseEnv(t.file, data)
		if err != nil {
			return err
		}
		for _, m := range vars.fields {
			env.set(m.key, m.value)
		}
		if err := (mercureInput{&t.input}).environment(env); err != nil {
			return err
		}
	case ".json":
		return config.WithHint(fmt.Errorf("%s: Caddy's JSON is not read", t.file), "give the Caddyfile, or the .env file of the container")
	default:
		if err := (mercureInput{&t.input}).caddyfile(string(data), vars); err != nil {
			return err
		}
	}
	t.hub()
	return nil
}

// mercureInput reads what the hub may be configured by into one form of tree.
type mercureInput struct{ *input }

// caddyfile turns a Caddyfile into a tree: sites[] with address, and what is in
// the directive mercure of each under mercure.
func (t mercureInput) caddyfile(s string, vars *node) error {
	if s = substitute(s, vars); len(s) > 2*maxInput {
		return problem(t.file, 0, "", "with its variables it is longer than %d bytes", 2*maxInput)
	}
	all, err := parseCaddyfile(t.file, s)
	if err != nil {
		return err
	}
	resolve(all, vars)
	found := 0
	for _, d := range all {
		if d.name() == "" || strings.HasPrefix(d.name(), "(") || !d.has { // options, snippets
			t.foreign("caddy", d)
			continue
		}
		for _, m := range t.hubs(d.block) {
			found++
			if found > 1 {
				t.note(Untaken, &node{where: "mercure", line: m.line}, "there is one hub; the first was translated", "run another Weir for it, or move its topics")
				continue
			}
			t.site(d)
			t.hubDirectives(m)
		}
	}
	if found == 0 {
		return config.WithHint(fmt.Errorf("%s: there is no site with a directive mercure in it", t.file), "give the Caddyfile of the hub, or the .env file of its container")
	}
	for _, m := range vars.fields { // the Caddyfile refers to them, or does not
		if !m.value.used {
			t.root.put("env."+strings.ReplaceAll(m.key, ".", "_"), m.value)
		}
	}
	return nil
}

var (
	envAtParse = regexp.MustCompile(`\{\$([A-Za-z_][A-Za-z0-9_]*)(?::([^{}]*))?\}`)
	envAtRun   = regexp.MustCompile(`\{env\.([A-Za-z_][A-Za-z0-9_]*)\}`)
)

// substitute puts variables in place of {$NAME}, with or without a default, before the
// file is read, as Caddy does.
func substitute(s string, vars *node) string {
	return envAtParse.ReplaceAllStringFunc(s, func(m string) string {
		parts := envAtParse.FindStringSubmatch(m)
		if v := vars.child(parts[1]); v != nil {
			v.markUsed()
			return v.value
		}
		return parts[2]
	})
}

// resolve puts variables in place of {env.NAME}, which Caddy does when it runs. What is
// not there stays, and is said where it is used.
func resolve(all []*directive, vars *node) {
	for _, d := range all {
		for i, w := range d.words {
			d.words[i] = envAtRun.ReplaceAllStringFunc(w, func(m string) string {
				if v := vars.child(envAtRun.FindStringSubmatch(m)[1]); v != nil {
					v.markUsed()
					return v.value
				}
				return m
			})
		}
		resolve(d.block, vars)
	}
}

// hubs finds the directives mercure in a site, below handle and route too, and notes
// the others.
func (t mercureInput) hubs(block []*directive) (all []*directive) {
	for _, d := range block {
		switch d.name() {
		case "mercure":
			all = append(all, d)
		case "handle", "route", "handle_path":
			all = append(all, t.hubs(d.block)...)
		case "tls": // of the site
		default:
			t.foreign("site", d)
		}
	}
	return all
}

// foreign notes a directive of Caddy that is none of the hub's.
func (t mercureInput) foreign(under string, d *directive) {
	name := strings.Trim(d.name(), "()")
	if name == "" {
		name = "options"
	}
	v := &node{kind: text, value: strings.Join(d.words, " "), line: d.line, where: strings.Join(d.words[:min(len(d.words), 2)], " ")}
	if v.where == "" {
		v.where = "{ global options }"
	}
	if n := t.root.at(under); n == nil {
		t.root.put(under, &node{kind: list})
	}
	n := t.root.at(under)
	n.items = append(n.items, &node{kind: object, line: d.line, fields: []member{{strings.ReplaceAll(strings.ToLower(name), ".", "_"), v}}})
}

// site takes the addresses and the certificate of a site.
func (t mercureInput) site(d *directive) {
	n := &node{kind: list, line: d.line, where: strings.Join(d.words, " ")}
	for _, w := range d.words {
		for a := range strings.SplitSeq(w, ",") {
			if a = strings.TrimSpace(a); a != "" {
				n.items = append(n.items, &node{kind: text, value: a, line: d.line, where: a})
			}
		}
	}
	t.root.put("address", n)
	for _, b := range d.block {
		if b.name() == "tls" {
			t.root.put("tls", b.list("tls"))
		}
	}
}

// hubDirectives puts what is in a directive mercure into the tree.
func (t mercureInput) hubDirectives(m *directive) {
	issuers := &node{kind: list, line: m.line, where: "issuer"}
	for _, d := range m.block {
		if d.name() == "issuer" {
			issuers.items = append(issuers.items, issuer(d))
			continue
		}
		name := strings.ReplaceAll(strings.ToLower(d.name()), ".", "_")
		v := d.list(d.name())
		if len(v.items) == 0 {
			v = &node{kind: boolean, value: "true", line: d.line, where: d.name()}
		}
		t.place("mercure."+name, v)
		for _, o := range d.block {
			sub := &node{kind: text, value: strings.Join(o.words[1:], " "), line: o.line, where: d.name() + " " + o.name()}
			t.place("mercure."+name+"_options."+strings.ReplaceAll(o.name(), ".", "_"), sub)
		}
	}
	if len(issuers.items) > 0 {
		t.root.put("mercure.issuer", issuers)
	}
}

// list is the words after the name, of the key where.
func (d *directive) list(where string) *node {
	n := &node{kind: list, line: d.line, where: where}
	for _, w := range d.words[1:] {
		n.items = append(n.items, &node{kind: text, value: w, line: d.line, where: where})
	}
	return n
}

func issuer(d *directive) *node {
	n := &node{kind: object, line: d.line, where: "issuer"}
	n.put("id", &node{kind: text, value: d.arg(), line: d.line, where: "issuer"})
	for _, r := range d.block {
		at := "issuer " + r.name()
		name := strings.ReplaceAll(r.name(), ".", "_")
		if len(r.block) == 0 {
			n.put(name, &node{kind: text, value: "true", line: r.line, where: at})
		}
		for _, k := range r.block {
			n.put(name+"."+strings.ReplaceAll(k.name(), ".", "_"), k.list(at+" "+k.name()))
		}
	}
	return n
}

// hub translates the tree.
func (t mercureHub) hub() {
	in, m := t.root.at("mercure"), t.out.at("mercure")
	m.set("enabled", true, "")
	t.hubKeys(in, m)
	host := t.hubAddress()
	t.hubDialect(in, m, host)
	ns := &section{}
	ns.set("name", "mercure", "")
	t.out.add("namespaces", ns)
	t.transport(in, ns)
	if on, _ := t.flag1(in, "anonymous"); on {
		m.set("anonymous", true, "")
	}
	for _, key := range []string{"demo", "playground"} {
		if on, at := t.flag1(in, key); on {
			m.set("anonymous", true, "as "+key+" has it")
			t.note(Security, at, "there is no "+key+"; what it lets in without a token is let in", "take mercure.anonymous out")
		}
	}
	if on, _ := t.flag1(in, "subscriptions"); on {
		m.set("subscriptions", true, "")
	}
	t.hubTimes(in, m)
	if s, at := t.first(in, "max_request_body_size"); at != nil {
		if n, ok := bytesOf(s); ok && n >= 1 && n <= 64<<20 {
			m.set("max_body", n, "")
		} else {
			t.note(Untaken, at, "it is not a size from 1 byte to 64 MiB", "mercure.max_body")
		}
	}
	t.origins(in, "cors_origins")
	t.publishOrigins(in, m)
	t.out.at("broker").set("kind", "nats", "the log is in ./weir-data")
}

func (t mercureHub) publishOrigins(in *node, m *section) {
	all, at := t.texts(in, "publish_origins")
	var taken []string
	for _, o := range all {
		if err := (mercure.Config{PublishOrigins: []string{o}}).Validate(); err != nil {
			t.note(Untaken, at, fmt.Sprintf("%.60q is not an origin", printable(o)), "mercure.publish_origins")
		} else if !slices.Contains(taken, o) {
			taken = append(taken, o)
		}
	}
	if len(taken) > 0 {
		m.set("publish_origins", taken, "")
	}
}

func (t mercureHub) hubTimes(in *node, m *section) {
	if d, at := t.span1(in, "heartbeat"); at != nil {
		if d >= time.Second {
			m.set("heartbeat", d, "")
		} else {
			t.note(Untaken, at, "heartbeats are at least 1s apart, and are always sent", "mercure.heartbeat")
		}
	}
	if d, at := t.span1(in, "write_timeout"); at != nil {
		switch {
		case d <= 0:
			m.set("connection_life", -time.Second, "never ends by itself")
		case d >= time.Second:
			m.set("connection_life", d, "at random, from 80 to 100 % of it")
			t.changed(at, "a stream ends at a random time from 80 to 100 %% of it, so that not all come back at once")
		default:
			t.note(Untaken, at, "less than 1s is not a time to stay connected", "mercure.connection_life")
		}
	}
	if s, at := t.first(in, "cookie_name"); at != nil {
		key := "cookie"
		if in.at("issuer") != nil {
			key = "cookie_08"
		}
		if err := (mercure.Config{Cookie: s}).Validate(); err != nil {
			t.note(Untaken, at, "it is not a name of a cookie", "mercure."+key)
			return
		}
		m.set(key, s, "")
	}
}

// first returns the first word of a directive.
func (t mercureHub) first(in *node, name string) (string, *node) {
	words, at := t.texts(in, name)
	if len(words) == 0 {
		return "", nil
	}
	return words[0], at
}

// flag1 reads a directive without a value, or says true or false.
func (t mercureHub) flag1(in *node, name string) (bool, *node) {
	v := in.at(name)
	if v != nil && v.kind == list {
		s, at := t.first(in, name)
		return s != "false" && s != "0", at
	}
	return t.flag(in, name)
}

func (t mercureHub) span1(in *node, name string) (time.Duration, *node) {
	s, at := t.first(in, name)
	if at == nil {
		return 0, nil
	}
	var d hub.Duration
	if err := d.UnmarshalText([]byte(s)); err != nil {
		t.note(Untaken, at, fmt.Sprintf("%.40q is not a duration", s), "")
		return 0, nil
	}
	return time.Duration(d), at
}

var sizeUnits = regexp.MustCompile(`^([0-9]{1,12})\s*([kKmM]?)(i?)[bB]?$`)

// bytesOf reads a size as 512KB or 1MiB.
func bytesOf(s string) (int, bool) {
	m := sizeUnits.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	unit := 1000
	if m[3] != "" {
		unit = 1024
	}
	switch strings.ToLower(m[2]) {
	case "k":
		n *= unit
	case "m":
		n *= unit * unit
	}
	return n, err == nil
}

// hubAddress translates the addresses of the site and returns the hub's URL, if they
// say it.
func (t mercureHub) hubAddress() string {
	all, at := t.texts(t.root, "address")
	if len(all) == 0 {
		all = []string{"localhost"}
	}
	if len(all) > 1 {
		t.changed(at, "Weir answers for every name; the first, %s, is treated as its URL", printable(all[0]))
	}
	s := all[0]
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "", s
	}
	rest, path, _ := strings.Cut(rest, "/")
	if path != "" && path != "*" {
		t.changed(at, "the hub is at /.well-known/mercure whatever the path of the site")
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = rest, ""
	}
	secure := scheme == "https" || scheme == "" && port != "80" && host != "" // as Caddy has it
	if strings.ContainsAny(host, "*{}[]") {
		host = ""
	}
	if port == "" {
		port = map[bool]string{true: "443", false: "80"}[secure]
	}
	t.hubListen(host, port, secure, at)
	local := host == "localhost" || net.ParseIP(host) != nil
	if host == "" || local || strings.ContainsAny(host, "{}$ ") {
		return ""
	}
	u := url.URL{Scheme: map[bool]string{true: "https", false: "http"}[secure], Host: host, Path: "/.well-known/mercure"}
	if secure && port != "443" || !secure && port != "80" {
		u.Host = net.JoinHostPort(host, port)
	}
	if (mercure.Config{PublicURL: u.String()}).Validate() != nil {
		return ""
	}
	return u.String()
}

func (t mercureHub) hubListen(host, port string, secure bool, at *node) {
	bind := ""
	if host == "localhost" || net.ParseIP(host) != nil {
		bind = host
	}
	files, tlsAt := t.texts(t.root, "tls")
	switch {
	case !secure:
		t.listen(net.JoinHostPort(bind, port), at, tlsNone)
	case len(files) == 2:
		t.out.certificate(files[0], files[1])
		t.listen(net.JoinHostPort(bind, port), at, tlsDone)
	default:
		says := "Caddy obtained certificates; Weir does not, and serves this machine alone until it has some"
		t.out.set("listen", "127.0.0.1:8000", says)
		t.note(Security, cmp.Or(tlsAt, at), says,
			"leave TLS to a proxy before it, or have certbot write files: tls.certificates, then listen: "+quote(net.JoinHostPort(bind, port)))
	}
}

// hubDialect chooses the drafts that are served.
func (t mercureHub) hubDialect(in *node, m *section, public string) {
	if urls, _ := t.texts(in, "public_urls"); len(urls) > 0 {
		u := strings.TrimRight(urls[0], "/")
		if !strings.HasSuffix(u, "/.well-known/mercure") {
			u += "/.well-known/mercure"
		}
		if (mercure.Config{PublicURL: u}).Validate() == nil {
			public = u
		}
		if len(urls) > 1 {
			t.changed(in.at("public_urls"), "the hub has one URL: the first")
		}
	}
	resource, at := t.first(in, "resource_identifier")
	if strings.HasSuffix(resource, "/.well-known/mercure") && (mercure.Config{PublicURL: resource}).Validate() == nil {
		public = resource // relative URL patterns stand beside it there
	}
	if public != "" {
		m.set("public_url", public, "")
	}
	switch {
	case at != nil && resource != public:
		m.set("resource", resource, "")
	case at == nil && in.at("issuer") != nil && public == "":
		t.note(Untaken, in.at("issuer"), "for whom a token is made is not known from each request", "mercure.public_url, which tokens must have in aud")
	}
	compat, compatAt := t.first(in, "protocol_version_compatibility")
	switch {
	case in.at("issuer") == nil && in.at("public_urls") == nil && at == nil:
		m.set("draft", "07", "what hubs of 0.x speak; both serves clients of 1.0, too")
	case compatAt == nil:
		m.set("draft", "08", "what hubs of 1.0 speak; both serves clients of 0.x, too")
	default:
		m.set("draft", "both", "")
		t.changed(compatAt, "both drafts are served, by what each request says; %s was asked for", printable(compat))
	}
}
