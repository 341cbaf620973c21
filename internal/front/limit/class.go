package limit

import "fmt"

// A Class is how important a request is: of the classes that wait, the most
// important goes first. It has nothing to do with HTTP's priorities.
type Class uint8

// The classes, the most important first. Unclassed requests are not part of
// admission: they are served at once, as if there were none.
const (
	Unclassed Class = iota
	Control         // operators and health: never refused for load
	Order           // what must get through: orders, payments
	Account         // what users wait for: positions, balances
	Market          // what is replaced by the next one anyway: prices
	Replay          // what can be had later: history, catching up
	Classes         // how many there are
)

var classNames = [Classes]string{"", "control", "order", "account", "market", "replay"}

// String returns the name as in configuration and metrics.
func (c Class) String() string {
	if c >= Classes {
		return fmt.Sprintf("class %d", uint8(c))
	}
	return classNames[c]
}

// MarshalText writes the name.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; empty means Unclassed.
func (c *Class) UnmarshalText(b []byte) error {
	for i, name := range classNames {
		if name == string(b) {
			*c = Class(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not a class: it is one of control, order, account, market, replay, or empty", b)
}
