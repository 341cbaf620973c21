package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Filter is a tree of conditions on the tags of publications: "and", "or" and
// "not" over Nodes, or, with an empty Op, one comparison of the tag called Key.
type Filter struct {
	Op    string
	Key   string
	Cmp   string
	Val   string
	Vals  []string
	Nodes []*Filter
}

const maxFilterNodes = 64

// ErrFilter is returned, wrapped in what is wrong, by Filter.Check.
var ErrFilter = errors.New("bad filter")

// Check reports what makes f meaningless.
func (f *Filter) Check() error {
	switch f.Op {
	case "and", "or":
		if len(f.Nodes) == 0 {
			return fmt.Errorf("%w: %s of nothing", ErrFilter, f.Op)
		}
	case "not":
		if len(f.Nodes) != 1 {
			return fmt.Errorf("%w: not of %d nodes", ErrFilter, len(f.Nodes))
		}
	case "":
		return f.checkLeaf()
	default:
		return fmt.Errorf("%w: op %.20q", ErrFilter, f.Op)
	}
	for _, n := range f.Nodes {
		if err := n.Check(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Filter) checkLeaf() error {
	if f.Key == "" {
		return fmt.Errorf("%w: a comparison without a key", ErrFilter)
	}
	switch f.Cmp {
	case "eq", "neq", "ex", "nex", "sw", "ew", "ct":
	case "in", "nin":
		if len(f.Vals) == 0 {
			return fmt.Errorf("%w: %s without values", ErrFilter, f.Cmp)
		}
	case "lt", "lte", "gt", "gte":
		if _, err := strconv.ParseFloat(f.Val, 64); err != nil {
			return fmt.Errorf("%w: %s of %.20q, which is not a number", ErrFilter, f.Cmp, f.Val)
		}
	default:
		return fmt.Errorf("%w: cmp %.20q", ErrFilter, f.Cmp)
	}
	return nil
}

// Match reports whether tags satisfy f, which has passed Check. A comparison with a
// tag that is not there fails, but for neq, nin and nex.
func (f *Filter) Match(tags map[string]string) bool {
	matches := func(n *Filter) bool { return n.Match(tags) }
	switch f.Op {
	case "and":
		return !slices.ContainsFunc(f.Nodes, func(n *Filter) bool { return !matches(n) })
	case "or":
		return slices.ContainsFunc(f.Nodes, matches)
	case "not":
		return !matches(f.Nodes[0])
	}
	tag, ok := tags[f.Key]
	switch f.Cmp {
	case "neq":
		return !ok || tag != f.Val
	case "nin":
		return !ok || !slices.Contains(f.Vals, tag)
	case "nex":
		return !ok
	}
	return ok && f.compare(tag)
}

func (f *Filter) compare(tag string) bool {
	switch f.Cmp {
	case "eq":
		return tag == f.Val
	case "in":
		return slices.Contains(f.Vals, tag)
	case "ex":
		return true
	case "sw":
		return strings.HasPrefix(tag, f.Val)
	case "ew":
		return strings.HasSuffix(tag, f.Val)
	case "ct":
		return strings.Contains(tag, f.Val)
	}
	a, err := strconv.ParseFloat(tag, 64)
	if err != nil {
		return false
	}
	b, err := strconv.ParseFloat(f.Val, 64)
	if err != nil {
		return false
	}
	switch f.Cmp {
	case "lt":
		return a < b
	case "lte":
		return a <= b
	case "gt":
		return a > b
	default:
		return a >= b
	}
}
