package config

import (
	"errors"
	"strings"
)

// hinted is implemented by errors that know what their reader can do about
// them. Any package may have such a type without importing this one.
type hinted interface {
	error
	Hint() string
}

type withHint struct {
	error
	hint string
}

func (e *withHint) Hint() string  { return e.hint }
func (e *withHint) Unwrap() error { return e.error }

// WithHint returns err with a sentence that says what to do about it. The hint
// is not part of the error's text: the CLI prints it on a line of its own.
// A nil err stays nil.
func WithHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &withHint{err, hint}
}

// HintOf returns the hint of the outermost error in err's tree that has one,
// or "".
func HintOf(err error) string {
	if h, ok := errors.AsType[hinted](err); ok {
		return h.Hint()
	}
	return ""
}

// Problems returns the single errors that err joins, in order: each is worth a
// line of its own. Where several are joined behind a common start, each gets that
// start. A nil err has none.
func Problems(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, Problems(e)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil {
		start, ok := strings.CutSuffix(err.Error(), inner.Error())
		if all := Problems(inner); ok && len(all) > 1 {
			for i, e := range all {
				all[i] = &reworded{e, start + e.Error()}
			}
			return all
		}
	}
	return []error{err}
}
