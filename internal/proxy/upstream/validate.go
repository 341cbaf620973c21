package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

const (
	maxWeight = 1000
	maxWindow = hub.Duration(30 * time.Second)
	maxProbes = 100
)

// problems gathers what is wrong with one section.
type problems struct {
	where string
	errs  []error
}

func (p *problems) add(format string, a ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s", p.where, fmt.Sprintf(format, a...)))
}

func (p *problems) check(ok bool, format string, a ...any) {
	if !ok {
		p.add(format, a...)
	}
}

func (p *problems) durations(named ...any) {
	for i := 0; i < len(named); i += 2 {
		d := named[i+1].(hub.Duration)
		p.check(d >= 0, "%s: %s is below 0", named[i], d)
	}
}

// share checks a number that is a part of one.
func (p *problems) share(name string, v float64) {
	p.check(v >= 0 && v <= 1, "%s: %v is not a share; write a number from 0 to 1", name, v)
}

// Validate returns all that is wrong with c, joined. It resolves no name.
func (c Config) Validate() error {
	d := c.WithDefaults()
	p := &problems{where: "cluster " + strconv.Quote(c.Name)}
	p.check(c.Name != "", "no name; routes name it by one")
	d.validatePeers(p)
	d.validateTLS(p)
	p.check(slices.Contains([]string{RoundRobin, LeastConnections, EWMA, ConsistentHash}, d.Balance),
		"balance: %q is none of round_robin, least_connections, ewma, consistent_hash", d.Balance)
	p.check(slices.Contains([]string{HTTP1, HTTP2, AutoProtocol}, d.Protocol), "protocol: %q is none of http1, http2, auto", d.Protocol)
	if _, err := parseKeySource(d.HashKey); err != nil {
		p.add("hash_key: %v", err)
	}
	p.check(d.HashLoad == 0 || d.HashLoad >= 1 && d.HashLoad <= 1000, "hash_load: %v; write 0 for no bound, or 1 or more, like 1.25", d.HashLoad)
	p.check(d.ProxyProtocol >= 0 && d.ProxyProtocol <= 2, "proxy_protocol: %d; write 1 or 2, or 0 for none", d.ProxyProtocol)
	p.durations("ewma_decay", d.EWMADecay, "slow_start", d.SlowStart,
		"timeouts.connect", d.Timeouts.Connect, "timeouts.write", d.Timeouts.Write, "timeouts.first_byte", d.Timeouts.FirstByte,
		"timeouts.idle", d.Timeouts.Idle, "timeouts.total", d.Timeouts.Total,
		"pool.idle_timeout", d.Pool.IdleTimeout, "pool.pending_timeout", d.Pool.PendingTimeout, "pool.leak_after", d.Pool.LeakAfter,
		"dns.interval", d.DNS.Interval, "dns.timeout", d.DNS.Timeout)
	d.Health.validate(p)
	d.validatePassive(p)
	d.Retry.validate(p)
	p.durations("hedge.after", d.Hedge.After)
	p.check(d.Hedge.Percentile >= 0 && d.Hedge.Percentile < 100, "hedge.percentile: %v; write a number from 0 to below 100, like 95", d.Hedge.Percentile)
	p.share("hedge.max_share", d.Hedge.MaxShare)
	p.check(d.Pool.MaxPerPeer >= 1, "pool.max_per_peer: %d; write 1 or more", d.Pool.MaxPerPeer)
	p.check(d.Pool.MaxInFlight >= 0, "pool.max_in_flight: %d; write 1 or more, or 0 for no bound", d.Pool.MaxInFlight)
	p.check(d.Pool.MaxRequests >= 0, "pool.max_requests: %d; write 1 or more, or 0 for no bound", d.Pool.MaxRequests)
	p.check(d.Pool.MaxIdle >= -1, "pool.max_idle: %d; write 1 or more, or -1 for none", d.Pool.MaxIdle)
	p.check(d.Pool.MaxPending >= -1, "pool.max_pending: %d; write 1 or more, or -1 for none", d.Pool.MaxPending)
	p.check(slices.Contains([]string{"auto", "ipv4", "ipv6", "all"}, d.DNS.Family), "dns.family: %q is none of auto, ipv4, ipv6, all", d.DNS.Family)
	if _, err := netip.ParseAddrPort(d.DNS.Server); d.DNS.Server != "" && err != nil {
		p.add("dns.server: %.100q; write an address and a port, like 10.0.0.2:53", d.DNS.Server)
	}
	p.check(d.DNS.Interval >= hub.Duration(time.Second) || d.DNS.Interval < 0, "dns.interval: %s; write 1s or more", d.DNS.Interval)
	return errors.Join(p.errs...)
}

func (c Config) validatePeers(p *problems) {
	p.check(len(c.Peers) > 0 || c.SRV != "", "no peers; write at least one address, or srv")
	p.check(len(c.Peers) == 0 || c.SRV == "", "srv: there are peers, too; write one of the two")
	if c.SRV != "" {
		if err := checkHost(c.SRV); err != nil {
			p.add("srv: %.300q: %v; write a name like _http._tcp.example.internal", c.SRV, err)
		}
	}
	seen := map[string]bool{}
	for _, peer := range c.Peers {
		t, err := parseTarget(peer.Address)
		if err != nil {
			p.add("peers: %v", err)
			continue
		}
		id := t.addr.String()
		if t.host != "" {
			id = t.host + ":" + strconv.Itoa(int(t.port))
		}
		if t.tls || c.TLS.Enabled {
			id = "https://" + id
		}
		p.check(!seen[id], "peers: %s is listed twice; set its weight instead", peer.Address)
		seen[id] = true
		p.check(peer.Weight >= 1 && peer.Weight <= maxWeight, "peers: %s: weight %d; write 1 to %d, or drain: true for none", peer.Address, peer.Weight, maxWeight)
	}
}

func (h HealthConfig) validate(p *problems) {
	p.check(slices.Contains([]string{CheckNone, CheckHTTP, CheckTCP, CheckGRPC}, h.Check), "health.check: %q is none of none, http, tcp, grpc", h.Check)
	p.check(strings.HasPrefix(h.Path, "/") && !strings.ContainsAny(h.Path, " \r\n\x00"), "health.path: %q; write a path like /healthz", h.Path)
	p.check(h.Service == "" || h.Check == CheckGRPC, "health.service: is for check: grpc")
	p.check(!strings.ContainsAny(h.Host, " /\r\n\x00"), "health.host: %q is not a host", h.Host)
	p.durations("health.interval", h.Interval, "health.timeout", h.Timeout)
	p.check(h.Interval >= hub.Duration(10*time.Millisecond) || h.Interval < 0, "health.interval: %s; write 10ms or more", h.Interval)
	p.check(h.Healthy >= 1, "health.healthy: %d; write 1 or more", h.Healthy)
	p.check(h.Unhealthy >= 1, "health.unhealthy: %d; write 1 or more", h.Unhealthy)
	if _, err := parseStatusRanges(h.Status); err != nil {
		p.add("health.status: %v", err)
	}
	p.check(h.PanicBelow == -1 || h.PanicBelow >= 0 && h.PanicBelow <= 1, "health.panic_below: %v is not a share; write 0 to 1, or -1 for never", h.PanicBelow)
}

func (c Config) validatePassive(p *problems) {
	o, b := c.Outlier, c.Breaker
	p.check(o.Consecutive5xx >= 1, "outlier.consecutive_5xx: %d; write 1 or more", o.Consecutive5xx)
	p.check(o.ConsecutiveConnect >= 1, "outlier.consecutive_connect: %d; write 1 or more", o.ConsecutiveConnect)
	p.check(o.MinRequests >= 1, "outlier.min_requests: %d; write 1 or more", o.MinRequests)
	p.share("outlier.error_rate", o.ErrorRate)
	p.share("outlier.max_ejected", o.MaxEjected)
	window := func(name string, d hub.Duration) {
		p.check(d >= hub.Duration(time.Second) && d <= maxWindow, "%s: %s; write 1s to %s", name, d, maxWindow)
	}
	window("outlier.window", o.Window)
	p.durations("outlier.base_ejection", o.BaseEjection, "outlier.max_ejection", o.MaxEjection, "breaker.open_time", b.OpenTime)
	p.check(o.MaxEjection >= o.BaseEjection, "outlier.max_ejection: %s is below base_ejection (%s)", o.MaxEjection, o.BaseEjection)
	p.share("breaker.failure_ratio", b.FailureRatio)
	p.check(b.MinRequests >= 1, "breaker.min_requests: %d; write 1 or more", b.MinRequests)
	window("breaker.window", b.Window)
	p.check(b.Probes >= 1 && b.Probes <= maxProbes, "breaker.probes: %d; write 1 to %d", b.Probes, maxProbes)
}

func (r RetryConfig) validate(p *problems) {
	p.check(r.Attempts >= 1, "retry.attempts: %d; write 1 or more", r.Attempts)
	p.check(r.Budget >= 0 && r.Budget <= 10, "retry.budget: %v; write how many retries per request, like 0.2", r.Budget)
	p.check(r.MinPerSecond >= 0, "retry.min_per_second: %d is below 0", r.MinPerSecond)
	if _, err := parseRetryOn(r.On); err != nil {
		p.add("retry.on: %v", err)
	}
}

// statusRanges are inclusive, in any order.
type statusRanges [][2]int

func (s statusRanges) has(code int) bool {
	for _, r := range s {
		if r[0] <= code && code <= r[1] {
			return true
		}
	}
	return false
}

// parseStatusRanges reads "200-299,401".
func parseStatusRanges(text string) (statusRanges, error) {
	var all statusRanges
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.Atoi(lo)
		b, errB := strconv.Atoi(hi)
		if errA != nil || errB != nil || a < 100 || b > 599 || a > b {
			return nil, fmt.Errorf("%q is not a status; write codes and ranges from 100 to 599, like 200-299,401", part)
		}
		all = append(all, [2]int{a, b})
	}
	return all, nil
}

// RecoveryBound is the longest that a peer which works again can stay without
// requests under steady traffic, whatever of checks, ejection and breaker had
// taken it out: each runs beside the others, and the breaker's probes come last.
func (c Config) RecoveryBound() time.Duration {
	d := c.WithDefaults()
	var active, ejected, open hub.Duration
	if h := d.Health; h.Check != CheckNone {
		// One check of the bad time may just have started.
		active = h.Timeout + hub.Duration(h.Healthy)*(h.Interval+h.Interval/10)
	}
	if d.Outlier.Enabled.On() {
		ejected = d.Outlier.MaxEjection
	}
	if d.Breaker.Enabled.On() {
		open = d.Breaker.OpenTime
	}
	stale := hub.Duration(0)
	if d.Balance == EWMA {
		stale = d.EWMADecay
	}
	return time.Duration(max(active, ejected, open, stale))
}
