package tune

import (
	"io/fs"
	"slices"
)

// Checks are all of them, in the order of a report.
func Checks() []Check {
	return slices.Concat(acceptChecks, portsChecks, buffersChecks, tcpChecks, packetsChecks, cardChecks, filesChecks, conntrackChecks, cgroupChecks, obsoleteChecks)
}

// A missingError is for what is not there, in words.
type missingError struct{ text string }

func (e *missingError) Error() string        { return e.text }
func (e *missingError) Is(target error) bool { return target == fs.ErrNotExist }
