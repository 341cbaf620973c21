package h2

// A flood is something of which a client may send only so much. Each kind has a budget of
// its own, which fills up with time and with what the connection is for: streams that came
// to their end.
type flood uint8

const (
	floodReset        flood = iota // streams that the client starts and takes back (CVE-2023-44487)
	floodMadeReset                 // streams that its mistakes make us reset (CVE-2025-8671)
	floodPing                      // PING
	floodSettings                  // SETTINGS
	floodWindow                    // WINDOW_UPDATE
	floodPriority                  // PRIORITY and PRIORITY_UPDATE
	floodEmpty                     // DATA without bytes that does not end its stream
	floodContinuation              // header blocks in too many or too large pieces (CVE-2024-27316)
	floodHeaders                   // header blocks that say too much
	floodStreams                   // streams beyond those allowed at a time
	floodUnknown                   // frames of unknown types
	floodZeroWindow                // streams closed because their window stayed shut
	floods
)

var floodNames = [floods]string{
	"rapid_reset", "made_you_reset", "ping", "settings", "window_update", "priority", "empty_data", "continuation", "header_list", "streams", "unknown_frame", "zero_window",
}

// String returns the kind's name as metrics have it.
func (f flood) String() string { return floodNames[f] }

// A budget is what is left of each kind, in what one costs.
type budget struct {
	left [floods]uint16
	at   int64 // when they were filled up last, on the loop's clock; 0: never
}

// Of each kind a client may send budgetMost at once and budgetRate a second.
const (
	budgetMost = 500
	budgetRate = 50
)

// refill adds what the time since the last call has earned.
func (b *budget) refill(now int64) {
	if b.at == 0 {
		b.at = now
		for f := range floods {
			b.left[f] = budgetMost
		}
		return
	}
	earned := (now - b.at) / (1e9 / budgetRate)
	if earned == 0 {
		return
	}
	b.at += earned * (1e9 / budgetRate)
	for f := range floods {
		b.left[f] = uint16(min(int64(b.left[f])+min(earned, budgetMost), budgetMost))
	}
}

// spend takes one of f and reports whether there was one.
func (b *budget) spend(f flood) bool {
	if b.left[f] == 0 {
		return false
	}
	b.left[f]--
	return true
}

// earn returns one of the kinds that go with requests, for one that was answered.
func (b *budget) earn() {
	for _, f := range [...]flood{floodReset, floodMadeReset, floodPriority} {
		b.left[f] = min(b.left[f]+1, budgetMost)
	}
}

// Each piece of a body accounts for allowanceEach frames, see writer.moved.
const (
	allowanceEach = 4
	allowanceMost = 10_000
)

// tolerateMoved is tolerate for what bodies that move account for.
func (h *conn) tolerateMoved(f flood) bool {
	return h.excused() || h.tolerate(f)
}

// tolerate takes one of f from the connection's budget. Without one it ends the connection
// and returns false.
func (h *conn) tolerate(f flood) bool {
	if h.budget == nil {
		h.budget = &budget{}
	}
	h.budget.refill(h.sock.Loop().Now())
	if h.budget.spend(f) {
		return true
	}
	h.loopState.counters.floods[f].Add(1)
	h.fail(EnhanceYourCalm, "too much of "+f.String())
	return false
}

// A Flood is a kind of which clients may send only so much. Those here are HTTP/3's as well.
type Flood = flood

// Floods of HTTP/3.
const (
	FloodReset     = floodReset
	FloodMadeReset = floodMadeReset
	FloodEmpty     = floodEmpty
	FloodHeaders   = floodHeaders
	FloodUnknown   = floodUnknown
	FloodPriority  = floodPriority
	Floods         = int(floods)
)

// A Budget is what a connection may still send of each kind. The zero value is a full one.
// One goroutine at a time may call its methods.
type Budget struct{ left budget }

// Spend takes one of f at a time, in nanoseconds above 0, and reports whether there was one.
func (b *Budget) Spend(f Flood, now int64) bool {
	b.left.refill(now)
	return b.left.spend(f)
}

// Earn returns one of the kinds that go with requests, for one that was answered.
func (b *Budget) Earn() { b.left.earn() }
