package loadgen

import (
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// A LimitError says before a run that the machine cannot make it.
type LimitError struct {
	// Resource is what there is too little of: "descriptors", "ports", "memory".
	Resource string
	// Need and Have are in the resource's unit; memory in bytes.
	Need, Have uint64
	// Fix is what to do about it.
	Fix string
}

// Error names the resource, what is needed and what there is.
func (e *LimitError) Error() string {
	unit := func(n uint64) string {
		if e.Resource == "memory" {
			return strconv.FormatUint(n>>20, 10) + " MiB"
		}
		return strconv.FormatUint(n, 10)
	}
	return "not enough " + e.Resource + ": the run needs " + unit(e.Need) + ", there are " + unit(e.Have)
}

// Hint is the fix.
func (e *LimitError) Hint() string { return e.Fix }

type hintedError struct {
	error
	hint string
}

func (e *hintedError) Hint() string  { return e.hint }
func (e *hintedError) Unwrap() error { return e.error }

// hinted gives err a sentence that says what to do.
func hinted(err error, hint string) error { return &hintedError{err, hint} }

// reason is err as a key of Window.Errors: short, and of few different values.
func reason(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed by the server"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "timeout"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.As(err, &errno):
		return errno.Error()
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return "timeout"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err // without the addresses
	}
	s := err.Error()
	if i := strings.LastIndex(s, ": "); i > 0 && len(s) > 60 {
		s = s[i+2:]
	}
	return s
}
