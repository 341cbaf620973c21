package auth

import (
	"fmt"
	"strings"
)

const (
	maxPatternBytes = 255 // as long as a channel name may be
	maxPatterns     = 256 // in one grant
)

type tokenKind uint8

const (
	literal  tokenKind = iota
	star               // one or more bytes but no separator
	starStar           // one or more bytes
)

type patternToken struct {
	kind tokenKind
	b    byte // of a literal
}

// accepts reports whether one byte of a channel matches t.
func (t patternToken) accepts(b byte) bool {
	switch t.kind {
	case literal:
		return t.b == b
	case star:
		return !separator(b)
	default:
		return true
	}
}

func separator(b byte) bool { return b == '.' || b == ':' || b == '/' }

// A pattern is cut into what is before its first and after its last
// wildcard, and the rest. Nearly all patterns have a single wildcard and need
// no more than the two comparisons.
type pattern struct {
	text    string
	literal bool   // no wildcard at all: text is the channel
	prefix  string // before the first wildcard
	suffix  string // behind the last one
	middle  []patternToken
}

// compile prepares a pattern for comparing channels with it. In a pattern "*"
// represents one or more bytes other than ".", ":" and "/", "**" one or more of any
// bytes, read from the left ("***" is "**" and "*"); everything else is itself, byte
// for byte: no escapes, no case folding, no percent-decoding, no Unicode
// normalisation. A channel is therefore covered in one spelling only.
func compile(text string) pattern {
	first := strings.IndexByte(text, '*')
	if first < 0 {
		return pattern{text: text, literal: true}
	}
	last := strings.LastIndexByte(text, '*')
	p := pattern{text: text, prefix: text[:first], suffix: text[last+1:]}
	for i := first; i <= last; i++ {
		switch {
		case text[i] != '*':
			p.middle = append(p.middle, patternToken{kind: literal, b: text[i]})
		case i < last && text[i+1] == '*':
			p.middle = append(p.middle, patternToken{kind: starStar})
			i++
		default:
			p.middle = append(p.middle, patternToken{kind: star})
		}
	}
	return p
}

func (p *pattern) match(channel string) bool {
	if p.literal {
		return channel == p.text
	}
	if len(channel) < len(p.prefix)+len(p.suffix)+len(p.middle) ||
		!strings.HasPrefix(channel, p.prefix) || !strings.HasSuffix(channel, p.suffix) {
		return false
	}
	rest := channel[len(p.prefix) : len(channel)-len(p.suffix)]
	if len(p.middle) == 1 {
		return p.middle[0].kind == starStar || !strings.ContainsAny(rest, ".:/")
	}
	return matchTokens(p.middle, rest)
}

// matchTokens walks the channel once and keeps, per token, whether the tokens up
// to it can have consumed exactly the bytes so far. The work is at most
// len(channel) × len(tokens) steps whatever they are: nothing is tried twice.
func matchTokens(tokens []patternToken, channel string) bool {
	var fixed [maxPatternBytes + 1]bool
	reached := fixed[:]
	if len(tokens) >= len(fixed) {
		reached = make([]bool, len(tokens)+1)
	}
	reached[0] = true
	for i := range len(channel) {
		// From the right, so that reached[j] is still of the byte before.
		alive := false
		for j := len(tokens); j > 0; j-- {
			t := tokens[j-1]
			more := reached[j] && t.kind != literal // a wildcard takes one more byte
			reached[j] = (reached[j-1] || more) && t.accepts(channel[i])
			alive = alive || reached[j]
		}
		reached[0] = false
		if !alive {
			return false
		}
	}
	return reached[len(tokens)]
}

// Patterns are a compiled list: a channel is covered if any of them covers it.
// The zero value covers nothing. Immutable.
type Patterns struct {
	exact map[string]struct{}
	wild  []pattern
}

// CompilePatterns checks and compiles a list of patterns.
func CompilePatterns(list []string) (Patterns, error) {
	var ps Patterns
	if len(list) > maxPatterns {
		return ps, fmt.Errorf("%d patterns, at most %d", len(list), maxPatterns)
	}
	for _, text := range list {
		if err := checkPattern(text); err != nil {
			return Patterns{}, err
		}
		p := compile(text)
		if !p.literal {
			ps.wild = append(ps.wild, p)
			continue
		}
		if ps.exact == nil {
			ps.exact = make(map[string]struct{})
		}
		ps.exact[text] = struct{}{}
	}
	return ps, nil
}

// checkPattern refuses what covers no channel, so that a slip in a config or a
// token is reported.
func checkPattern(text string) error {
	switch {
	case text == "":
		return fmt.Errorf("a pattern is empty")
	case len(text) > maxPatternBytes:
		return fmt.Errorf("a pattern of %d bytes, at most %d", len(text), maxPatternBytes)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] == 0x7f {
			return fmt.Errorf("a pattern has a space or control character at byte %d", i)
		}
	}
	return nil
}

// Match reports whether any of the patterns covers channel. It allocates nothing.
func (ps *Patterns) Match(channel string) bool { return ps.matchFrom(channel, 0) }

// matchFrom is Match with patterns that have no wildcard among the first literal bytes.
func (ps *Patterns) matchFrom(channel string, literal int) bool {
	if _, ok := ps.exact[channel]; ok {
		return true
	}
	for i := range ps.wild {
		if len(ps.wild[i].prefix) >= literal && ps.wild[i].match(channel) {
			return true
		}
	}
	return false
}
