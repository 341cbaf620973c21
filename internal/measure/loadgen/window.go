package loadgen

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Window is what was seen in a piece of time. All counts are of arrivals
// intended in it, except Completed and what is received, which count when they
// happened. Histograms are in microseconds; nil means that nothing was recorded.
//
// The window of a Measure, and the Total of a Run that was not cut short, add up:
// Offered = Sent + Dropped, and Sent = Completed + Drained + all Errors of
// exchanges (those of connections start with "connect" or "disconnect"). A window
// within a Run has its borders where the loops took notice, so there the sums hold
// but for what was under way.
type Window struct {
	Start  time.Time
	Length time.Duration
	// Load is what was asked for.
	Load Load
	// Conns is the mean number of open connections.
	Conns float64

	Counts
	Times

	// Batches are the window's seconds.
	Batches []Batch
	// InFlight is the mean number of exchanges under way.
	InFlight float64

	// Delivery is there for pubsub, ws and sse.
	Delivery *Delivery

	BytesIn, BytesOut uint64
	// Generator reports whether it was the limit.
	Generator GeneratorState
	// Host is what the machine did meanwhile.
	Host Host
}

// Counts are what became of arrivals.
type Counts struct {
	Offered   uint64 `json:"offered"`   // intended by the schedule
	Sent      uint64 `json:"sent"`      // really sent
	Completed uint64 `json:"completed"` // answered in order: of 2xx or 3xx for HTTP
	// Drained are those that were answered in order after the window's end, when no
	// more were sent. Their times are in the histograms.
	Drained uint64 `json:"drained"`
	// Carried were intended before the first window, in the warm-up, and answered in
	// this one. They are not in Offered, Sent or Completed, and their times are in no
	// histogram; a target under overload answers them first.
	Carried uint64 `json:"carried,omitempty"`
	// Dropped were never sent: MaxInFlight was reached, or no connection was free
	// for as long as Timeout.
	Dropped uint64 `json:"dropped"`
	// Waited are those of Sent that found no connection free.
	Waited uint64 `json:"waited"`
	// Reconnects of connections that carry exchanges: the server had closed them.
	Reconnects uint64 `json:"reconnects"`
	// Errors by reason: "timeout", "status 503", "reset", "connect: connection refused"…
	Errors map[string]uint64 `json:"errors,omitempty"`
}

// Times are the histograms of a window.
type Times struct {
	// Response is from the intended instant to the answer, Service from the real
	// send. Lag is from the intended instant to when the generator had the arrival in
	// hand: what it added itself. An arrival that then waits for a free connection
	// waits for the target, so that is in Response and not in Lag.
	// With pubsub an answer is a delivery, and Publish is the publisher's own answer
	// from the intended instant.
	Response, Service, Lag, Publish *hdrhistogram.Histogram
	// Connect is from the beginning of a connection to its handshake's end.
	Connect *hdrhistogram.Histogram
}

// timeNames are the names of Times' histograms, in the order of all.
var timeNames = [...]string{"response", "service", "lag", "publish", "connect"} // never changed

func (t *Times) all() [len(timeNames)]**hdrhistogram.Histogram {
	return [...]**hdrhistogram.Histogram{&t.Response, &t.Service, &t.Lag, &t.Publish, &t.Connect}
}

// Named is one of "response", "service", "lag", "publish" and "connect"; not ok for another name.
func (t *Times) Named(name string) (h *hdrhistogram.Histogram, ok bool) {
	i := slices.Index(timeNames[:], name)
	if i < 0 {
		return nil, false
	}
	return *t.all()[i], true
}

// Answered is how many exchanges the target answered in order within the window,
// whenever they were intended. Divided by its length it is the target's throughput.
func (c *Counts) Answered() uint64 { return c.Completed + c.Carried }

// A Batch is one second of a Window.
type Batch struct {
	MeanResponse float64 `json:"mean_response_s"`
	Completed    uint64  `json:"completed"`
	InFlight     float64 `json:"in_flight"` // mean
}

// Delivery accounts for messages from publishers to subscribers. Expected counts
// with the publish and Received with the delivery, so that they agree in the window
// of a Measure and in the Total of a Run; within a Run a message may be published
// in one window and come in the next.
type Delivery struct {
	Published uint64 `json:"published"` // acknowledged
	Expected  uint64 `json:"expected"`  // deliveries that had to happen: messages times subscribers of their channel
	Received  uint64 `json:"received"`
	// Lost were never received though the stream went on past them; Repeated came
	// again; Reordered came after a newer one of their publisher's.
	Lost      uint64 `json:"lost"`
	Repeated  uint64 `json:"repeated"`
	Reordered uint64 `json:"reordered"`
	// Late were still missing when the window's grace was over and may yet come.
	Late uint64 `json:"late"`
	// Carried were published before the window and came in it; they are not in
	// Received. Foreign are messages that this run did not publish.
	Carried uint64 `json:"carried,omitempty"`
	Foreign uint64 `json:"foreign,omitempty"`
	// Gaps are what the server said it could not deliver; Resumed are reconnects
	// that went on where they were.
	Gaps       uint64 `json:"gaps"`
	Reconnects uint64 `json:"reconnects"`
	Resumed    uint64 `json:"resumed"`
	// Pings are those of the server, which were answered where the protocol requires it.
	Pings uint64 `json:"pings,omitempty"`
	// Closes are streams that the server ended, by close code ("1012") or, where there
	// was none, by reason ("end", "reset"…). Without Reconnect each is an Error too.
	Closes map[string]uint64 `json:"closes,omitempty"`
	// Reach is the least share of its subscribers that any message got to; 1 when
	// nothing was published.
	Reach float64 `json:"reach"`
}

// GeneratorState is how the generator itself fared.
type GeneratorState struct {
	// CPU is the processor time it used, in cores.
	CPU float64 `json:"cpu"`
	// GCPauses is the time its own collector stopped it.
	GCPauses time.Duration `json:"gc_pauses"`
	// Limited reports that the generator was the limit, and Why in words: such a
	// window is not a measurement of the target.
	Limited bool   `json:"limited"`
	Why     string `json:"why,omitempty"`
	// Crowded reports that the generator was late because other programs used the
	// machine's processors.
	Crowded bool `json:"crowded,omitempty"`
}

// Host are the covariates of a measurement: what others did to the machine.
type Host struct {
	// Steal is the share of processor time the hypervisor took, 0 to 1.
	Steal float64 `json:"steal"`
	// Pressure is PSI's cpu some, 0 to 1, of the window itself.
	Pressure float64 `json:"pressure"`
	// Busy is the share of all processors in use, Wait the generator's own time on
	// the run queue per processor second.
	Busy float64 `json:"busy"`
	Wait float64 `json:"wait"`
}
