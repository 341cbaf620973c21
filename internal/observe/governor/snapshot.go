package governor

import (
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Snapshot is everything that the governor knows at an instant: what the page, expvar,
// the metrics and the terminal view read. It is immutable: a reader may keep
// it, and must not change it. Times are in seconds, sizes in bytes, shares from 0 to
// 1; what is not known is zero.
type Snapshot struct {
	Enabled bool      `json:"enabled"`
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time,omitzero"`
	Start   time.Time `json:"start,omitzero"`

	State State `json:"state"`

	Sched      Sched        `json:"sched"`
	Host       Host         `json:"host"`
	Canaries   Canaries     `json:"canaries"`
	Collector  Collector    `json:"gc"`
	Memory     Memory       `json:"memory"`
	CPU        CPU          `json:"cpu"`
	Locks      Locks        `json:"locks"`
	Files      Files        `json:"files"`
	Goroutines Census       `json:"goroutines"`
	Loops      []LoopView   `json:"loops"`
	Traffic    Traffic      `json:"traffic"`
	Delivery   Delivery     `json:"delivery"`
	Stalls     Stalls       `json:"stalls"`
	Broker     BrokerView   `json:"broker"`
	Knee       Distance     `json:"knee"`
	Timeline   []Transition `json:"timeline"`
	Evidence   Evidence     `json:"evidence"`
	Self       Self         `json:"self"`
}

// State is how the process fares by the last window, and why.
type State struct {
	Now   stat.State `json:"now"`
	Since time.Time  `json:"since,omitzero"`
	// Inconclusive reports that what looks like overload is the host's: processor time
	// stolen, or others in front of us in the kernel's queue. Such windows never
	// become an inflection.
	Inconclusive bool `json:"inconclusive"`
	// Causes speak for a state worse than steady, of the last window and of what is
	// found at once; the worst first.
	Causes []Cause `json:"causes"`
	// Reading is the two-condition rule's of the last window.
	Reading stat.Reading `json:"reading"`
	// Windows evaluated so far, Steady those that the baseline is made of now.
	Windows  uint64   `json:"windows"`
	Steady   int      `json:"steady"`
	Baseline Baseline `json:"baseline"`
}

// A Baseline is what windows are compared with: medians of the last steady ones.
type Baseline struct {
	DeliveryP99 float64 `json:"delivery_p99"`
	Goroutines  float64 `json:"goroutines"`
	// G0 + G1·connections goroutines are explained.
	G0 float64 `json:"g0"`
	G1 float64 `json:"g1"`
}

// A Cause is one reason for a state, in words and numbers.
type Cause struct {
	// Name is one of the constants Cause…, Text what a person reads: "run/P 3.1".
	Name string `json:"name"`
	Text string `json:"text"`
	// State is the worst that this cause speaks for.
	State stat.State `json:"state"`
	// Value went past Limit.
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	// Loop is the event loop's number, −1 when it is not a loop's.
	Loop int `json:"loop"`
	// Detail is what else is known: of a stuck loop, its goroutine's stack.
	Detail string `json:"detail,omitempty"`
}

// The causes' names.
const (
	CauseRunQueue       = "run-queue"
	CauseSchedLatency   = "sched-latency"
	CauseLatency        = "latency"
	CauseGoroutines     = "goroutines"
	CauseGoroutineLeak  = "goroutine-leak"
	CauseLoopBusy       = "loop-busy"
	CauseLoopTick       = "loop-tick"
	CauseLoopInbox      = "loop-inbox"
	CauseLoopStuck      = "loop-stuck"
	CauseStoppedReaders = "stopped-readers"
	CauseDisk           = "disk"
	CauseStarved        = "cpu-starved"
	CauseThrottled      = "cpu-throttled"
	CauseNetpoll        = "netpoll"
	CauseCollector      = "gc"
	CauseLocks          = "lock-wait"
	CauseMemory         = "memory"
	CauseDescriptors    = "descriptors"
	CauseRetransmits    = "retransmits"
)

// A Transition is one change of state.
type Transition struct {
	Time         time.Time  `json:"time"`
	From         stat.State `json:"from"`
	To           stat.State `json:"to"`
	Causes       []Cause    `json:"causes"`
	Inconclusive bool       `json:"inconclusive"`
	// Evidence is the bundle's id, empty when none was written (yet).
	Evidence string `json:"evidence,omitempty"`
}

// Sched is the G/P/M strip. The runtime's counts are approximate and need not add up.
type Sched struct {
	Goroutines int `json:"goroutines"`
	Running    int `json:"running"`
	Runnable   int `json:"runnable"`
	Waiting    int `json:"waiting"`
	NotInGo    int `json:"not_in_go"`
	Threads    int `json:"threads"`
	Procs      int `json:"procs"`
	// Created is per second.
	Created float64 `json:"created"`
	// RunQueue is runnable per processor, the mean of the last second; RunQueueMax the
	// greatest sample in it.
	RunQueue    float64 `json:"run_queue"`
	RunQueueMax float64 `json:"run_queue_max"`
	// Latency is from runnable to running, of the last second; the runtime samples one
	// transition in eight.
	Latency Quantiles `json:"latency"`
}

// Host attributes the waiting: what the kernel, the hypervisor and the cgroup made
// us wait. All of it is of the last second.
type Host struct {
	// Wait is the time that our threads were runnable and not running, per second and
	// processor; Ratio sets it against the scheduler's wait within Go.
	Wait  float64 `json:"wait"`
	Ratio float64 `json:"ratio"`
	// Busy is how much of all processors was used, Steal what the hypervisor took.
	Busy  float64 `json:"busy"`
	Steal float64 `json:"steal"`
	// Pressure is PSI's.
	Pressure Pressure `json:"pressure"`
	// Throttled is the share of time that the cgroup's quota kept us off, Quota the
	// processors that it grants; 0 means no quota.
	Throttled float64 `json:"throttled"`
	Quota     float64 `json:"quota"`
	CPUs      int     `json:"cpus"`
}

// Pressure is the kernel's pressure stall information: the share of the last ten
// seconds in which some, or all, tasks waited for a resource.
type Pressure struct {
	// Known reports that the kernel has it.
	Known      bool    `json:"known"`
	CPU        float64 `json:"cpu_some"`
	Memory     float64 `json:"memory_some"`
	MemoryFull float64 `json:"memory_full"`
	IO         float64 `json:"io_some"`
	IOFull     float64 `json:"io_full"`
}

// Canaries are small probes run ten times a second, timed; of the last ten seconds.
type Canaries struct {
	// Goroutine is from a channel's send to the receiver's run, Socket from a write
	// to the reader's run, Timer how late a timer of 5 ms was.
	Goroutine Quantiles `json:"goroutine"`
	Socket    Quantiles `json:"socket"`
	Timer     Quantiles `json:"timer"`
	// Netpoll is what the socket's reader waited longer than the goroutine, at the
	// median and two percentiles: no runtime metric has it. A hundred probes carry no
	// verdict on a 99th percentile, so states look at the 90th.
	NetpollP50 float64 `json:"netpoll_p50"`
	NetpollP90 float64 `json:"netpoll_p90"`
	NetpollP99 float64 `json:"netpoll_p99"`
	// Lost probes had not returned when the next was due.
	Lost uint64 `json:"lost"`
}

// Collector is the truth about garbage collection. The runtime accounts for its
// processor time only when a cycle ends, so the shares are of the last whole cycle.
type Collector struct {
	Cycles uint64 `json:"cycles"`
	// LastAt is when the last cycle was seen to have ended, Period its distance to the
	// one before.
	LastAt time.Time `json:"last_at,omitzero"`
	Period float64   `json:"period"`
	// Share is of the processor time available, without what was idle; Assist is the
	// part of it that allocating goroutines paid, Scavenge what gave memory back.
	Share    float64 `json:"share"`
	Assist   float64 `json:"assist"`
	Scavenge float64 `json:"scavenge"`
	// Pause and Stop are stop-the-world pauses of the collector, in all and until the
	// world had stopped, of the last minute.
	Pause Quantiles `json:"pause"`
	Stop  Quantiles `json:"stop"`
	Live  uint64    `json:"live"`
	Goal  uint64    `json:"goal"`
	Limit uint64    `json:"limit"`
	// Percent is GOGC, −1 when it is off, and Policy what sets it.
	Percent int    `json:"percent"`
	Policy  string `json:"policy"`
	// LimiterAt is the cycle in which the collector's limiter, which keeps it below
	// half of the processors near the memory limit, was on last; 0 means never.
	LimiterAt uint64 `json:"limiter_at"`
	// Limiting reports that it was in the last cycle.
	Limiting bool `json:"limiting"`
	// Allocated is in bytes per second.
	Allocated float64 `json:"allocated"`
}

// MemoryOwners are bytes by what they are used for, as the owners count them.
type MemoryOwners struct {
	// Connections: their structs, sessions and write queues.
	Connections uint64 `json:"connections"`
	// Backlogs: messages that wait for slow subscribers.
	Backlogs uint64 `json:"backlogs"`
	// WireForms: encoded messages that are kept with the recent ones.
	WireForms uint64 `json:"wire_forms"`
	// Rings: recent messages of channels with subscribers.
	Rings uint64 `json:"rings"`
	// LogCache: pages that were read from the log and are kept; of the memory broker the
	// log, but for what the rings hold of it.
	LogCache uint64 `json:"log_cache"`
	// Other is the rest of the resident memory: the embedded NATS server's caches, the
	// collector's headroom, the runtime, the program.
	Other uint64 `json:"other"`
}

// Memory is what the process takes.
type Memory struct {
	RSS uint64 `json:"rss"`
	// Kernel is what the kernel's TCP holds, for all processes of the machine.
	Kernel uint64 `json:"kernel_tcp"`
	Heap   uint64 `json:"heap"`
	Stacks uint64 `json:"stacks"`
	// PerConnection is Owners.Connections by their number: what a connection owns, not its
	// share of the process. 0 without connections.
	PerConnection float64 `json:"per_connection"`
	// Owners reports what the memory is used for.
	Owners MemoryOwners `json:"owners"`
	// Slope is how many bytes another connection costs by what was seen so far.
	Slope  float64 `json:"slope"`
	Budget Budget  `json:"budget"`
	// From reports where the limit comes from: "config", "cgroup v2", "machine" …
	From string `json:"from"`
}

// CPU is the processor time of this process.
type CPU struct {
	// Used is in processors: 1.5 is one and a half. Share is of those it may use.
	Used  float64 `json:"used"`
	Share float64 `json:"share"`
	// Total is in seconds, since the start.
	Total float64 `json:"total"`
}

// Locks is the time that goroutines waited for mutexes.
type Locks struct {
	// Wait is in seconds per second; Total in seconds since the start.
	Wait  float64 `json:"wait"`
	Total float64 `json:"total"`
}

// Files are the process's file descriptors.
type Files struct {
	Open   int    `json:"open"`
	Budget Budget `json:"budget"`
}

// A Census is the goroutines by what they do.
type Census struct {
	Roles []RoleCount `json:"roles"`
	Total int         `json:"total"`
	// Other are in no role. When they only grow, they leak.
	Other int `json:"other"`
	// Excess are beyond what the connections explain.
	Excess float64 `json:"excess"`
}

// A LoopView is one event loop, of the last second where it is a rate.
type LoopView struct {
	ID int `json:"id"`
	// Busy is the share of the time that it worked.
	Busy     float64   `json:"busy"`
	Tick     Quantiles `json:"tick"`
	LastTick float64   `json:"last_tick"`
	// Working is how long the tick that has not ended works already.
	Working  float64 `json:"working"`
	Inbox    int     `json:"inbox"`
	Stalled  int     `json:"stalled"`
	Conns    int     `json:"conns"`
	Ticks    float64 `json:"ticks"`
	Sends    float64 `json:"sends"`
	BytesIn  float64 `json:"bytes_in"`
	BytesOut float64 `json:"bytes_out"`
	Stalls   float64 `json:"stalls"`
}

// Traffic sums the loops up, per second.
type Traffic struct {
	Connections int     `json:"connections"`
	Published   float64 `json:"published"`
	Delivered   float64 `json:"delivered"`
	BytesIn     float64 `json:"bytes_in"`
	BytesOut    float64 `json:"bytes_out"`
	Sends       float64 `json:"sends"`
	// Amplification is messages out per message in, BytesPerSend how well writes
	// gather, SendsPerMessage the system calls that a delivery takes.
	Amplification   float64 `json:"amplification"`
	BytesPerSend    float64 `json:"bytes_per_send"`
	SendsPerMessage float64 `json:"sends_per_message"`
	// Balance is Jain's index of what the loops sent: 1 is even.
	Balance float64 `json:"balance"`
}

// Delivery is the latency from publish to socket.
type Delivery struct {
	// Second is of the last second, Window of the last whole window.
	Second Quantiles `json:"second"`
	Window Quantiles `json:"window"`
}

// Stalls show why writes wait, by what the kernel says of the sampled connections.
type Stalls struct {
	// Sampled connections, 1 in Of of all, the last time.
	Sampled int `json:"sampled"`
	Of      int `json:"of"`
	// Reader is the share of the time in which senders waited for the peer's window: a
	// slow client. Buffer is the wait for our own send buffer. Both of the time in
	// which there was something to send.
	Reader float64 `json:"reader"`
	Buffer float64 `json:"buffer"`
	// Stopped are sampled connections that waited for their reader for more than half
	// of the time and have something unsent.
	Stopped int `json:"stopped"`
	// Unsent bytes in the kernel, round trips in seconds, over the sampled ones.
	Unsent      Spread  `json:"unsent"`
	RTT         Spread  `json:"rtt"`
	Queued      Spread  `json:"queued"`
	Retransmits float64 `json:"retransmits"` // of the segments sent, a share
	// Waiting are all connections whose socket accepts no data now, as loops count them.
	Waiting int  `json:"waiting"`
	Stale   bool `json:"stale"`
}

// A Spread is how a quantity is distributed.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// BrokerView is the state of the broker's writes, of the last ten seconds.
type BrokerView struct {
	Store   Quantiles `json:"store"`
	Waiting int       `json:"waiting"`
	Oldest  float64   `json:"oldest"`
	// Failed is per second.
	Failed float64 `json:"failed"`
}

// Distance is how far the load is from the knee of the last capacity report.
type Distance struct {
	// Known reports that there is a report; without one the rest is zero.
	Known  bool       `json:"known"`
	Report KneeReport `json:"report"`
	// Load is in the report's unit, Fraction of its knee, Headroom what is left (never
	// below 0), Age the report's in seconds.
	Load     float64 `json:"load"`
	Fraction float64 `json:"fraction"`
	Headroom float64 `json:"headroom"`
	Age      float64 `json:"age"`
	// Projected is the load at which the processors would be full by what a message
	// costs now; 0 when there is too little load to say.
	Projected float64 `json:"projected"`
}

// Evidence is what is recorded, and what was.
type Evidence struct {
	// Armed reports that the flight recorder and the profiles run.
	Armed bool `json:"armed"`
	// Writing is the id of the bundle that is being written.
	Writing string `json:"writing,omitempty"`
	// Problem says in words why bundles cannot be written.
	Problem string `json:"problem,omitempty"`
	// Bundles that are kept, the newest first.
	Bundles []Bundle `json:"bundles"`
}

// Self is what the governor costs.
type Self struct {
	// Sample and Slow are how long one sample and one slow reading took, the mean of
	// the last second and the last one.
	Sample float64 `json:"sample"`
	Slow   float64 `json:"slow"`
	// Share is of one processor, samples and slow readings together.
	Share float64 `json:"share"`
	// Late is by how much samples came too late at most, in the last second.
	Late float64 `json:"late"`
}
