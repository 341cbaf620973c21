package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// SplitConfig divides the requests of a route among clusters.
type SplitConfig struct {
	// Name is how routes name the split. It must not be empty, nor a cluster's.
	Name string `json:"name"`
	// Arms are the clusters, by weight. With a canary there are two: first the
	// baseline, then the canary. At least one.
	Arms []ArmConfig `json:"arms"`
	// Sticky keeps who has the same key on one arm: "header:X", "cookie:name" or
	// "address". Empty: each request is assigned on its own. A client without the
	// cookie gets one; a request without the header is assigned on its own.
	Sticky string `json:"sticky"`
	// Rules send requests to a cluster before any share is looked at; the first
	// that matches counts. What they send is not in the canary's sample.
	Rules []RuleConfig `json:"rules"`
	// Mirror sends copies elsewhere, whose replies are discarded.
	Mirror MirrorConfig `json:"mirror"`
	// Canary moves the weights by itself; without steps it does not.
	Canary CanaryConfig `json:"canary"`
}

// ArmConfig is one side of a split.
type ArmConfig struct {
	// Cluster is its name.
	Cluster string `json:"cluster"`
	// Weight is relative to the other arms'. 0 gets nothing; a canary's weights
	// come from its steps.
	Weight float64 `json:"weight"`
}

// RuleConfig matches a header or a cookie.
type RuleConfig struct {
	// Header is the name of the header looked at. Empty: see cookie.
	Header string `json:"header"`
	// Cookie is the name of the cookie looked at instead.
	Cookie string `json:"cookie" secret:"false"`
	// Value is what it must be. Empty: it must be there.
	Value string `json:"value"`
	// Prefix makes value what it must start with. False: the whole.
	Prefix bool `json:"prefix"`
	// Cluster is where such requests go.
	Cluster string `json:"cluster"`
}

// MirrorConfig is copying.
type MirrorConfig struct {
	// Cluster gets the copies. Empty: there are none.
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
	// LatencyTolerance is how much slower a canary may be, as a share of the
	// baseline's latency. 0 means 0.05.
	LatencyTolerance float64 `json:"latency_tolerance"`
	// ErrorTolerance is how many errors more per request a canary may make before
	// a significant difference counts. 0 means 0.002.
	ErrorTolerance float64 `json:"error_tolerance"`
}

// WithDefaults returns c with zeros replaced by what they mean.
func (c SplitConfig) WithDefaults() SplitConfig {
	if c.Mirror.Cluster != "" {
		c.Mirror.Share = cmp.Or(c.Mirror.Share, 1)
	}
	c.Canary = c.Canary.withDefaults()
	return c
}

// Validate returns all that is wrong with c, joined.
func (c SplitConfig) Validate() error {
	p := &problems{where: "split " + strconv.Quote(c.Name)}
	p.check(c.Name != "", "no name; routes name it by one")
	p.check(len(c.Arms) > 0, "no arms; write at least one cluster")
	seen := map[string]bool{}
	total := 0.0
	for _, a := range c.Arms {
		p.check(a.Cluster != "", "arms: one names no cluster")
		p.check(!seen[a.Cluster], "arms: %s is listed twice", a.Cluster)
		seen[a.Cluster] = true
		p.check(a.Weight >= 0 && a.Weight <= 1e6, "arms: %s: weight %v; write 0 to 1000000", a.Cluster, a.Weight)
		total += a.Weight
	}
	p.check(total > 0 || len(c.Canary.Steps) > 0 || len(c.Arms) == 0, "arms: no weight is above 0")
	if k, err := parseKeySource(c.Sticky); err != nil {
		p.add("sticky: %v", err)
	} else {
		p.check(k.Kind != KeyPath, "sticky: a path is no client; write header:X, cookie:name or address")
	}
	for i, r := range c.Rules {
		p.check((r.Header == "") != (r.Cookie == ""), "rules: number %d: write either header or cookie", i+1)
		p.check(isToken(r.Header+r.Cookie), "rules: number %d: %q is not a name", i+1, r.Header+r.Cookie)
		p.check(r.Cluster != "", "rules: number %d names no cluster", i+1)
		p.check(!r.Prefix || r.Value != "", "rules: number %d: prefix without a value", i+1)
	}
	p.share("mirror.share", c.Mirror.Share)
	p.check(c.Mirror.Cluster != "" || c.Mirror.Share == 0, "mirror: a share but no cluster")
	c.Canary.validate(p, len(c.Arms))
	return errors.Join(p.errs...)
}

// clusters are the names that c refers to.
func (c SplitConfig) clusters() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, a := range c.Arms {
			if !yield(a.Cluster) {
				return
			}
		}
		for _, r := range c.Rules {
			if !yield(r.Cluster) {
				return
			}
		}
		if c.Mirror.Cluster != "" {
			yield(c.Mirror.Cluster)
		}
	}
}

// A Split divides requests among clusters. It stays the same through reloads that
// do not change its configuration; a changed one is another Split, which takes the
// canary's state over if arms and canary are the same.
type Split struct {
	// Fixed.
	config SplitConfig
	sticky KeySource
	salt   uint64
	arms   []arm
	rules  []rule
	mirror *Cluster
	canary *canary // nil: none

	// Any goroutine.
	weights  *atomic.Pointer[[]float64]
	chosen   []atomic.Uint64 // by arm
	ruled    atomic.Uint64
	mirrored atomic.Uint64
}

type arm struct {
	cluster *Cluster
	hash    uint64
}

type rule struct {
	RuleConfig
	to *Cluster
}

// newSplit makes the split of a valid cfg, or returns old if nothing is different.
func newSplit(cfg SplitConfig, clusters map[string]*Cluster, old *Split, now int64) *Split {
	cfg = cfg.WithDefaults()
	s := &Split{config: cfg, salt: HashString("split " + cfg.Name), mirror: clusters[cfg.Mirror.Cluster], chosen: make([]atomic.Uint64, len(cfg.Arms))}
	s.sticky, _ = parseKeySource(cfg.Sticky) // validated
	weights := make([]float64, len(cfg.Arms))
	for i, a := range cfg.Arms {
		s.arms = append(s.arms, arm{clusters[a.Cluster], HashString(a.Cluster)})
		weights[i] = a.Weight
	}
	for _, r := range cfg.Rules {
		s.rules = append(s.rules, rule{r, clusters[r.Cluster]})
	}
	if old != nil && old.same(s) {
		return old
	}
	if len(cfg.Canary.Steps) > 0 {
		if old != nil && old.canary != nil && reflect.DeepEqual(old.config.Canary, cfg.Canary) && reflect.DeepEqual(old.config.Arms, cfg.Arms) {
			s.canary, s.weights = old.canary, old.weights
			return s
		}
		s.canary = newCanary(cfg.Name, cfg.Canary, now)
		weights = s.canary.weights()
	}
	s.weights = &atomic.Pointer[[]float64]{}
	s.weights.Store(&weights)
	return s
}

// same reports whether t would do what s does, to the same clusters.
func (s *Split) same(t *Split) bool {
	if !reflect.DeepEqual(s.config, t.config) || s.mirror != t.mirror {
		return false
	}
	for i := range s.arms {
		if s.arms[i] != t.arms[i] {
			return false
		}
	}
	for i := range s.rules {
		if s.rules[i].to != t.rules[i].to {
			return false
		}
	}
	return true
}

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

// Choose assigns r. random is any 64 random bits, the request's own. A key's arm is
// the same on every node and after every restart. Raising one arm's weight moves
// clients to that arm and none between the others.
//
// Any goroutine may call it. It allocates nothing.
func (s *Split) Choose(r Request, random uint64) Choice {
	c := Choice{Split: s}
	if s.mirror != nil && unit(mix(random^mirrorSalt)) < s.config.Mirror.Share {
		c.Mirror = s.mirror
		s.mirrored.Add(1)
	}
	for i := range s.rules {
		if s.rules[i].matches(r) {
			s.ruled.Add(1)
			c.Cluster, c.Split = s.rules[i].to, nil
			return c
		}
	}
	key, ok := s.sticky.Of(r)
	if !ok {
		key = random
		if s.sticky.Kind == KeyCookie {
			var text [cookieLen]byte
			c.SetCookie, c.Fresh = true, random
			key = HashBytes(AppendCookie(text[:0], random))
		}
	}
	c.Arm = s.assign(key)
	c.Cluster = s.arms[c.Arm].cluster
	s.chosen[c.Arm].Add(1)
	return c
}

const mirrorSalt = 0x6d6972726f72 // "mirror": the copy is chosen apart from the arm

// assign is weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted
// Distributed Hash Tables", 2005): every arm draws an exponential time at the rate
// of its weight from the key, and the first to ring has it. So an arm is chosen in
// proportion to its weight, and a change of one weight changes one arm's draws.
func (s *Split) assign(key uint64) int {
	weights := *s.weights.Load()
	best, least := 0, math.Inf(1)
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		u := unit(mix(key ^ s.salt ^ s.arms[i].hash))
		if t := -math.Log1p(-u) / w; t < least {
			best, least = i, t
		}
	}
	return best
}

func (r *rule) matches(q Request) bool {
	var v []byte
	if r.Header != "" {
		v = q.Header(r.Header)
	} else {
		v = q.Cookie(r.Cookie)
	}
	switch {
	case v == nil:
		return false
	case r.Value == "":
		return true
	case r.Prefix:
		return len(v) >= len(r.Value) && string(v[:len(r.Value)]) == r.Value
	}
	return string(bytes.TrimSpace(v)) == r.Value
}

// CookieName is the sticky cookie's name, or empty.
func (s *Split) CookieName() string {
	if s.sticky.Kind != KeyCookie {
		return ""
	}
	return s.sticky.Name
}

// cookieLen is the length of a cookie's value.
const cookieLen = 16

// AppendCookie appends the cookie value of fresh to b.
func AppendCookie(b []byte, fresh uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[fresh>>shift&15])
	}
	return b
}

// observe adds o to the canary's sample.
func (s *Split) observe(o Outcome) {
	if s.canary != nil {
		s.canary.observe(o.Arm, o)
	}
}

// moveWeights takes over the canary's shares. The state is read within the lock
// that orders its changes, so the newest is stored last.
func (s *Split) moveWeights() {
	s.canary.mu.Lock()
	defer s.canary.mu.Unlock()
	weights := []float64{1 - s.canary.st.Share, s.canary.st.Share}
	s.weights.Store(&weights)
}

// evaluate looks at the canary and moves the weights. Only Run's goroutine and
// tests call it.
func (s *Split) evaluate(now int64, log *slog.Logger) {
	if s.canary == nil || !s.canary.evaluate(now) {
		return
	}
	s.moveWeights()
	st := s.canary.state()
	level := slog.LevelInfo
	if st.State == CanaryRolledBack {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "canary "+st.State, "split", s.config.Name, "share", st.Share, "reason", st.Reason)
}
