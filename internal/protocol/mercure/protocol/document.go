package protocol

import (
	"bytes"
	"encoding/json"
	"strings"
)

// A Subscription is one selector of a subscriber, as others may see it.
type Subscription struct {
	Dialect    Dialect
	Selector   Selector
	Subscriber string
	Active     bool
	// Payload is the token's; nil means none.
	Payload json.RawMessage
}

// Context is the JSON-LD context of draft 07's documents.
const Context = "https://mercure.rocks/"

// Path returns where a subscription is: hubPath/subscriptions/… It is the topic of its
// events as well.
func (s *Subscription) Path(hubPath string) string {
	p := hubPath + "/subscriptions/"
	if s.Dialect == Draft08 {
		p += s.Selector.Kind.String() + "/"
	}
	return p + Escape(s.Selector.Text) + "/" + Escape(s.Subscriber)
}

// document has the fields of both dialects, in the order in which the drafts show them.
type document struct {
	Context     string          `json:"@context,omitempty"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Topic       string          `json:"topic,omitempty"`
	MatchType   string          `json:"match_type,omitempty"`
	Match       string          `json:"match,omitempty"`
	Subscriber  string          `json:"subscriber"`
	Active      bool            `json:"active"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	LastEventID string          `json:"lastEventID,omitempty"`
}

func (s *Subscription) document(hubPath string) document {
	d := document{ID: s.Path(hubPath), Subscriber: s.Subscriber, Active: s.Active, Payload: s.Payload}
	if s.Dialect == Draft08 {
		d.Type, d.MatchType, d.Match = "subscription", s.Selector.Kind.String(), s.Selector.Text
	} else {
		d.Type, d.Topic = "Subscription", s.Selector.Text
	}
	return d
}

// Event is the data of the update that says that s began or ended.
func (s *Subscription) Event(hubPath string) []byte {
	d := s.document(hubPath)
	if s.Dialect == Draft07 {
		d.Context = Context
	}
	return marshal(d)
}

// Document is what the subscription API says of s alone. lastID is the hub's
// position; draft 08 says it elsewhere.
func (s *Subscription) Document(hubPath, lastID string) []byte {
	d := s.document(hubPath)
	if s.Dialect == Draft07 {
		d.Context, d.LastEventID = Context, lastID
	}
	return marshal(d)
}

// Documents is what the subscription API says of a collection: id is the path that
// was asked for.
func Documents(d Dialect, id, lastID, hubPath string, list []Subscription) []byte {
	v := struct {
		Context       string     `json:"@context,omitempty"`
		ID            string     `json:"id"`
		Type          string     `json:"type"`
		LastEventID   string     `json:"lastEventID,omitempty"`
		Subscriptions []document `json:"subscriptions"`
	}{ID: id, Type: "subscriptions", Subscriptions: []document{}}
	if d == Draft07 {
		v.Context, v.Type, v.LastEventID = Context, "Subscriptions", lastID
	}
	for i := range list {
		v.Subscriptions = append(v.Subscriptions, list[i].document(hubPath))
	}
	return marshal(v)
}

// marshal writes JSON without escaping what only HTML minds.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("mercure: a document has no JSON: " + err.Error()) // payloads were read as JSON
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// A Place is what a path of the subscription API means.
type Place struct {
	// Selector is set for the subscriptions of one, Kind for draft 08 only.
	Selector *Selector
	// Subscriber is set for one subscription.
	Subscriber string
}

// ParsePlace reads a path below the hub's, its escapes as they came.
func ParsePlace(path, hubPath string, d Dialect) (Place, bool) {
	rest, ok := strings.CutPrefix(path, hubPath+"/subscriptions")
	if !ok {
		return Place{}, false
	}
	rest = strings.TrimSuffix(rest, "/")
	if rest == "" {
		return Place{}, true
	}
	rest, ok = strings.CutPrefix(rest, "/")
	parts := strings.Split(rest, "/")
	s := &Selector{Kind: Template}
	if d == Draft08 && ok {
		s.Kind, ok = KindOf(parts[0])
		parts = parts[1:]
	}
	if !ok || len(parts) == 0 || len(parts) > 2 {
		return Place{}, false
	}
	if s.Text, ok = Unescape(parts[0]); !ok || s.Text == "" {
		return Place{}, false
	}
	p := Place{Selector: s}
	if len(parts) == 2 {
		p.Subscriber, ok = Unescape(parts[1])
	}
	return p, ok
}

// A Link reports where a hub is, and the position of its history.
type Link struct {
	Hub string
	// LastID is where a subscriber that has this answer is to resume; "" is not said.
	LastID string
	// ContentType of the updates, and Type of their events; "" is not said.
	ContentType, Type string
}

// String is the value of a Link field (RFC 8288).
func (l Link) String() string {
	var b strings.Builder
	b.WriteString("<" + strings.NewReplacer(">", "%3E", "<", "%3C", `"`, "%22", "\r", "", "\n", "").Replace(l.Hub) + `>; rel="mercure"`)
	for _, p := range []Pair{{"last-event-id", l.LastID}, {"type", l.Type}, {"content-type", l.ContentType}} {
		if p.Value != "" {
			b.WriteString("; " + p.Name + "=" + quote(p.Value))
		}
	}
	return b.String()
}

// quote writes a quoted-string (RFC 9110 §5.6.4); what cannot appear in one is left out.
func quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c != 0x7f:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
