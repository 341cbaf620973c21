package push

// pace is a token bucket that never lets more than rate messages go in a second:
// what may go at once is removed from what comes back, so that who has enough waiting
// gets a tenth less.
type pace struct {
	rate   int
	tokens int64 // in billionths of a message
	at     int64 // when they were counted, on the loop's clock
}

const oneMessage = int64(1e9)

// burst is how many may go at once: those of the 100 ms that the loop's timers are
// exact to, and one.
func (p *pace) burst() int64 { return int64(1 + (p.rate+5)/10) }

// refill is how many come back in a second.
func (p *pace) refill() int64 { return int64(p.rate) + 1 - p.burst() }

// allow takes one message's token at time now, if there is one.
func (p *pace) allow(now int64) bool {
	p.tokens = min(p.burst()*oneMessage, p.tokens+min(now-p.at, int64(1e9))*p.refill())
	p.at = now
	if p.tokens < oneMessage {
		return false
	}
	p.tokens -= oneMessage
	return true
}

// wait is how long it takes until there is a token again.
func (p *pace) wait() int64 {
	return max((oneMessage-p.tokens+p.refill()-1)/p.refill(), 1)
}

// rate returns the lowest maximum rate among the channels' namespaces, 0 for none.
func (p *Push) rate(channels []string) int {
	rate := 0
	for _, ch := range channels {
		if ns, err := p.hub.Namespace(ch); err == nil && ns.MaxRate > 0 && (rate == 0 || ns.MaxRate < rate) {
			rate = ns.MaxRate
		}
	}
	return rate
}
