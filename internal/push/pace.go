package push

// pace is a token bucket: rate messages a second, and as many at once as come
// in one tick of the loop's timers.
type pace struct {
	rate   int
	tokens int64 // in billionths of a message
	at     int64 // when they were counted, on the loop's clock
}

const (
	oneMessage = int64(1e9)
	paceTick   = int64(100e6) // what the loop's timers are exact to
)

// take takes one message's token at time now, if there is one.
func (p *pace) take(now int64) bool {
	burst := max(oneMessage, int64(p.rate)*paceTick)
	p.tokens = min(burst, p.tokens+min(now-p.at, int64(1e9))*int64(p.rate))
	p.at = now
	if p.tokens < oneMessage {
		return false
	}
	p.tokens -= oneMessage
	return true
}

// wait is how long it takes until there is a token again.
func (p *pace) wait() int64 { return max((oneMessage-p.tokens)/int64(p.rate), 1) }

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
