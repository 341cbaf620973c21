// Package observer watches one process from the kernel for some seconds: how long its
// system calls take, how long its threads wait for a processor and for locks, its page
// faults and its TCP connections; of a Go process also what its scheduler did. [Observe]
// makes a [Report], whose findings name what is wrong.
//
// The kernel's part are eBPF programs in bpf/, compiled and committed; `make observer`
// compiles them again. Each is loaded by itself: one that this kernel or these rights do
// not allow is named in the report, and the others still work, as does all that /proc has.
package observer

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Options say what to observe. The zero value of all but PID works.
type Options struct {
	PID int
	// Duration is the sampling window; 0 means 5 s, at most MaxDuration.
	Duration time.Duration
	// Slices are the columns of heat maps; 0 means 50, at most 500.
	Slices int
	// Trace returns an execution trace of the process that lasts about as long as the
	// window; nil: the process is not requested one.
	Trace func(ctx context.Context, d time.Duration) (io.ReadCloser, error)
	// NoKernel leaves eBPF out, as if it were not allowed.
	NoKernel bool
	// Started is called when everything is attached and the window starts; nil: nothing is.
	Started func()
}

// MaxDuration is the longest window: programs in the kernel cost every process some time.
const MaxDuration = 5 * time.Minute

// Validate returns what is wrong with o.
func (o Options) Validate() error {
	switch {
	case o.PID <= 0:
		return fmt.Errorf("invalid process %d: want a number above 0", o.PID)
	case o.Duration < 0 || o.Duration > MaxDuration:
		return fmt.Errorf("invalid duration %v: want up to %v", o.Duration, MaxDuration)
	case o.Slices < 0 || o.Slices > 500:
		return fmt.Errorf("invalid number of slices %d: want 1 to 500", o.Slices)
	}
	return nil
}

// A Report is what one window showed. Times are in seconds.
type Report struct {
	PID      int       `json:"pid"`
	Command  string    `json:"command"`
	Kernel   string    `json:"kernel"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Slice    float64   `json:"slice_seconds"`
	CPU      float64   `json:"cpu_seconds"` // of the process, in the window
	Probes   []Probe   `json:"probes"`
	Findings []Finding `json:"findings"`
	// Bounds are the upper ends of the slots of every histogram, in seconds.
	Bounds   []float64 `json:"bounds"`
	Syscalls []Syscall `json:"syscalls"`
	// RunQueue is the time between "may run" and "runs".
	RunQueue Series `json:"run_queue"`
	// RunDelay is the same time in all as the kernel's own accounting has it (schedstat),
	// which needs no rights; -1 without.
	RunDelay float64   `json:"run_delay_seconds"`
	Locks    []Lock    `json:"locks"`
	Faults   Faults    `json:"page_faults"`
	TCP      TCP       `json:"tcp"`
	Go       *GoReport `json:"go,omitempty"`
}

// A Probe is one source of numbers and what it cost.
type Probe struct {
	Name string `json:"name"`
	On   bool   `json:"on"`
	// Why it is off, and what still works.
	Why string `json:"why,omitempty"`
	// Events of all processes that ran its programs, and the time spent in them, as the
	// kernel measures it. Calling the programs costs about as much again.
	Events  uint64  `json:"events"`
	Seconds float64 `json:"seconds"`
	// Share of one processor that Seconds were.
	Share float64 `json:"share"`
}

// A Series is a histogram, in all and by slices of the window.
type Series struct {
	Count uint64  `json:"count"`
	Total float64 `json:"total_seconds"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Most  float64 `json:"most_seconds"` // the upper end of the slot
	// Slices have the counts by slot of each slice.
	Slices [][]uint64 `json:"slices"`
}

// A Syscall is a system call of the process.
type Syscall struct {
	Name string `json:"name"`
	Series
	// UnderWay are calls that had not returned when the window ended, Oldest for how long
	// the oldest of them had lasted.
	UnderWay int     `json:"under_way"`
	Oldest   float64 `json:"oldest_seconds"`
}

// A Lock is an address that threads waited for (futex(2)).
type Lock struct {
	Address string `json:"address"`
	// Threads that waited, and their waits. Of one thread it is a thread that parks.
	Threads int     `json:"threads"`
	Waits   uint64  `json:"waits"`
	Seconds float64 `json:"seconds"`
}

// Faults are page faults by slice. Major ones read from a disk.
type Faults struct {
	Minor   uint64   `json:"minor"`
	Major   uint64   `json:"major"`
	User    uint64   `json:"user"` // counted by the probe; 0 if it is off
	BySlice []uint64 `json:"by_slice"`
}

// TCP is about the process's sockets, and those of its listeners' ports.
type TCP struct {
	Retransmits []Retransmit  `json:"retransmits"`
	States      []StateChange `json:"state_changes"`
	Ended       Ended         `json:"ended"`
	Listeners   []Listener    `json:"listeners"`
	Connections []Connection  `json:"connections"` // the 20 that waited longest for their reader
	Open        int           `json:"open"`
	Sampled     int           `json:"sampled"`
}

// A Retransmit counts segments that a connection sent again.
type Retransmit struct {
	Local uint16 `json:"local_port"`
	Peer  uint16 `json:"peer_port"`
	Count uint64 `json:"count"`
}

// A StateChange counts changes from one state to another.
type StateChange struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Count uint64 `json:"count"`
}

// Ended are connections that were made and ended in the window.
type Ended struct {
	Count    uint64  `json:"count"`
	Sent     uint64  `json:"sent_bytes"`
	Received uint64  `json:"received_bytes"`
	LifeP50  float64 `json:"life_p50_seconds"`
	LifeP99  float64 `json:"life_p99_seconds"`
}

// A Listener is a listening socket and its accept queue.
type Listener struct {
	Address string `json:"address"`
	// Queue is the most connections that waited to be accepted.
	Queue int `json:"queue_most"`
	// Samples are the queue at ten instants of the window.
	Samples []int `json:"samples"`
}

// A Connection is one socket, with what it did in the window.
type Connection struct {
	Local    string  `json:"local"`
	Peer     string  `json:"peer"`
	Sent     uint64  `json:"sent_bytes"` // acknowledged by the peer
	Received uint64  `json:"received_bytes"`
	Busy     float64 `json:"busy_seconds"`           // there was something to send
	Reader   float64 `json:"reader_limited_seconds"` // of that: the peer's window was closed
	Buffer   float64 `json:"buffer_limited_seconds"` // of that: the own send buffer was small
	Unsent   uint32  `json:"unsent_bytes"`
	RTT      float64 `json:"rtt_seconds"`
	Repeated uint32  `json:"retransmits"`
}

// A Finding is something that is wrong, with the numbers that say so.
type Finding struct {
	// Name is slow-sync, lock-convoy, page-fault-storm, stopped-reader, run-queue,
	// retransmits, accept-queue or go-contention.
	Name string `json:"name"`
	Text string `json:"text"`
	Do   string `json:"do"`
}
