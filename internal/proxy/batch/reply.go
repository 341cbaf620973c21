package batch

import (
	"errors"
	"fmt"
	"strconv"
)

// What may be wrong with a reply as a whole.
var (
	errNoObject = errors.New("it is not one JSON object")
	errTwice    = errors.New("it has its items twice")
	errKey      = errors.New("a key is written with escapes, or that of the items in other letters")
)

// A span is a piece of bytes; to is 0 if there is none.
type span struct{ from, to int }

// An answer is one item of a reply.
type answer struct {
	at     span
	index  span // the number that says what it is for; none: its place does
	target int  // what it is for; -1: not known
	ended  bool // a stream has no more for it
}

// A reply is the parts of a JSON document: what surrounds its items is every client's.
type reply struct {
	b       []byte
	list    span // the brackets included; none: the document has no items
	usage   span // of what was used in all, which cannot be divided
	answers []answer
}

// parse reads a reply. r may be used again.
func (r *reply) parse(f *Format, b []byte) error {
	*r = reply{b: b, answers: r.answers[:0]}
	s := scanner{b: b}
	if s.space() != '{' {
		return errNoObject
	}
	twice, unclear := false, false
	s.object(func(k key) {
		s.space()
		from := s.at
		switch {
		case k.escaped, is(k, f.out) && string(k.name) != f.out: // some clients would read it as the items
			unclear = true
			s.value(1)
		case string(k.name) == f.out && s.space() == '[':
			twice = twice || r.list.to > 0
			s.array(func() { r.item(&s, f) })
			r.list = span{from, s.at}
		case f.indexed && string(k.name) == "usage":
			s.value(1)
			r.usage = span{from, s.at}
		default:
			s.value(1)
		}
	})
	switch {
	case !s.end():
		return errNoObject
	case twice:
		return errTwice
	case unclear:
		return errKey
	}
	return nil
}

// item reads one item.
func (r *reply) item(s *scanner, f *Format) {
	s.space()
	a := answer{at: span{from: s.at}, target: len(r.answers)}
	if !f.indexed {
		s.value(2)
	} else {
		a.target = -1
		if s.space() != '{' {
			s.value(2)
		} else {
			a.read(s)
		}
	}
	a.at.to = s.at
	r.answers = append(r.answers, a)
}

// read reads an item that has an index.
func (a *answer) read(s *scanner) {
	twice := false
	s.object(func(k key) {
		s.space()
		from := s.at
		v := s.value(3)
		switch {
		case s.bad || k.escaped:
		case string(k.name) == "index":
			twice = twice || a.index.to > 0
			a.index = span{from, s.at}
			if n, ok := natural(v, 1<<24); ok {
				a.target = n
			}
		case string(k.name) == "finish_reason":
			a.ended = string(v) != "null"
		}
	})
	if twice {
		a.target = -1
	}
}

// A share is which answers of a call are a request's.
type share struct{ from, n int }

func (s share) has(i int) bool { return s.from <= i && i < s.from+s.n }

// appendPart appends the document with the answers of s alone, counted from 0, and returns
// how many those are.
func (r *reply) appendPart(dst []byte, s share) ([]byte, int) {
	dst = r.appendShared(dst, 0, r.list.from)
	dst = append(dst, '[')
	n := 0
	for i := range r.answers {
		a := &r.answers[i]
		if !s.has(a.target) {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		if a.index.to == 0 {
			dst = append(dst, r.b[a.at.from:a.at.to]...)
			continue
		}
		dst = append(dst, r.b[a.at.from:a.index.from]...)
		dst = strconv.AppendInt(dst, int64(a.target-s.from), 10)
		dst = append(dst, r.b[a.index.to:a.at.to]...)
	}
	dst = append(dst, ']')
	return r.appendShared(dst, r.list.to, len(r.b)), n
}

// appendShared appends a piece of what surrounds the items, without what was used.
func (r *reply) appendShared(dst []byte, from, to int) []byte {
	if u := r.usage; u.to > 0 && from <= u.from && u.to <= to {
		dst = append(append(dst, r.b[from:u.from]...), "null"...)
		from = u.to
	}
	return append(dst, r.b[from:to]...)
}

// whole says for each of the shares what is wrong with its answers; nil where each of them
// is there once. strays is how many answers are for none.
//
// Where answers are told apart by their place alone, one too few or too many leaves open
// which one that is: then no share is right.
func (r *reply) whole(f *Format, shares []share) (faults []error, strays int) {
	faults = make([]error, len(shares))
	total := 0
	for _, s := range shares {
		total += s.n
	}
	if r.list.to == 0 {
		for i := range faults {
			faults[i] = fmt.Errorf("it has no %q", f.out)
		}
		return faults, 0
	}
	if !f.indexed {
		if len(r.answers) != total {
			for i := range faults {
				faults[i] = fmt.Errorf("%d %s for %d %s", len(r.answers), f.out, total, f.in)
			}
		}
		return faults, 0
	}
	seen := make([]int, total)
	for i := range r.answers {
		if n := r.answers[i].target; n >= 0 && n < total {
			seen[n]++
		} else {
			strays++
		}
	}
	for i, s := range shares {
		for j := s.from; j < s.from+s.n && faults[i] == nil; j++ {
			if seen[j] != 1 {
				faults[i] = fmt.Errorf("index %d is there %d times", j, seen[j])
			}
		}
	}
	return faults, strays
}
