package migrate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A translation is one under way.
type translation struct {
	input
	o       Options
	out     *section
	secrets int
}

// An input is the tree that is translated, in the newest form, and the notes on its keys.
type input struct {
	kind    Kind
	file    string
	root    *node
	reasons map[string]reason
	notes   []Note
	keys    int
}

// A Verdict is what became of keys of the input.
type Verdict uint8

// The verdicts.
const (
	Changed    Verdict = iota // translated, to something that does not mean quite the same
	Untaken                   // known, but not translated
	Unknown                   // not known
	Security                  // to be looked at before this serves clients
	incomplete                // says how the input could be read better
)

// A Note is what is to be known about keys of the input.
type Note struct {
	Verdict Verdict
	// Keys are those of the input, as it has them.
	Keys []Place
	// Outcome is what became of them, Instead what to do; it may be empty.
	Outcome, Instead string
}

// A Place is a key of the input; Line is 0 if it is not known.
type Place struct {
	Key  string
	Line int
}

// A reason reports why what is at paths of the input, and below, is not translated: its
// paths are separated by spaces.
type reason struct{ paths, why, instead string }

// byPath finds the reasons for keys of a server by their paths, which are in lower case; an
// element of a list has the path of the list. Those of an option are for all namespaces.
func byPath(reasons []reason) map[string]reason {
	m := map[string]reason{}
	for _, r := range reasons {
		for path := range strings.FieldsSeq(r.paths) {
			path = strings.ToLower(strings.ReplaceAll(path, "[]", ""))
			if option, ok := strings.CutPrefix(path, "option."); ok {
				m["channel.without_namespace."+option], m["channel.namespaces."+option] = r, r
			} else {
				m[path] = r
			}
		}
	}
	return m
}

func (t *input) note(v Verdict, n *node, says, instead string) {
	note := Note{Verdict: v, Outcome: says, Instead: instead}
	if n != nil && n.where != "" {
		note.Keys = []Place{{n.where, n.line}}
	}
	for i := range t.notes { // those of many keys are reported once
		have := &t.notes[i]
		if have.Verdict == v && have.Outcome == says && have.Instead == instead {
			for _, p := range note.Keys {
				if !slices.Contains(have.Keys, p) {
					have.Keys = append(have.Keys, p)
				}
			}
			return
		}
	}
	t.notes = append(t.notes, note)
}

// changed notes that n was translated to something else.
func (t *input) changed(n *node, format string, a ...any) {
	t.note(Changed, n, fmt.Sprintf(format, a...), "")
}

// untaken notes that n, which was looked at, was not translated, nor what is in it.
func (t *input) untaken(n *node, why, instead string) {
	if n == nil {
		t.note(Untaken, nil, why, instead)
		return
	}
	rest := n.unused("", nil)
	for _, l := range rest {
		t.note(Untaken, l.node, why, instead)
	}
	if len(rest) == 0 { // looked at already
		t.note(Untaken, n, why, instead)
	}
	n.markUsed()
}

// rest accounts for every key that was not consumed.
func (t *input) rest() {
	t.keys = t.root.leaves(map[*node]bool{})
	if t.root.leaf() {
		t.keys = 0
	}
	for _, l := range t.root.unused("", nil) {
		if r, ok := t.why(l.path); ok {
			t.note(Untaken, l.node, r.why, r.instead)
			continue
		}
		t.note(Unknown, l.node, "not a key of "+title(t.kind)+" that is known here", "")
	}
}

// why finds the reason with the longest path.
func (t *input) why(path string) (reason, bool) {
	path = strings.ReplaceAll(path, "[]", "")
	for i := len(path); i > 0; i-- {
		if r, ok := t.reasons[path[:i]]; ok && (i == len(path) || path[i] == '.' || path[i] == '[' || path[i-1] == '_') {
			return r, true
		}
	}
	return reason{}, false
}

// sorted returns the notes in the order of verdicts and of the input.
func (t *input) sorted() []Note {
	slices.SortStableFunc(t.notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.line(), b.line()))
	})
	return t.notes
}

func (n *Note) line() int {
	if len(n.Keys) == 0 {
		return math.MaxInt
	}
	return n.Keys[0].Line
}

// The readers below take the value at a path under n. What is there but does not fit
// is noted, and counts as not there.

func (t *input) text(n *node, path string) (string, *node) { return t.scalar(n.at(path)) }

func (t *input) scalar(v *node) (string, *node) {
	if v == nil || v.kind == null {
		return "", nil
	}
	if v.kind == object || v.kind == list {
		t.untaken(v, "it is not text", "")
		return "", nil
	}
	v.markUsed()
	if v.value == "" {
		return "", nil
	}
	return v.value, v
}

func (t *input) flag(n *node, path string) (bool, *node) {
	s, v := t.text(n, path)
	if v == nil {
		return false, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(s))
	if err != nil {
		t.untaken(v, fmt.Sprintf("%.40q is neither true nor false", s), "")
		return false, nil
	}
	return b, v
}

// number reads an integer; servers take text for one, too.
func (t *input) number(n *node, path string) (int, *node) {
	s, v := t.text(n, path)
	if v == nil {
		return 0, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > 1<<53 {
		t.untaken(v, fmt.Sprintf("%.40q is not a number that could be meant", s), "")
		return 0, nil
	}
	return int(math.Ceil(f)), v
}

// within is number for one that Weir wants within lo..hi: what is outside is brought
// inside, and noted.
func (t *input) within(n *node, path string, lo, hi int) (int, string, *node) {
	i, v := t.number(n, path)
	if v == nil || i >= lo && i <= hi {
		return i, "", v
	}
	c := min(max(i, lo), hi)
	says := fmt.Sprintf("was %d; Weir takes %d to %d", i, lo, hi)
	t.changed(v, "%s", says)
	return c, says, v
}

// span reads a duration: text as "10s", or an integer of units.
func (t *input) span(n *node, path string, unit time.Duration) (time.Duration, *node) {
	s, v := t.text(n, path)
	if v == nil {
		return 0, nil
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && i > math.MinInt64/int64(unit) && i < math.MaxInt64/int64(unit) {
		return time.Duration(i) * unit, v
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.untaken(v, fmt.Sprintf("%.40q is not a duration", s), "")
		return 0, nil
	}
	return d, v
}

// texts reads a list of texts; one text is parsed at commas and spaces.
func (t *input) texts(n *node, path string) ([]string, *node) {
	v := n.at(path)
	switch {
	case v == nil || v.kind == null:
		return nil, nil
	case v.kind == object:
		t.untaken(v, "it is not a list", "")
		return nil, nil
	case v.kind != list:
		v.markUsed()
		return strings.FieldsFunc(v.value, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }), v
	}
	var all []string
	for _, item := range v.items {
		if item.kind == object || item.kind == list {
			t.untaken(item, "it is not text", "")
			continue
		}
		if item.markUsed(); item.value != "" {
			all = append(all, item.value)
		}
	}
	v.used = true
	return all, v
}

// The setters below move a value from the input to the output, if it is there.

func (t *translation) moveText(n *node, path string, to *section, key string) {
	if s, v := t.text(n, path); v != nil {
		to.set(key, s, "")
	}
}

func (t *translation) moveFlag(n *node, path string, to *section, key string) {
	if b, _ := t.flag(n, path); b {
		to.set(key, true, "")
	}
}

// moveNumber moves an integer that Weir wants within lo..hi; 0 is what it means for Weir.
func (t *translation) moveNumber(n *node, path string, to *section, key string, lo, hi int) {
	if v, says, at := t.within(n, path, lo, hi); at != nil {
		to.set(key, v, says)
	}
}

// moveSpan moves a duration above zero.
func (t *translation) moveSpan(n *node, path string, unit time.Duration, to *section, key string) {
	d, v := t.span(n, path, unit)
	switch {
	case v == nil:
	case d <= 0:
		t.untaken(v, "Weir cannot switch this off; it keeps its own value of "+key, "")
	default:
		to.set(key, d, "")
	}
}

// secret writes a secret that comes from n, or a placeholder for it.
func (t *translation) secret(to *section, key, value string, n *node, comment string) {
	t.secrets++
	if t.o.Redact {
		value = placeholder(n)
	}
	to.set(key, value, comment)
}

// placeholder replaces the secret at n: valid in its place, and of no use.
func placeholder(n *node) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, n.where)
	return fmt.Sprintf("replace-me-with-the-secret-%.80s-of-line-%d", name, n.line)
}
