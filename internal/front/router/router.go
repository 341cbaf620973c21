package router

// A Rule is one line of the table. Rules are distinguished by their index in the
// slice given to New.
type Rule struct {
	// Name appears in errors. Empty: the rule's number.
	Name string
	// Host is "example.com", "*.example.com" (any subdomain, however deep, but not
	// example.com itself), or empty or "*" for any. Case and port of a request's
	// Host do not matter.
	Host string
	// Path is exact ("/a"), a prefix ("/a/*", "/*"), or has segments that are
	// parameters ("/users/{id}/orders", "/{x}/*"). Empty means "/*".
	Path string
	// Methods this rule is for; empty means any. GET includes HEAD.
	Methods []string
}

// An Outcome reports what Match found.
type Outcome uint8

const (
	// NotFound: no rule has this host and path (404).
	NotFound Outcome = iota
	// Found: rule is the index of the one that wins.
	Found
	// MethodNotAllowed: the path is there, but not for this method (405). rule is
	// what Allow takes.
	MethodNotAllowed
)

// MaxParams bounds the parameters of one rule.
const MaxParams = 16

// Params are where the parameters of a match stand in the path: offsets, so that
// nothing is allocated. The zero value is ready; a Params is reused by giving it to
// Match again. It means something only together with the path it was matched on.
type Params struct {
	n    uint8
	rest uint16 // where what "/*" represents starts, 0: the rule has none
	at   [MaxParams][2]uint16
}

// Len returns the number of parameters.
func (p *Params) Len() int { return int(p.n) }

// Value returns the i-th parameter, a part of path.
func (p *Params) Value(path []byte, i int) []byte { return path[p.at[i][0]:p.at[i][1]] }

// Rest returns what the rule's "/*" represents, without the slash before; nil for
// a rule without. "/a/*" has the rest "b/c" for /a/b/c and "" for /a/ and /a.
func (p *Params) Rest(path []byte) []byte {
	if p.rest == 0 {
		return nil
	}
	return path[min(int(p.rest), len(path)):]
}

// New compiles rules. Its error joins one per rule that is malformed and one per
// pair that conflicts, each naming its rules.
func New(rules []Rule) (*Router, error) { return build(rules) }

// A Router is a compiled table. It is immutable: any goroutine may use it.
//
// The tree is flat: nodes in one slice, the children of a node side by side,
// their first bytes side by side in another slice, so that choosing an edge
// reads one cache line; labels are offsets into one text.
type Router struct {
	nodes []node
	heads []byte // heads[i] is the first byte of the label of nodes[i]
	text  []byte

	leaves  []leaf
	methods []methodRule

	hosts    map[string]uint32 // root of an exact host
	suffixes map[string]uint32 // root of "*.example.com", as ".example.com"
	anyHost  uint32            // root of rules for any host; 0: there are none

	names   [][]string // parameters of each rule
	literal Odd        // reserved bytes that stand in paths of rules
}

// A node is what a path has come to. Number 0 is none.
type node struct {
	text  uint32 // label without its first byte, in Router.text
	child uint32 // first of the children
	param uint32 // where a parameter leads
	leaf  int32  // of a path that ends here; -1: none
	tail  int32  // of a prefix that ends here; -1: none
	size  uint16 // of the label without its first byte
	kids  uint8
}

// A leaf is the rules of one path of one host.
type leaf struct {
	any    int32  // rule for any method; -1: none
	first  uint32 // methods[first:] are its other rules
	known  uint16 // bits of the known methods among them, lowest first
	custom uint16 // number of others, after these
	prefix bool   // its path ends with "/*"
	allow  string // value of the Allow field
}

type methodRule struct {
	method string
	rule   int32
}

// Match finds the rule for a request. path must come from Normalize. It allocates
// nothing and keeps nothing.
func (r *Router) Match(host, path, method []byte, p *Params) (rule int, outcome Outcome) {
	p.n, p.rest = 0, 0
	if len(path) == 0 || path[0] != '/' || len(path) > maxPath {
		return -1, NotFound
	}
	l := r.byHost(host, path, p)
	if l < 0 {
		return -1, NotFound
	}
	if rule := r.byMethod(&r.leaves[l], method); rule >= 0 {
		return int(rule), Found
	}
	return int(l), MethodNotAllowed
}

// Allow returns the value of the Allow field for what Match returned with
// MethodNotAllowed.
func (r *Router) Allow(rule int) string { return r.leaves[rule].allow }

// Param returns the index in Params of the parameter of rule called name, or -1.
func (r *Router) Param(rule int, name string) int {
	for i, n := range r.names[rule] {
		if n == name {
			return i
		}
	}
	return -1
}

// Ambiguous reports whether a path has a byte encoded that some rule has plain:
// "/a%3Ab" is not matched by a rule for "/a:b", but a backend will take it for that.
// Such a path is to be refused with 400.
func (r *Router) Ambiguous(odd Odd) bool { return odd&r.literal != 0 }

// byHost tries the hosts' trees from the most specific one.
func (r *Router) byHost(host, path []byte, p *Params) int32 {
	if len(r.hosts)+len(r.suffixes) > 0 {
		var buf [maxHost]byte
		name := foldHost(buf[:0], host)
		if root, ok := r.hosts[string(name)]; ok {
			if l := r.find(root, path, 0, 0, p); l >= 0 {
				return l
			}
		}
		for i := 1; i < len(name) && len(r.suffixes) > 0; i++ {
			if name[i] != '.' {
				continue
			}
			if root, ok := r.suffixes[string(name[i:])]; ok {
				if l := r.find(root, path, 0, 0, p); l >= 0 {
					return l
				}
			}
		}
	}
	if r.anyHost == 0 {
		return -1
	}
	return r.find(r.anyHost, path, 0, 0, p)
}

// maxHost bounds a host that is compared: a DNS name has at most 253 bytes.
const maxHost = 256

// foldHost appends host in lower case, without port and without the dot that may
// end a DNS name. What is too long fits no rule's host and becomes empty.
func foldHost(dst, host []byte) []byte {
	for i := len(host) - 1; i >= 0 && host[i] != ']'; i-- {
		if host[i] == ':' {
			host = host[:i]
			break
		}
	}
	if n := len(host); n > 1 && host[n-1] == '.' {
		host = host[:n-1]
	}
	if len(host) > maxHost {
		return dst
	}
	for _, c := range host {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// find walks from node at, with path[:pos] behind it and n parameters, and
// returns the leaf that wins below, or -1. It tries a literal, then the parameter,
// then the deepest "/*" on its way. Each node is visited at most once per
// call of byHost, since a node says how many segments are behind it.
func (r *Router) find(at uint32, path []byte, pos, n int, p *Params) int32 {
	tail, tailPos, tailN := int32(-1), 0, 0
	for {
		nd := &r.nodes[at]
		if pos == len(path) {
			if nd.leaf >= 0 {
				p.n = uint8(n)
				if r.leaves[nd.leaf].prefix {
					p.rest = uint16(pos)
				}
				return nd.leaf
			}
			if nd.tail >= 0 {
				tail, tailPos, tailN = nd.tail, pos, n
			}
			break
		}
		if nd.tail >= 0 {
			tail, tailPos, tailN = nd.tail, pos, n
		}
		if child, next := r.childOf(nd, path, pos); child != 0 {
			if nd.param == 0 {
				at, pos = child, next
				continue
			}
			if l := r.find(child, path, next, n, p); l >= 0 {
				return l
			}
		}
		if nd.param == 0 || path[pos] == '/' {
			break
		}
		end := pos + 1
		for end < len(path) && path[end] != '/' {
			end++
		}
		p.at[n] = [2]uint16{uint16(pos), uint16(end)}
		at, pos, n = nd.param, end, n+1
	}
	if tail >= 0 {
		p.n, p.rest = uint8(tailN), uint16(tailPos)
	}
	return tail
}

// childOf returns the child of nd whose label is at path[pos:], and where
// that ends; 0 without one.
func (r *Router) childOf(nd *node, path []byte, pos int) (child uint32, end int) {
	c := path[pos]
	for i, head := range r.heads[nd.child : nd.child+uint32(nd.kids)] {
		if head != c {
			continue
		}
		child := nd.child + uint32(i)
		k := &r.nodes[child]
		end := pos + 1 + int(k.size)
		if k.size == 0 || end <= len(path) && string(path[pos+1:end]) == string(r.text[k.text:k.text+uint32(k.size)]) {
			return child, end
		}
		break
	}
	return 0, 0
}
