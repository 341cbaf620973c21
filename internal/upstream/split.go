package upstream

import "github.com/weir-gateway/weir/hub"

// SplitConfig divides the requests of a route among clusters.
type SplitConfig struct {
	// Name is how routes name the split. It must not be empty, nor a cluster's.
	Name string `json:"name"`
	// Arms are the clusters, by weight. With a canary the first is the baseline
	// and the second the canary. At least one.
	Arms []ArmConfig `json:"arms"`
	// Sticky keeps who has the same key on one arm: "header:X", "cookie:name" or
	// "address". Empty: each request is assigned on its own. A client without the
	// cookie gets one.
	Sticky string `json:"sticky"`
	// Rules send requests to a cluster before any share is looked at; the first
	// that matches counts. What they send is not in the canary's sample.
	Rules []RuleConfig `json:"rules"`
	// Mirror sends copies elsewhere, whose replies nobody sees.
	Mirror MirrorConfig `json:"mirror"`
	// Canary moves the weights by itself; without steps it does not.
	Canary CanaryConfig `json:"canary"`
}

// ArmConfig is one side of a split.
type ArmConfig struct {
	Cluster string  `json:"cluster"`
	Weight  float64 `json:"weight"` // relative to the other arms'; 0 gets nothing
}

// RuleConfig matches a header or a cookie.
type RuleConfig struct {
	Header  string `json:"header"`  // its name; or
	Cookie  string `json:"cookie"`  // its name
	Value   string `json:"value"`   // what it must be; empty: anything, if present
	Prefix  bool   `json:"prefix"`  // true: value is how it must begin
	Cluster string `json:"cluster"` // where such requests go
}

// MirrorConfig is copying.
type MirrorConfig struct {
	// Cluster gets the copies; empty: there are none.
	Cluster string `json:"cluster"`
	// Share of the requests copied. 0 means all.
	Share float64 `json:"share"`
}

// CanaryConfig is automatic promotion.
type CanaryConfig struct {
	// Steps are the canary's shares in percent, rising, like 5, 10, 25, 50, 100.
	// Empty: no canary.
	Steps []float64 `json:"steps"`
	// Samples is how many requests of each arm a step needs. 0 means 1000.
	Samples int `json:"samples"`
	// StepTime is how long a step lasts at least. 0 means 1m.
	StepTime hub.Duration `json:"step_time"`
	// Alpha bounds the probability of rolling back a canary that is no worse, over
	// all steps, looks and both tests. 0 means 0.05.
	Alpha float64 `json:"alpha"`
	// LatencyTolerance is how much slower a canary may be. 0 means 0.05.
	LatencyTolerance float64 `json:"latency_tolerance"`
	// ErrorTolerance is how many errors more per request a canary may make before
	// a significant difference counts. 0 means 0.002.
	ErrorTolerance float64 `json:"error_tolerance"`
}

// A Split divides requests among clusters.
type Split struct{}

// A Choice is where a request goes.
type Choice struct {
	Cluster *Cluster
	// Split and Arm belong into the Outcome. Split is nil where a rule chose.
	Split *Split
	Arm   int
	// Mirror gets a copy; nil: none.
	Mirror *Cluster
	// SetCookie: the client had no sticky cookie; give it the one named
	// Split.CookieName with the value AppendCookie(nil, Fresh).
	SetCookie bool
	Fresh     uint64
}

// Choose assigns r. random is any 64 random bits, the request's own. Raising one
// arm's weight moves clients to that arm and no others.
//
// Any goroutine may call it. It allocates nothing.
func (s *Split) Choose(r Request, random uint64) Choice { return Choice{} }

// CookieName is the sticky cookie's name, or empty.
func (s *Split) CookieName() string { return "" }

// AppendCookie appends the cookie value of fresh to b.
func AppendCookie(b []byte, fresh uint64) []byte { return b }
