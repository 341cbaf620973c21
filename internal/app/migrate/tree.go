package migrate

import (
	"fmt"
	"strings"
)

// A kind is what a node of the input is.
type kind uint8

const (
	null kind = iota
	text
	number
	boolean
	list
	object
)

// Bounds of the input.
const (
	maxInput = 1 << 20
	maxNodes = 50_000
	maxDepth = 32
)

// A node is a value of the input.
type node struct {
	kind   kind
	value  string // of text, number and boolean
	items  []*node
	fields []member // of an object, in the order of the file
	line   int      // from 1; 0: not known
	where  string   // the key as the file has it, with its parents
	used   bool
}

type member struct {
	key   string
	value *node
}

func (n *node) leaf() bool {
	return n.kind != object && n.kind != list || len(n.fields) == 0 && len(n.items) == 0
}

// child returns the value of a key of an object, nil if there is none. Keys are
// distinguished by letters alone, not by their case, as the servers' own readers do.
func (n *node) child(key string) *node {
	if n == nil || n.kind != object {
		return nil
	}
	for i := range n.fields {
		if strings.EqualFold(n.fields[i].key, key) {
			return n.fields[i].value
		}
	}
	return nil
}

// at returns what is at a path of keys joined by dots; nil if nothing does.
func (n *node) at(path string) *node {
	for key := range strings.SplitSeq(path, ".") {
		if n = n.child(key); n == nil {
			return nil
		}
	}
	return n
}

// put places v at a path, making the objects on the way. An existing value stays: the
// result is false. Objects are laid over each other.
func (n *node) put(path string, v *node) (ok bool) {
	keys := strings.Split(path, ".")
	if len(keys) > maxDepth {
		return false
	}
	for _, key := range keys[:len(keys)-1] {
		next := n.child(key)
		if next == nil {
			next = &node{kind: object}
			n.fields = append(n.fields, member{key, next})
		}
		if next.kind != object {
			return false
		}
		n = next
	}
	key := keys[len(keys)-1]
	have := n.child(key)
	switch {
	case have == nil:
		n.fields = append(n.fields, member{key, v})
		return true
	case have.kind == object && v.kind == object:
		ok = true
		for _, f := range v.fields {
			ok = have.put(f.key, f.value) && ok
		}
		return ok
	default:
		return false
	}
}

// lay is put, but what comes later counts.
func (n *node) lay(path string, v *node) (ok bool) {
	parent, key := n, path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, key = n.at(path[:i]), path[i+1:]
	}
	if have := parent.child(key); have != nil {
		have.markUsed()
		for i := range parent.fields {
			if parent.fields[i].value == have {
				parent.fields[i].value = v
			}
		}
		return true
	}
	return n.put(path, v)
}

// markUsed marks a value, with all that is in it, as used.
func (n *node) markUsed() {
	if n == nil {
		return
	}
	n.used = true
	for _, item := range n.items {
		item.markUsed()
	}
	for _, f := range n.fields {
		f.value.markUsed()
	}
}

// A leaf is a value of the input with the path that it has in the newest form.
type leaf struct {
	path string
	node *node
}

// unused appends the leaves that were not consumed.
func (n *node) unused(path string, to []leaf) []leaf {
	switch {
	case n.used || n.kind == null:
		return to
	case n.leaf():
		return append(to, leaf{path, n})
	}
	for _, item := range n.items {
		to = item.unused(path+"[]", to)
	}
	for _, f := range n.fields {
		to = f.value.unused(join(path, strings.ToLower(f.key)), to)
	}
	return to
}

// leaves counts the values; one that is in two places counts once.
func (n *node) leaves(seen map[*node]bool) (count int) {
	if n.leaf() {
		if seen[n] {
			return 0
		}
		seen[n] = true
		return 1
	}
	for _, item := range n.items {
		count += item.leaves(seen)
	}
	for _, f := range n.fields {
		count += f.value.leaves(seen)
	}
	return count
}

// name gives every node the key that the file has for it.
func (n *node) name(where string) {
	n.where = where
	for i, item := range n.items {
		item.name(fmt.Sprintf("%s[%d]", where, i))
	}
	for _, f := range n.fields {
		f.value.name(join(where, f.key))
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
