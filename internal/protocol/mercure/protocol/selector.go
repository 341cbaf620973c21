package protocol

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	urlpattern "github.com/dunglas/go-urlpattern"
	"github.com/yosida95/uritemplate/v3"
)

// A Kind reports how a selector's text is to be read.
type Kind uint8

// The kinds. "*" is all topics in each of them.
const (
	// Exact matches the topic of the same bytes.
	Exact Kind = iota
	// Template matches that as well, and if it is a URI template (RFC 6570) the topics
	// that it expands to. It is draft 07's only kind.
	Template
	// URLPattern is WHATWG's, with the hub's URL as the base.
	URLPattern
)

// String is the kind's name in draft 08.
func (k Kind) String() string {
	if k == URLPattern {
		return "urlpattern"
	}
	return "exact"
}

// KindOf returns the kind of a name of draft 08.
func KindOf(name string) (Kind, bool) {
	switch name {
	case "exact":
		return Exact, true
	case "urlpattern":
		return URLPattern, true
	}
	return 0, false
}

// A Selector reports which topics are meant.
type Selector struct {
	Kind Kind
	Text string
}

// Bounds of patterns.
const (
	// Of a URI template. What is past them matches as text only.
	maxVariables   = 32 // in one expression
	maxExpressions = 64
	// maxRepeats bounds the bytes of a URL pattern times how often its regular
	// expressions may repeat a part.
	maxRepeats = 50_000
)

// Cost is about how many bytes s takes when it is compiled, for those who bound them;
// 0 for one that is text only.
func (s Selector) Cost() int {
	switch {
	case s.Text == "*" || s.Kind == Exact || (s.Kind == Template && !strings.Contains(s.Text, "{")):
		return 0
	case s.Kind == Template:
		return 1500 + 300*len(s.Text)
	}
	return 8000 + 50*len(s.Text) + 50*repeats(s.Text)
}

// repeats bounds how large the regular expressions of a URL pattern become: its length
// times all counts of repetition in there.
func repeats(pattern string) int {
	n := len(pattern)
	if !strings.Contains(pattern, "(") {
		return 0 // braces are groups then
	}
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '{' {
			continue
		}
		count, most := 0, 1
		for i++; i < len(pattern) && (pattern[i] == ',' || '0' <= pattern[i] && pattern[i] <= '9'); i++ {
			if pattern[i] == ',' {
				count = 0
				continue
			}
			count = min(count*10+int(pattern[i]-'0'), maxRepeats)
			most = max(most, count)
		}
		if n = n * most; n > maxRepeats {
			return n
		}
	}
	if n == len(pattern) {
		return 0
	}
	return n
}

// ErrPattern is for what is not a URL pattern, or one that is too costly.
var ErrPattern = errors.New("no URL pattern")

// A Compiled is a selector that is ready to match. It may be used by any goroutine,
// and shared by all who have the same selector: it remembers the last topic that it
// was queried about, for a message is matched for one subscriber after the other. The
// time of a match is linear in the length of the topic.
type Compiled struct {
	Selector
	all      bool
	template *regexp.Regexp
	// head and tail are how a topic must start and end that the template expands to,
	// inner is what must be between them in this order: nearly all topics are
	// distinguished by them, at a hundredth of what the expression takes.
	head, tail string
	inner      []string
	pattern    *urlpattern.URLPattern
	base       string
	last       atomic.Pointer[memo]
}

type memo struct {
	topic string
	match bool
}

// Compile prepares s. hubURL is the base of URL patterns and of the topics that they
// are matched with. An error is about the pattern; a text of draft 07 that is no
// template matches as text.
func Compile(s Selector, hubURL string) (*Compiled, error) {
	c := &Compiled{Selector: s, all: s.Text == "*", base: hubURL}
	switch {
	case c.all || s.Kind == Exact:
	case s.Kind == Template:
		if c.template = compileTemplate(s.Text); c.template != nil {
			c.head, c.inner, c.tail = literals(s.Text)
		}
	default:
		if repeats(s.Text) > maxRepeats {
			return nil, fmt.Errorf("%w: %.60q repeats too much", ErrPattern, s.Text)
		}
		p, err := urlpattern.New(s.Text, hubURL, &urlpattern.Options{})
		if err != nil {
			return nil, fmt.Errorf("%w: %.60q", ErrPattern, s.Text) // the library's own words are for its authors
		}
		c.pattern = p
	}
	return c, nil
}

// compileTemplate returns nil for what is not a template.
func compileTemplate(text string) *regexp.Regexp {
	if !strings.Contains(text, "{") || !utf8.ValidString(text) {
		return nil
	}
	expressions := 0
	for i, rest := 0, text; ; rest = rest[i+1:] {
		if i = strings.IndexByte(rest, '{'); i < 0 {
			break
		}
		end := strings.IndexByte(rest[i:], '}')
		if expressions++; end < 0 || expressions > maxExpressions || strings.Count(rest[i:i+end], ",") >= maxVariables {
			return nil
		}
	}
	t, err := uritemplate.New(text)
	if err != nil {
		return nil
	}
	return t.Regexp()
}

// literals are the texts before the first expression of a template, after each and
// after the last, as far as they are written for themselves.
func literals(template string) (head string, inner []string, tail string) {
	at, end := strings.IndexByte(template, '{'), strings.LastIndexByte(template, '}')
	head, tail = template[:at], template[end+1:]
	if i := strings.IndexFunc(head, special); i >= 0 {
		head = head[:i]
	}
	if i := strings.LastIndexFunc(tail, special); i >= 0 {
		tail = ""
	}
	for rest := template[at : end+1]; ; {
		_, after, _ := strings.Cut(rest, "}")
		text, _, more := strings.Cut(after, "{")
		if !more {
			return head, inner, tail
		}
		longest := ""
		for _, run := range strings.FieldsFunc(text, special) {
			if len(run) > len(longest) {
				longest = run
			}
		}
		if longest != "" {
			inner = append(inner, longest)
		}
		rest = after[len(text):]
	}
}

// mayExpandTo reports whether topic has the template's literals, each where it may be.
func (c *Compiled) mayExpandTo(topic string) bool {
	if len(topic) < len(c.head)+len(c.tail) || !strings.HasPrefix(topic, c.head) || !strings.HasSuffix(topic, c.tail) {
		return false
	}
	rest := topic[len(c.head) : len(topic)-len(c.tail)]
	for _, text := range c.inner {
		i := strings.Index(rest, text)
		if i < 0 {
			return false
		}
		rest = rest[i+len(text):]
	}
	return true
}

func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(":/._~-", r)
}

// Simple reports whether one topic at most is meant: Text.
func (c *Compiled) Simple() bool { return !c.all && c.template == nil && c.pattern == nil }

// Match reports whether topic is meant.
func (c *Compiled) Match(topic string) bool {
	switch {
	case c.all:
		return true
	case c.pattern == nil && topic == c.Text:
		return true
	case c.template == nil && c.pattern == nil:
		return false
	case c.template != nil && !c.mayExpandTo(topic):
		return false
	}
	if m := c.last.Load(); m != nil && m.topic == topic {
		return m.match
	}
	m := &memo{topic: topic}
	if c.template != nil {
		m.match = c.template.MatchString(topic)
	} else {
		m.match = c.pattern.Test(topic, c.base)
	}
	c.last.Store(m)
	return m.match
}

// A Set is the selectors of a subscription or of a grant.
type Set struct {
	all      bool
	exact    map[string]struct{}
	patterns []*Compiled
}

// NewSet returns the set of cs.
func NewSet(cs []*Compiled) *Set {
	s := &Set{exact: make(map[string]struct{}, len(cs))}
	for _, c := range cs {
		switch {
		case c.all:
			s.all = true
		case c.Simple():
			s.exact[c.Text] = struct{}{}
		default:
			s.patterns = append(s.patterns, c)
		}
	}
	return s
}

// Match reports whether one of the selectors means topic. A nil set means none.
func (s *Set) Match(topic string) bool {
	if s == nil {
		return false
	}
	if s.all {
		return true
	}
	if _, ok := s.exact[topic]; ok {
		return true
	}
	for _, c := range s.patterns {
		if c.Match(topic) {
			return true
		}
	}
	return false
}

// Exact returns the topics that are meant, if each selector means one.
func (s *Set) Exact() (topics []string, ok bool) {
	if s.all || len(s.patterns) > 0 {
		return nil, false
	}
	for t := range s.exact {
		topics = append(topics, t)
	}
	return topics, true
}

// Empty reports whether no topic is meant.
func (s *Set) Empty() bool { return s == nil || (!s.all && len(s.exact)+len(s.patterns) == 0) }
