package protocol

import (
	"math"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An Update is what a publisher sends.
type Update struct {
	// Topics has the canonical one first. At least one.
	Topics  []string
	Data    string
	Private bool
	// ID is the publisher's own; "" leaves it to the hub.
	ID string
	// Type is the event's; "" means none.
	Type string
	// Retry in milliseconds; 0 means none.
	Retry int
}

// ParseUpdate reads the form of a publication. hubPath is where the hub is served:
// no client may publish on topics in there. Fields that it does not know are skipped; of
// a field that is there twice, but for topic, the first counts.
func ParseUpdate(form string, d Dialect, hubPath string) (*Update, *Error) {
	pairs, err := ParseForm(form)
	if err != nil {
		return nil, err
	}
	u := &Update{}
	for _, p := range pairs {
		if p.Name == "topic" {
			if err := checkTopic(p.Value, d, hubPath); err != nil {
				return nil, err
			}
			u.Topics = append(u.Topics, p.Value)
		}
	}
	if len(u.Topics) == 0 {
		return nil, bad(`Missing "topic" parameter.`)
	}
	u.Data, _ = Get(pairs, "data")
	if !utf8.ValidString(u.Data) {
		return nil, bad(`"data" is not UTF-8.`)
	}
	_, u.Private = Get(pairs, "private")
	u.ID, _ = Get(pairs, "id")
	u.Type, _ = Get(pairs, "type")
	if err := checkID(u.ID, d); err != nil {
		return nil, err
	}
	if err := checkType(u.Type, d); err != nil {
		return nil, err
	}
	retry, _ := Get(pairs, "retry")
	if u.Retry, err = parseRetry(retry); err != nil {
		return nil, err
	}
	return u, nil
}

// tooLong is 413 in draft 08, which requires that.
func tooLong(name string, n, most int, d Dialect) *Error {
	e := bad("%q has %d bytes, the bound is %d.", name, n, most)
	if d == Draft08 {
		e.Status = http.StatusRequestEntityTooLarge
	}
	return e
}

func checkTopic(topic string, d Dialect, hubPath string) *Error {
	switch {
	case topic == "":
		return bad(`"topic" is empty.`)
	case len(topic) > MaxSelector:
		return tooLong("topic", len(topic), MaxSelector, d)
	case !utf8.ValidString(topic):
		return bad(`"topic" is not UTF-8.`)
	case d == Draft07 && strings.Contains(topic, hubPath):
		return &Error{http.StatusForbidden, "Topics in " + hubPath + " are the hub's own."}
	case d == Draft07:
		return nil
	case topic == "*":
		return bad(`"*" is not a topic: it matches all of them.`)
	case !isText(topic):
		return bad(`"topic" has control characters.`)
	case Reserved(topic, hubPath):
		return bad("Topics in %s are the hub's own.", hubPath)
	}
	return nil
}

// Reserved reports whether topic, taken as a URL beside the hub's, is in the hub's own
// path: dot segments and needless escapes do not hide that.
func Reserved(topic, hubPath string) bool {
	u, err := url.Parse(strings.ReplaceAll(strings.TrimSpace(topic), `\`, "/"))
	if err != nil {
		// What a browser would make of it is uncertain.
		return strings.Contains(topic, hubPath)
	}
	p := u.Path
	if u.Opaque != "" {
		if p, err = url.PathUnescape(u.Opaque); err != nil {
			return strings.Contains(topic, hubPath)
		}
		if !strings.HasPrefix(p, "/") {
			return false // urn:…: it has no path
		}
	}
	if !strings.HasPrefix(p, "/") && u.Host == "" {
		p = path.Dir(hubPath) + "/" + p // relative to the hub's
	}
	p = path.Clean("/" + p)
	return p == hubPath || strings.HasPrefix(p, strings.TrimSuffix(hubPath, "/")+"/")
}

func checkID(id string, d Dialect) *Error {
	switch {
	case len(id) > MaxID:
		return tooLong("id", len(id), MaxID, d)
	case strings.HasPrefix(id, "#"):
		return bad(`"id" starts with "#".`)
	case !utf8.ValidString(id) || strings.ContainsAny(id, "\r\n\x00"):
		return bad(`"id" is not UTF-8, or has a line end or NUL.`)
	case d == Draft07:
		return nil
	case id == Earliest:
		return bad(`"id" is the reserved word %q.`, Earliest)
	case strings.ContainsFunc(id, func(r rune) bool { return isControl(r) || unicode.Is(unicode.Cf, r) }):
		return bad(`"id" has control or format characters.`)
	}
	return nil
}

func checkType(typ string, d Dialect) *Error {
	switch {
	case len(typ) > MaxID:
		return tooLong("type", len(typ), MaxID, d)
	case !utf8.ValidString(typ) || strings.ContainsAny(typ, "\r\n\x00"):
		return bad(`"type" is not UTF-8, or has a line end or NUL.`)
	case d == Draft08 && typ == EventType:
		return bad(`"type" %q is the hub's own.`, EventType)
	}
	return nil
}

// parseRetry reads ASCII digits.
func parseRetry(s string) (int, *Error) {
	if s == "" {
		return 0, nil
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, bad(`Invalid "retry" parameter: %.20q is not a number of milliseconds.`, s)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > math.MaxInt32 {
		return 0, bad(`Invalid "retry" parameter: %.20q is more than %d.`, s, math.MaxInt32)
	}
	return int(n), nil
}
