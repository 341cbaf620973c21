package governor

import (
	"errors"

	"github.com/weir-gateway/weir/hub"
)

// What evidence may answer.
var (
	ErrNoBundle    = errors.New("no such bundle")
	ErrCapturing   = errors.New("a bundle is being written")
	ErrNoDirectory = errors.New("evidence has no directory: set governor.evidence.dir")
)

// A Level is how soon someone should look.
type Level string

// The levels: wake someone, make it work for the day, know about it.
const (
	Page        Level = "page"
	Ticket      Level = "ticket"
	Information Level = "information"
)

// An Alert is a rule for Prometheus, made of the same thresholds as the states.
type Alert struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Expr is PromQL.
	Expr    string       `json:"expr"`
	For     hub.Duration `json:"for"`
	Summary string       `json:"summary"`
	// Runbook is the heading in the runbook, in the form of a link's fragment.
	Runbook string `json:"runbook"`
	// Cause is the state machine's name for the same thing, empty when it has none.
	Cause string `json:"cause,omitempty"`
}

// Alerts are all alerts under thresholds t.
func Alerts(t Thresholds) []Alert { return nil }
