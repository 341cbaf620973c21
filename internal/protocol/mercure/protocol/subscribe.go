package protocol

import (
	"strings"
	"unicode/utf8"
)

// Earliest is the beginning of the history, as an id.
const Earliest = "earliest"

// EventType is the SSE type of the hub's own events in draft 08.
const EventType = "mercure"

// A Request is a subscriber's request.
type Request struct {
	Dialect   Dialect
	Selectors []Selector
	// LastID is where to resume; "" means live updates only.
	LastID string
	// Resumes reports whether the client said where to resume, if only "".
	Resumes bool
	// Token is that of the query, which draft 07 alone has.
	Token string
}

// Dialects reports which are served.
type Dialects struct{ Draft07, Draft08 bool }

// Default is in whose words a request is refused that shows none: draft 08's say more, and
// no client of draft 07 minds.
func (d Dialects) Default() Dialect {
	if d.Draft08 {
		return Draft08
	}
	return Draft07
}

// ParseRequest reads a subscription: the query, and for QUERY requests of draft 08 the
// form in the body. lastEventID is the Last-Event-ID field, which wins.
func ParseRequest(query, body, lastEventID string, serve Dialects) (*Request, *Error) {
	pairs, err := ParseForm(query)
	if err != nil {
		return nil, err
	}
	if body != "" {
		more, err := ParseForm(body)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, more...)
	}
	r := &Request{}
	if r.Dialect, err = dialectOf(pairs, serve); err != nil {
		return nil, err
	}
	if r.Dialect == Draft08 {
		err = r.matchers(pairs)
	} else {
		err = r.topics(pairs)
	}
	if err != nil {
		return nil, err
	}
	r.resume(pairs, lastEventID)
	if r.Dialect == Draft07 {
		r.Token, _ = Get(pairs, "authorization")
	}
	return r, nil
}

// dialectOf goes by the parameters: topic is of draft 07, match and all that starts
// so of draft 08. Hubs of draft 07 do not know match, and pass over it.
func dialectOf(pairs []Pair, serve Dialects) (Dialect, *Error) {
	var has Dialects
	for _, p := range pairs {
		switch {
		case p.Name == "topic":
			has.Draft07 = true
		case serve.Draft08 && isMatch(p.Name):
			has.Draft08 = true
		}
	}
	switch {
	case has.Draft07 && has.Draft08:
		return Draft08, bad(`"topic" and "match" are of two drafts: use one of them.`)
	case has.Draft07 && !serve.Draft07:
		return Draft08, bad(`"topic" is of draft 07, which is not served here: use "match" or "match_urlpattern".`)
	case has.Draft08 || !serve.Draft07:
		return Draft08, nil
	}
	return Draft07, nil
}

// isMatch reports whether a parameter is in the space that draft 08 reserves.
func isMatch(name string) bool {
	return len(name) >= 5 && strings.EqualFold(name[:5], "match")
}

func (r *Request) topics(pairs []Pair) *Error {
	for _, p := range pairs {
		if p.Name != "topic" {
			continue
		}
		if len(r.Selectors) == MaxTopics07 {
			return bad("More than %d topics.", MaxTopics07)
		}
		s := Selector{Template, p.Value}
		if err := s.check(Draft07); err != nil {
			return err
		}
		r.Selectors = append(r.Selectors, s)
	}
	if len(r.Selectors) == 0 {
		return bad(`Missing "topic" parameter.`)
	}
	return nil
}

func (r *Request) matchers(pairs []Pair) *Error {
	for _, p := range pairs {
		kind := Exact
		switch {
		case p.Name == "match" || p.Name == "match_exact":
		case p.Name == "match_urlpattern":
			kind = URLPattern
		case isMatch(p.Name):
			return bad("Unknown matcher type %.40q: match, match_exact and match_urlpattern are known.", p.Name)
		default:
			continue
		}
		if len(r.Selectors) == MaxMatchers {
			return bad("More than %d matchers.", MaxMatchers)
		}
		s := Selector{kind, p.Value}
		if err := s.check(Draft08); err != nil {
			return err
		}
		r.Selectors = append(r.Selectors, s)
	}
	if len(r.Selectors) == 0 {
		return bad(`Missing "match" parameter.`)
	}
	return nil
}

func (r *Request) resume(pairs []Pair, header string) {
	if header != "" {
		r.LastID, r.Resumes = header, true
		return
	}
	names := []string{"lastEventID", "Last-Event-ID", "last_event_id"}
	if r.Dialect == Draft08 {
		names = []string{"last_event_id", "lastEventID", "Last-Event-ID"}
	}
	for _, name := range names {
		if v, ok := Get(pairs, name); ok {
			r.LastID, r.Resumes = v, true
			return
		}
	}
}

// check refuses what can be no selector.
func (s Selector) check(d Dialect) *Error {
	switch {
	case s.Text == "":
		return bad("A topic selector is empty.")
	case len(s.Text) > MaxSelector:
		return bad("A topic selector has %d bytes, the bound is %d.", len(s.Text), MaxSelector)
	case !utf8.ValidString(s.Text), d == Draft08 && !isText(s.Text):
		return bad("A topic selector is not UTF-8, or has control characters: %.40q.", s.Text)
	}
	return nil
}
