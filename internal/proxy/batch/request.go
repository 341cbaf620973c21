package batch

import (
	"bytes"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// A Format is how requests and replies hold their items. Its text form is the value of
// batch.format in the configuration.
type Format struct {
	name string
	in   string // the member of a request that has the items
	out  string // and of a reply
	// indexed: an item of a reply says by its index what it is for; otherwise by its place.
	indexed bool
	// tokens: an item may be a string or a list of tokens; an array of numbers is one item.
	tokens bool
	// streams: replies may be events, and a request may request several answers to an item.
	streams bool
}

// The formats.
var (
	// KServe is {"instances": […]} and {"predictions": […]}: KServe's v1 protocol, which is
	// TensorFlow Serving's.
	KServe = &Format{name: "kserve", in: "instances", out: "predictions"}
	// Completions is OpenAI's POST /v1/completions: "prompt" and "choices", whose "index" is
	// that of the prompt times n.
	Completions = &Format{name: "openai_completions", in: "prompt", out: "choices", indexed: true, tokens: true, streams: true}
	// Embeddings is OpenAI's POST /v1/embeddings: "input" and "data".
	Embeddings = &Format{name: "openai_embeddings", in: "input", out: "data", indexed: true, tokens: true}
)

// FormatNamed returns the format of that name, or nil.
func FormatNamed(name string) *Format {
	for _, f := range []*Format{KServe, Completions, Embeddings} {
		if f.name == name {
			return f
		}
	}
	return nil
}

// maxAnswers bounds n, the answers that a request may request to each of its items.
const maxAnswers = 128

// A Body is what was found in the body of a request. The zero Body goes alone.
type Body struct {
	// Items is how many there are; 0: the body cannot be joined with others.
	Items int
	// Stream reports that the reply is to be events.
	Stream bool

	answers int    // to each item
	items   []byte // those, with the commas between them; a piece of the body
	// before and after are what surrounds the items, brackets included and without white
	// space: equal for all requests of a call.
	before, after []byte
	lists         bool // the items are lists of tokens
}

// Parse finds the items of a request's body, of which the result keeps pieces.
func Parse(f *Format, b []byte) (r Body) {
	if !utf8.Valid(b) {
		return Body{}
	}
	p := requestParser{f: f, s: scanner{b: b}, from: -1}
	p.answers = 1
	if p.s.space() != '{' {
		return Body{}
	}
	p.s.object(p.member)
	if !p.s.end() || p.alone || p.from < 0 || p.Items == 0 {
		return Body{}
	}
	p.before = append(appendCompact(nil, b[:p.from]), '[')
	p.after = appendCompact([]byte{']'}, b[p.to:])
	return p.Body
}

// requestParser is Parse under way.
type requestParser struct {
	Body
	f        *Format
	s        scanner
	from, to int // of the value that has the items; from is -1 before it was met
	seen     int // members that matter, as bits
	alone    bool
}

// member reads one member of the body.
func (p *requestParser) member(k key) {
	p.alone = p.alone || k.escaped
	if is(k, p.f.in) {
		p.once(k, p.f.in, 1)
		p.s.space()
		p.from = p.s.at
		p.value()
		p.to = p.s.at
		return
	}
	v := p.s.value(1)
	if !p.f.streams || p.s.bad {
		return
	}
	ok := true
	switch {
	case is(k, "stream"):
		p.once(k, "stream", 2)
		p.Stream = string(v) == "true"
		ok = p.Stream || string(v) == "false"
	case is(k, "n"):
		p.once(k, "n", 4)
		p.answers, ok = natural(v, maxAnswers)
		ok = ok && p.answers > 0
	case is(k, "stream_options"): // what is used in all cannot be divided
		ok = string(v) == "null"
	}
	p.alone = p.alone || !ok
}

// is compares as the laxest backend would.
func is(k key, name string) bool { return http1.EqualFold(k.name, name) }

// once has a body go alone that has a member twice, or in other letters.
func (p *requestParser) once(k key, name string, bit int) {
	p.alone = p.alone || p.seen&bit != 0 || string(k.name) != name
	p.seen |= bit
}

// value reads the value that has the items.
func (p *requestParser) value() {
	s := &p.s
	c := s.space()
	if c == '"' && p.f.tokens {
		p.Items, p.items = 1, s.value(1)
		return
	}
	if c != '[' {
		s.value(1)
		p.alone = true
		return
	}
	var kinds [256]bool
	from := s.at
	s.array(func() {
		c := s.space()
		kinds[c] = true
		p.Items++
		s.value(2)
	})
	if s.bad {
		return
	}
	whole := s.b[from:s.at]
	p.items = bytes.TrimSpace(whole[1 : len(whole)-1])
	if !p.f.tokens || p.Items == 0 {
		return
	}
	texts, lists, numbers := false, false, false
	for c, found := range kinds {
		switch {
		case !found:
		case c == '"':
			texts = true
		case c == '[':
			lists = true
		case '0' <= c && c <= '9':
			numbers = true
		default:
			p.alone = true
		}
	}
	switch {
	case texts && !lists && !numbers:
	case lists && !texts && !numbers:
		p.lists = true
	case numbers && !texts && !lists: // one item, of tokens
		p.Items, p.items, p.lists = 1, whole, true
	default:
		p.alone = true
	}
}

// appendKey appends what has to be equal in bodies that are joined.
func (r *Body) appendKey(dst []byte) []byte {
	kind := byte('s')
	if r.lists {
		kind = 'l'
	}
	dst = append(append(dst, kind), r.before...)
	return append(append(dst, 0), r.after...)
}

// size is how many bytes r adds to a body.
func (r *Body) size() int { return len(r.items) + 1 }

// appendBody appends the body of a call.
func appendBody(dst []byte, list []*Body) []byte {
	dst = append(dst, list[0].before...)
	for i, r := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, r.items...)
	}
	return append(dst, list[0].after...)
}
