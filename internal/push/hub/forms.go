package hub

import "sync/atomic"

// forms are the wire forms of one thing that were needed: a list, since few
// formats of many are wanted at a time. Reading needs no lock; its owner has one
// for add and keep.
type forms struct{ head atomic.Pointer[form] }

// A form is immutable but for next, which only keep changes, and only to pass
// over others.
type form struct {
	next    atomic.Pointer[form]
	bytes   []byte
	format  Format
	counted bool // in the hub's budget
}

// get returns the form of format f, or nil. Any goroutine.
func (l *forms) get(f Format) *form {
	for p := l.head.Load(); p != nil; p = p.next.Load() {
		if p.format == f {
			return p
		}
	}
	return nil
}

// add adds a form that is not there.
func (l *forms) add(f Format, b []byte, counted bool) {
	p := &form{bytes: b, format: f, counted: counted}
	p.next.Store(l.head.Load())
	l.head.Store(p)
}

// keep drops what is not counted, or everything.
func (l *forms) keep(counted bool) {
	if !counted {
		if l.head.Load() != nil {
			l.head.Store(nil)
		}
		return
	}
	at := &l.head
	for p := at.Load(); p != nil; p = p.next.Load() {
		if p.counted {
			at = &p.next
		} else {
			at.Store(p.next.Load())
		}
	}
}
