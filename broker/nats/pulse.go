package nats

import (
	"context"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// A pulse finds out whether the NATS server that the node is connected to still
// reaches the rest of its cluster. One that was cut off from it serves its clients as
// before: they get nothing, and no error. The node then connects to another server.
// Only an external cluster has others.
//
// Each node publishes a heartbeat and listens to those of the others, and requests an
// answer from the leaders of the log and of JetStream.
type pulse struct {
	// Fixed.
	b       *Broker
	subject string
	s       *stream // a replicated one

	// Owned by run.
	left   time.Time // when a server was left before
	fresh  time.Time // when there was no connection last, or the node was held up
	inVain uint      // servers left since a leader answered
	tried  bool      // that was because of publishes, and none was answered since

	mu       sync.Mutex
	peers    map[string]time.Time // when each last sent, those of the last forgetPeer
	answered time.Time            // when a leader answered
	// elsewhere is when a heartbeat came from a node that is connected to another server.
	elsewhere time.Time
	sent      []time.Time // when heartbeats were sent that have not come back
	// slow is how late heartbeats come back and timers fire: the worst, less of it with
	// each heartbeat. A machine that is only busy has it too.
	slow time.Duration
}

const (
	pulseEvery = 500 * time.Millisecond
	// pulseSilence is how long there may be silence from the other nodes, or from both
	// leaders, before the server counts as cut off.
	pulseSilence = 1500 * time.Millisecond
	// pulsePublish is how long a publish may be without an answer before it does.
	pulsePublish = 2500 * time.Millisecond
	// pulseSlow is how much longer it waits for each unit of slow, up to pulseSlowest.
	pulseSlow    = 10
	pulseSlowest = 8 * time.Second
	// pulseLeave is how long a server is kept at least, twice as long after each that
	// was left in vain, up to maxInVain times.
	pulseLeave = 3 * time.Second
	maxInVain  = 3
	// pulseElection is how long publishes and leaders may be without an answer while nodes
	// send that are connected to other servers: then there is an election, and to
	// leave the server would not help, unless both are on the smaller side of a partition.
	pulseElection = 10 * time.Second
	forgetPeer    = 10 * time.Second
	maxPeers      = 1024
	maxSent       = 64
)

// newPulse returns nil if there is nothing to find out.
func newPulse(b *Broker) *pulse {
	if b.server != nil {
		return nil
	}
	for _, s := range b.all() {
		if s.durable() && s.opts.Load().Replicas > 1 {
			return &pulse{b: b, s: s, subject: b.cfg.Prefix + ".pulse" + b.cfg.Sites.suffix(), peers: map[string]time.Time{}, answered: time.Now()}
		}
	}
	return nil
}

// headerServer is the server that the node of a heartbeat is connected to.
const headerServer = "Weir-Server"

func (p *pulse) listen() error {
	_, err := p.b.nc.Subscribe(p.subject, p.onHeartbeat)
	return err
}

// onHeartbeat notes a heartbeat. One with data is a node's last.
func (p *pulse) onHeartbeat(m *natsgo.Msg) {
	node := m.Header.Get(headerFrom)
	p.mu.Lock()
	defer p.mu.Unlock()
	if node == p.b.bus.node {
		if len(p.sent) > 0 {
			p.slow = max(p.slow, time.Since(p.sent[0]))
			p.sent = p.sent[1:]
		}
		return
	}
	if at := m.Header.Get(headerServer); at != "" && at != p.b.nc.ConnectedServerId() {
		p.elsewhere = time.Now()
	}
	if len(m.Data) > 0 {
		delete(p.peers, node)
	} else if len(p.peers) < maxPeers {
		p.peers[node] = time.Now()
	}
}

// sendHeartbeat publishes a heartbeat.
func (p *pulse) sendHeartbeat(last bool) {
	m := &natsgo.Msg{Subject: p.subject, Header: natsgo.Header{headerFrom: {p.b.bus.node}, headerServer: {p.b.nc.ConnectedServerId()}}}
	if last {
		m.Data = []byte("over")
	}
	p.mu.Lock()
	p.slow = p.slow * 9 / 10
	if len(p.sent) < maxSent {
		p.sent = append(p.sent, time.Now())
	}
	p.mu.Unlock()
	_ = p.b.nc.PublishMsg(m) // without a connection there is no heartbeat
}

// run is the pulse's goroutine.
func (p *pulse) run() {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	defer p.b.nc.FlushTimeout(pulseEvery) //nolint:errcheck // without a connection there is no server to say it to
	defer p.sendHeartbeat(true)
	for last := time.Now(); ; {
		select {
		case <-p.b.ctx.Done():
			return
		case <-t.C:
		}
		// Who was held up itself, by a busy machine or a suspension, cannot blame a server.
		now := time.Now()
		late := now.Sub(last) - pulseEvery
		heldUp := late > pulseSilence-pulseEvery
		last = now
		p.isLate(late)
		if heldUp || !p.b.connected.Load() || !p.b.nc.IsConnected() {
			p.fresh = now
			p.forgetSent()
			continue
		}
		p.sendHeartbeat(false)
		p.probe()
		if why := p.lost(time.Now()); why != "" && len(p.b.nc.Servers()) > 1 {
			p.left = time.Now()
			p.inVain = min(p.inVain+1, maxInVain)
			p.b.serversLeft.Add(1)
			p.b.log.Warn("the NATS server seems to be cut off from its cluster; connecting to another",
				"url", p.b.nc.ConnectedUrlRedacted(), "reason", why)
			p.b.leave()
		}
	}
}

// isLate notes how late run is.
func (p *pulse) isLate(late time.Duration) {
	p.mu.Lock()
	p.slow = max(p.slow, late)
	p.mu.Unlock()
}

// forgetSent takes the heartbeats as lost that have not come back.
func (p *pulse) forgetSent() {
	p.mu.Lock()
	p.sent = p.sent[:0]
	p.mu.Unlock()
}

// probe sends to both leaders. It waits until one has answered or the next heartbeat is due.
func (p *pulse) probe() {
	ctx, cancel := context.WithTimeout(p.b.ctx, pulseEvery)
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range []*natsgo.Msg{p.s.fenceMessage(), {Subject: "$JS.API.INFO"}} {
		wg.Go(func() {
			if _, err := p.b.nc.RequestMsgWithContext(ctx, m); err == nil {
				p.mu.Lock()
				p.answered = time.Now()
				p.mu.Unlock()
				cancel()
			}
		})
	}
	wg.Wait()
}

// lost returns why the server counts as cut off, or "".
func (p *pulse) lost(now time.Time) string {
	waits := p.b.out.oldestByLog(now)
	if p.b.cfg.Sites.enabled() {
		waits = 0 // another site may lead, which no server here can do anything about
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	more := min(pulseSlow*p.slow, pulseSlowest)
	leaders, publishes := pulseSilence+more, pulsePublish+more
	if now.Sub(p.elsewhere) < pulseSilence+more {
		leaders, publishes = max(leaders, pulseElection), max(publishes, pulseElection)
	}
	if waits < publishes {
		p.tried = false
	}
	if p.answered.After(p.left) {
		p.inVain = 0
	}
	newest := time.Time{}
	for node, at := range p.peers {
		if now.Sub(at) > forgetPeer {
			delete(p.peers, node)
		} else if at.After(newest) {
			newest = at
		}
	}
	switch {
	case now.Sub(p.left) < max(pulseLeave<<max(p.inVain, 1)>>1, more), now.Sub(p.fresh) < pulseSilence+more:
		return ""
	case now.Sub(p.answered) > leaders:
		return "no leader answers"
	case p.doubts(now, pulseSilence+more):
		return "its log ends before messages that were seen"
	case len(p.peers) > 0 && now.Sub(newest) > pulseSilence+more:
		return "the other nodes are silent"
	case waits >= publishes && !p.tried:
		p.tried = true
		return "publishes are not answered"
	}
	return ""
}

// doubts reports whether some log seems to end too early for longer than a new leader
// needs, which is patience.
func (p *pulse) doubts(now time.Time, patience time.Duration) bool {
	for _, s := range p.b.all() {
		if since := s.doubted.Load(); since != 0 && now.UnixNano()-since > int64(patience) {
			return true
		}
	}
	return false
}
