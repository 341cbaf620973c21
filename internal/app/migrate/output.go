package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/internal/app/config"
)

// A section is one of the output: keys with values, in order.
type section struct{ entries []*entry }

type entry struct {
	key     string
	comment string
	// value is a string, bool, int, time.Duration, []string, *section or []*section.
	value any
}

// set gives a key a value, and says beside it what is different, unless comment is
// empty.
func (s *section) set(key string, value any, comment string) {
	for _, e := range s.entries {
		if e.key == key {
			e.value, e.comment = value, comment
			return
		}
	}
	s.entries = append(s.entries, &entry{key, comment, value})
}

func (s *section) get(key string) any {
	for _, e := range s.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// at returns the section at a path of keys joined by dots, made if there is none.
func (s *section) at(path string) *section {
	for key := range strings.SplitSeq(path, ".") {
		next, ok := s.get(key).(*section)
		if !ok {
			next = &section{}
			s.set(key, next, "")
		}
		s = next
	}
	return s
}

// add appends a section to the list at key.
func (s *section) add(key string, item *section) {
	s.set(key, append(s.list(key), item), "")
}

func (s *section) list(key string) []*section {
	items, _ := s.get(key).([]*section)
	return items
}

func (s *section) empty() bool {
	for _, e := range s.entries {
		if sub, ok := e.value.(*section); !ok || !sub.empty() {
			return false
		}
	}
	return true
}

// order is that of the sections of a configuration file.
var order = []string{
	"listen", "tls", "admin", "namespaces", "key_sets", "auth", "broker", "mercure", "centrifuge", "pusher", "cluster", "eventloop", "log", "shutdown",
}

// yaml writes s as a file that starts with head, a comment.
func (s *section) yaml(head string) []byte {
	slices.SortStableFunc(s.entries, func(a, b *entry) int { return slices.Index(order, a.key) - slices.Index(order, b.key) })
	var b strings.Builder
	comment(&b, head, 0)
	for _, e := range s.entries {
		if sub, ok := e.value.(*section); ok && sub.empty() {
			continue
		}
		b.WriteByte('\n')
		e.write(&b, 0)
	}
	return []byte(b.String())
}

const lineWidth = 110

func comment(b *strings.Builder, words string, indent int) {
	if list := strings.Fields(printable(words)); len(list) > 0 {
		pad := strings.Repeat(" ", indent) + "# "
		fill(b, lineWidth-10, pad, pad, list)
	}
}

// printable is words on one line, whatever the input had in them.
func printable(words string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, words)
}

func (e *entry) write(b *strings.Builder, indent int) {
	pad := strings.Repeat(" ", indent)
	key := quote(e.key) + ":"
	inline, ok := e.inline()
	switch {
	case ok && e.comment != "" && len(pad)+len(key)+len(inline)+len(e.comment)+4 <= lineWidth:
		b.WriteString(pad + key + " " + inline + " # " + printable(e.comment) + "\n")
		return
	case e.comment != "":
		comment(b, e.comment, indent)
	}
	if ok {
		b.WriteString(pad + key + " " + inline + "\n")
		return
	}
	b.WriteString(pad + key + "\n")
	switch v := e.value.(type) {
	case *section:
		v.write(b, indent+2)
	case []*section:
		for _, item := range v {
			var sub strings.Builder
			if item.write(&sub, indent+4); sub.Len() == 0 {
				sub.WriteString(strings.Repeat(" ", indent+4) + "{}\n")
			}
			b.WriteString(pad + "  -" + sub.String()[indent+3:])
		}
	}
}

func (s *section) write(b *strings.Builder, indent int) {
	for _, e := range s.entries {
		if sub, ok := e.value.(*section); ok && sub.empty() {
			continue
		}
		e.write(b, indent)
	}
}

// inline returns a value that fits behind its key.
func (e *entry) inline() (string, bool) {
	switch v := e.value.(type) {
	case string:
		return quote(v), true
	case bool:
		return strconv.FormatBool(v), true
	case int:
		return strconv.Itoa(v), true
	case time.Duration:
		return config.FormatDuration(v), true
	case []string:
		items := make([]string, len(v))
		for i, s := range v {
			items[i] = quote(s)
		}
		return "[" + strings.Join(items, ", ") + "]", true
	case *section, []*section:
		return "", false
	default:
		panic(fmt.Sprintf("a value of type %T in the output", v))
	}
}

var bare = regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+-]+)*$`)

// quote writes s so that YAML reads the same text back: Go's escapes are YAML's.
func quote(s string) string {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		return strconv.Quote(s) // text in YAML 1.2, a boolean for readers of 1.1
	}
	var back yaml.Node
	if bare.MatchString(s) && yaml.Unmarshal([]byte(s), &back) == nil && len(back.Content) == 1 &&
		back.Content[0].Tag == "!!str" && back.Content[0].Value == s {
		return s
	}
	return strconv.Quote(s)
}
