package router

import "strings"

// A pattern is a rule's path parsed.
type pattern struct {
	text   string   // as it is matched, parameters' names aside
	pieces []string // literals, and "" for a parameter
	names  []string
	prefix bool // ends with "/*": the last piece ends with the slash
	// literal has the bits of the reserved bytes in the literals.
	literal Odd
}

// parsePattern takes a rule's path apart, or says what is wrong with it.
func parsePattern(path string) (p pattern, problem string) {
	if path == "" {
		path = "/*"
	}
	if path[0] != '/' {
		return p, "a path starts with a slash"
	}
	if rest, ok := strings.CutSuffix(path, "/*"); ok {
		p.prefix, path = true, rest+"/"
	}
	segments := strings.Split(path[1:], "/")
	if len(segments) > maxSegments || len(path) > maxPath/4 {
		return p, "too long"
	}
	lit := ""
	for i, seg := range segments {
		lit += "/"
		last := i == len(segments)-1
		switch {
		case seg == "" && !last:
			return p, "an empty segment is never matched, as requests are freed of them"
		case strings.HasPrefix(seg, "{") && strings.HasSuffix(seg, "}"):
			name := seg[1 : len(seg)-1]
			if problem := p.addParam(name); problem != "" {
				return p, problem
			}
			p.pieces = append(p.pieces, lit, "")
			lit = ""
		default:
			seg, problem := p.literalSegment(seg)
			if problem != "" {
				return p, problem
			}
			lit += seg
		}
	}
	if lit != "" {
		p.pieces = append(p.pieces, lit)
	}
	p.text = path
	if p.prefix {
		p.text += "*"
	}
	return p, ""
}

func (p *pattern) addParam(name string) (problem string) {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return "a parameter's name is letters, digits and _"
		}
	}
	switch {
	case name == "":
		return "a parameter needs a name, as in {id}"
	case len(p.names) == MaxParams:
		return "more than 16 parameters"
	}
	for _, n := range p.names {
		if n == name {
			return "parameter " + name + " is used twice"
		}
	}
	p.names = append(p.names, name)
	return ""
}

// literalSegment returns seg in the spelling that requests have when they are
// matched. Bytes that are not ASCII may appear plainly in a rule.
func (p *pattern) literalSegment(seg string) (normal, problem string) {
	switch {
	case seg == "." || seg == "..":
		return "", "dot segments are never matched, as requests are freed of them"
	case strings.ContainsAny(seg, "{}"):
		return "", "a parameter is a whole segment, as in /users/{id}"
	case strings.Contains(seg, "*"):
		return "", "* is accepted only at the end, as in /a/*"
	case strings.ContainsAny(seg, "?#"):
		return "", "a path has no query and no fragment"
	}
	raw := []byte{'/'}
	for i := range len(seg) {
		if c := seg[i]; c >= 0x80 {
			raw = appendEscape(raw, c)
		} else {
			raw = append(raw, c)
		}
	}
	out, odd, err := Normalize(nil, raw)
	switch {
	case err != nil:
		return "", err.Error()
	case odd&(OddSlash|OddSemicolon) != 0:
		return "", "encoded slashes and semicolons cannot appear in a rule"
	case odd != 0:
		return "", "write bytes such as : and @ as they are, not encoded"
	}
	for i := range len(seg) {
		p.literal |= oddOf(seg[i]) &^ (OddSlash | OddSemicolon)
	}
	return string(out[1:]), ""
}

// ruleHost returns the key of a rule's host: "" for any, ".example.com" for a
// wildcard, the name in lower case else.
func ruleHost(host string) (key, problem string) {
	if host == "" || host == "*" {
		return "", ""
	}
	name, wild := strings.CutPrefix(host, "*.")
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") && !wild {
		if strings.Trim(name[1:len(name)-1], "0123456789abcdefABCDEF:.") != "" {
			return "", "not an address"
		}
		return strings.ToLower(name), ""
	}
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 {
		return "", "longer than a DNS name"
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" {
			return "", "has an empty label"
		}
		for i := range len(label) {
			c := label[i]
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '~':
			case c == '*':
				return "", "* is accepted only before the first dot, as in *.example.com"
			case c == ':':
				return "", "a host has no port here: requests are matched without"
			default:
				return "", "write a name such as example.com or *.example.com (international names in their xn-- form)"
			}
		}
	}
	name = strings.ToLower(name)
	if wild {
		return "." + name, ""
	}
	return name, ""
}

// validMethod reports whether m is a token of RFC 9110 §5.6.2.
func validMethod(m string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	for i := range len(m) {
		c := m[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.Contains(marks, string(rune(c))) {
			return false
		}
	}
	return m != ""
}
