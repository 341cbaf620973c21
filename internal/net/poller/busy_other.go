//go:build !linux

package poller

import (
	"errors"
	"time"
)

// SetBusyPoll fails.
func SetBusyPoll(Poller, time.Duration, bool) (time.Duration, error) {
	return 0, errors.ErrUnsupported
}
