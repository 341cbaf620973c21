package router

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxSegments bounds the depth of a rule, and with it the depth of a match.
const maxSegments = 64

// A branch is a node while the tree grows.
type branch struct {
	label string
	kids  []*branch
	param *branch
	leaf  *bunch // of the path that ends here
	tail  *bunch // of "/*" here
	rules int    // in and under it
}

// A bunch is the rules of one path of one host.
type bunch struct {
	where    string // for errors
	any      int    // -1: none
	byMethod map[string]int
	index    int32 // in Router.leaves
	prefix   bool
}

type builder struct {
	rules   []Rule
	r       *Router
	roots   map[string]*branch // by host, as "example.com", ".example.com" or ""
	bunches []*bunch
	prefix  []prefixRule
	errs    []error
}

// A prefixRule is a "/a/*" that also matches "/a".
type prefixRule struct {
	at    *branch
	bunch *bunch
}

func build(rules []Rule) (*Router, error) {
	b := &builder{
		rules: rules,
		r:     &Router{names: make([][]string, len(rules)), nodes: make([]node, 1), heads: make([]byte, 1)},
		roots: map[string]*branch{},
	}
	for i := range rules {
		b.add(i)
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	for _, p := range b.prefix {
		if p.at.leaf == nil {
			p.at.leaf = p.bunch
		}
	}
	for _, l := range b.bunches {
		b.addLeaf(l)
	}
	b.addRoots()
	return b.r, nil
}

func (b *builder) name(i int) string {
	if b.rules[i].Name != "" {
		return strconv.Quote(b.rules[i].Name)
	}
	return "number " + strconv.Itoa(i+1)
}

// fail notes that rule i is wrong. fix says what to write instead.
func (b *builder) fail(i int, what, fix string) {
	b.errs = append(b.errs, fmt.Errorf("rule %s: %s: %s", b.name(i), what, fix))
}

func (b *builder) add(i int) {
	rule := b.rules[i]
	host, problem := ruleHost(rule.Host)
	if problem != "" {
		b.fail(i, "host "+strconv.Quote(rule.Host), problem)
		return
	}
	pat, problem := parsePattern(rule.Path)
	if problem != "" {
		b.fail(i, "path "+strconv.Quote(rule.Path), problem)
		return
	}
	for _, m := range rule.Methods {
		if !validMethod(m) {
			b.fail(i, "method "+strconv.Quote(m), "a method is a word such as GET; leave methods out for any")
			return
		}
	}
	b.r.names[i] = pat.names
	b.r.literal |= pat.literal
	root := b.roots[host]
	if root == nil {
		root = &branch{}
		b.roots[host] = root
	}
	at := root
	at.rules++
	var above *branch
	for k, piece := range pat.pieces {
		if k == len(pat.pieces)-1 && pat.prefix && piece != "/" {
			above = at.grow(strings.TrimSuffix(piece, "/"))
		} else if k == len(pat.pieces)-1 && pat.prefix && len(pat.pieces) > 1 {
			above = at
		}
		if piece == "" {
			if at.param == nil {
				at.param = &branch{}
			}
			at = at.param
			at.rules++
			continue
		}
		at = at.grow(piece)
	}
	slot := &at.leaf
	if pat.prefix {
		slot = &at.tail
	}
	if *slot == nil {
		where := pat.text
		if host != "" {
			where = rule.Host + where
		}
		*slot = &bunch{where: where, any: -1, byMethod: map[string]int{}, prefix: pat.prefix}
		b.bunches = append(b.bunches, *slot)
		if above != nil {
			b.prefix = append(b.prefix, prefixRule{above, *slot})
		}
	}
	b.addMethods(*slot, i)
}

// addMethods puts rule i among the rules of its path, or finds the conflict.
func (b *builder) addMethods(l *bunch, i int) {
	conflict := func(other int, method string) {
		b.errs = append(b.errs, fmt.Errorf("rules %s and %s conflict: both match %s %s", b.name(other), b.name(i), method, l.where))
	}
	if len(b.rules[i].Methods) == 0 {
		if l.any >= 0 {
			conflict(l.any, "any method of")
			return
		}
		l.any = i
		return
	}
	for _, m := range b.rules[i].Methods {
		switch other, taken := l.byMethod[m]; {
		case taken && other != i:
			conflict(other, m)
			return
		default:
			l.byMethod[m] = i
		}
	}
}

// grow returns the branch that label leads to from at, splitting edges as needed.
func (at *branch) grow(label string) *branch {
	for label != "" {
		i := slices.IndexFunc(at.kids, func(k *branch) bool { return k.label[0] == label[0] })
		if i < 0 {
			kid := &branch{label: label, rules: 1}
			at.kids = append(at.kids, kid)
			return kid
		}
		kid := at.kids[i]
		common := 0
		for common < len(label) && common < len(kid.label) && label[common] == kid.label[common] {
			common++
		}
		if common < len(kid.label) {
			upper := &branch{label: kid.label[:common], kids: []*branch{kid}, rules: kid.rules}
			kid.label = kid.label[common:]
			at.kids[i] = upper
			kid = upper
		}
		kid.rules++
		at, label = kid, label[common:]
	}
	return at
}

// addLeaf lays a bunch out as a leaf. GET gets HEAD where no other rule has it.
func (b *builder) addLeaf(l *bunch) {
	if i, ok := l.byMethod["GET"]; ok {
		if _, ok := l.byMethod["HEAD"]; !ok {
			l.byMethod["HEAD"] = i
		}
	}
	l.index = int32(len(b.r.leaves))
	out := leaf{any: int32(l.any), first: uint32(len(b.r.methods)), prefix: l.prefix}
	var allow []string
	for bit, m := range knownMethods {
		if i, ok := l.byMethod[m]; ok {
			b.r.methods = append(b.r.methods, methodRule{m, int32(i)})
			out.known |= 1 << bit
			allow = append(allow, m)
			delete(l.byMethod, m)
		}
	}
	var rest []string
	for m := range l.byMethod {
		rest = append(rest, m)
	}
	slices.Sort(rest)
	for _, m := range rest {
		b.r.methods = append(b.r.methods, methodRule{m, int32(l.byMethod[m])})
		out.custom++
	}
	out.allow = strings.Join(append(allow, rest...), ", ")
	b.r.leaves = append(b.r.leaves, out)
}

// addRoots lays out each host's tree.
func (b *builder) addRoots() {
	r := b.r
	r.hosts, r.suffixes = map[string]uint32{}, map[string]uint32{}
	hosts := make([]string, 0, len(b.roots))
	for h := range b.roots {
		hosts = append(hosts, h)
	}
	slices.Sort(hosts) // so that equal tables are laid out alike
	for _, h := range hosts {
		root := uint32(len(r.nodes))
		r.nodes, r.heads = append(r.nodes, node{}), append(r.heads, 0)
		b.layOut(root, b.roots[h])
		switch {
		case h == "":
			r.anyHost = root
		case h[0] == '.':
			r.suffixes[h] = root
		default:
			r.hosts[h] = root
		}
	}
}

// layOut writes br as node number at, its children side by side with those that
// lead to most rules first, and then what is under them, so that what one match
// reads lies close together.
func (b *builder) layOut(at uint32, br *branch) {
	r := b.r
	n := node{leaf: -1, tail: -1, kids: uint8(len(br.kids))}
	if br.label != "" {
		r.heads[at] = br.label[0]
		n.text, n.size = uint32(len(r.text)), uint16(len(br.label)-1)
		r.text = append(r.text, br.label[1:]...)
	}
	if br.leaf != nil {
		n.leaf = br.leaf.index
	}
	if br.tail != nil {
		n.tail = br.tail.index
	}
	slices.SortStableFunc(br.kids, func(x, y *branch) int { return y.rules - x.rules })
	n.child = uint32(len(r.nodes))
	r.nodes = append(r.nodes, make([]node, len(br.kids))...)
	r.heads = append(r.heads, make([]byte, len(br.kids))...)
	if br.param != nil {
		n.param = uint32(len(r.nodes))
		r.nodes, r.heads = append(r.nodes, node{}), append(r.heads, 0)
	}
	r.nodes[at] = n
	for i, kid := range br.kids {
		b.layOut(n.child+uint32(i), kid)
	}
	if br.param != nil {
		b.layOut(n.param, br.param)
	}
}
