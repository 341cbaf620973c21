// Package setting has types for configuration keys that the language has no type for.
package setting

import (
	"fmt"
	"strconv"
)

// A Switch is a boolean that is true unless it is set to false: its zero value is On.
// Files have it as true or false. It is comparable, unlike a pointer to a bool.
type Switch uint8

// The values of a Switch.
const (
	On Switch = iota
	Off
)

// Of returns On for true and Off for false.
func Of(on bool) Switch {
	if on {
		return On
	}
	return Off
}

// On reports whether s is on.
func (s Switch) On() bool { return s == On }

// String returns "true" or "false", as in a file.
func (s Switch) String() string { return strconv.FormatBool(s.On()) }

// MarshalJSON writes true or false.
func (s Switch) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads true or false; null leaves s as it is.
func (s *Switch) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "true":
		*s = On
	case "false":
		*s = Off
	case "null":
	default:
		return fmt.Errorf("%.40s is not true or false", b)
	}
	return nil
}
