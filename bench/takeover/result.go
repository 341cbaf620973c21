package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// What has to hold.
const (
	maxSilence = 250 * time.Millisecond
	maxP999    = 100 * time.Millisecond
	maxState   = 512 // bytes of a connection
)

// result is what a run has measured.
type result struct {
	Options                  string
	Clients                  int
	Upgrades                 int
	Published                uint64
	Received                 uint64
	Disconnected             int
	Lost, Repeated, Reversed uint64
	Moved, Left, Bytes       int           // of all upgrades
	Pause, Paused            time.Duration // the longest, and all together
	Silence, P999            time.Duration // how late messages were
	Files, Memory            []int         // of each process, after its upgrade

	late []time.Duration
}

// upgrade upgrades s and notes what came of it.
func (r *result) upgrade(i int, s *server) error {
	u, err := s.upgrade()
	if err != nil {
		return fmt.Errorf("upgrade %d: %w", i+1, err)
	}
	r.Upgrades++
	r.Moved += u.Moved
	r.Left += u.Left + u.Refused
	r.Bytes += u.Bytes
	pause := time.Duration(u.PauseSeconds * float64(time.Second))
	r.Pause, r.Paused = max(r.Pause, pause), r.Paused+pause
	files, memory, err := s.usage()
	r.Files, r.Memory = append(r.Files, files), append(r.Memory, memory)
	return err
}

// finish computes the quantiles.
func (r *result) finish() {
	slices.Sort(r.late)
	if n := len(r.late); n > 0 {
		r.P999 = r.late[n*999/1000]
	}
}

// state is the mean size of a connection's state.
func (r *result) state() int { return r.Bytes / max(r.Moved, 1) }

// flat reports whether neither descriptors nor memory rise from the second quarter of the
// processes to the last.
func (r *result) flat() bool {
	return !rises(r.Files, 16) && !rises(r.Memory, 8<<20)
}

func rises(list []int, slack int) bool {
	q := len(list) / 4
	if q < 2 {
		return false
	}
	before, after := slices.Max(list[q:2*q]), slices.Min(list[len(list)-q:])
	return after > before+before/10+slack
}

func (r *result) holds() bool {
	return r.Disconnected == 0 && r.Lost+r.Repeated+r.Reversed == 0 && r.Silence <= maxSilence && r.P999 <= maxP999 && r.state() <= maxState && r.flat()
}

func (r *result) print(w io.Writer) {
	row := func(what string, value any, goal string, holds bool) {
		verdict := "yes"
		if !holds {
			verdict = "no"
		}
		_, _ = fmt.Fprintf(w, "| %s | %v | %s | %s |\n", what, value, goal, verdict)
	}
	_, _ = fmt.Fprintf(w, "%d clients, %d upgrades, %d published, %d received\n\n| | measured | goal | holds |\n|---|---|---|---|\n", r.Clients, r.Upgrades, r.Published, r.Received)
	row("disconnected", r.Disconnected, "0", r.Disconnected == 0)
	row("lost, repeated, reordered", fmt.Sprintf("%d, %d, %d", r.Lost, r.Repeated, r.Reversed), "0", r.Lost+r.Repeated+r.Reversed == 0)
	row("latest delivery", r.Silence.Round(100*time.Microsecond), fmt.Sprintf("≤ %v", maxSilence), r.Silence <= maxSilence)
	row("delivery p99.9", r.P999.Round(100*time.Microsecond), fmt.Sprintf("≤ %v", maxP999), r.P999 <= maxP999)
	row("pause, mean and longest", fmt.Sprintf("%v, %v", (r.Paused/time.Duration(max(r.Upgrades, 1))).Round(100*time.Microsecond), r.Pause.Round(100*time.Microsecond)), "", true)
	row("connections moved, left to the old process", fmt.Sprintf("%d, %d", r.Moved, r.Left), "", true)
	row("state of a connection, mean", fmt.Sprintf("%d B", r.state()), fmt.Sprintf("≤ %d B", maxState), r.state() <= maxState)
	if n := len(r.Files); n > 0 {
		row("descriptors, first and last process", fmt.Sprintf("%d, %d", r.Files[0], r.Files[n-1]), "flat", !rises(r.Files, 16))
		row("RSS, first and last process", fmt.Sprintf("%d, %d MiB", r.Memory[0]>>20, r.Memory[n-1]>>20), "flat", !rises(r.Memory, 8<<20))
	}
}
