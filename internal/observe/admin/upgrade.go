package admin

import (
	"context"
	"errors"
	"net/http"
)

// Upgrade is a takeover by a new process: what came of the last one, or how far one under
// way has come.
type Upgrade struct {
	// Step is "", "starting", "preparing", "moving", "done" or "failed".
	Step string `json:"step"`
	// Error reports why it failed, and Hint what to do; everything is as it was before then.
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	// PID is the new process, From and To are the versions of the old one and of the new.
	PID  int    `json:"pid,omitempty"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Moved are the connections that moved at once, Refused those that the new process could
	// not take, Left the streams that stayed: they follow, or are drained.
	Moved   int `json:"moved"`
	Refused int `json:"refused"`
	Left    int `json:"left"`
	// Bytes is what the states of those that moved took together.
	Bytes int `json:"bytes"`
	// PauseSeconds is how long clients waited, Seconds how long all of it took.
	PauseSeconds float64 `json:"pause_seconds"`
	Seconds      float64 `json:"seconds"`
}

// upgrade answers when the new process serves, or the upgrade has failed.
func (src *Sources) upgrade(w http.ResponseWriter, r *http.Request) {
	// The client that requested it may disconnect: it continues.
	u, err := src.Upgrade(context.WithoutCancel(r.Context()))
	switch {
	case errors.Is(err, ErrBusy):
		fail(w, err)
	case err != nil:
		writeJSON(w, http.StatusUnprocessableEntity, u)
	default:
		writeJSON(w, http.StatusOK, u)
	}
}
