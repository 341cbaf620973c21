package loadgen

import (
	"encoding/json"
	"net/url"
)

// A payloadMaker makes payloads in one buffer.
type payloadMaker struct {
	stamp stamp
	buf   []byte
}

func (m *payloadMaker) make() []byte {
	m.stamp.put(m.buf)
	return m.buf
}

// A prepared request is what publishes on a channel have in common: what is
// before and after the payload.
type prepared struct{ before, after []byte }

// maxPrepared bounds the channels that a shard keeps requests of.
const maxPrepared = 1024

// publishes makes the publishes of a shard.
type publishes struct {
	g        *Generator
	mine     payloadMaker
	turn     int // of channels
	requests map[int]*prepared
	scratch  []byte
}

// nextFlow gives a publish its channel and number.
func (p *publishes) nextFlow(publisher int, ex *exchange) {
	f := p.g.flows
	channel := p.turn
	if p.turn++; p.turn == f.channels {
		p.turn = 0
	}
	ex.flow = int32(f.index(publisher, channel))
	ex.seq = f.last[ex.flow].Add(1)
}

// payload is what a publish carries.
func (p *publishes) payload(publisher int, ex *exchange) []byte {
	g := p.g
	p.mine.stamp = stamp{
		run: g.run, publisher: uint32(publisher), channel: uint32(int(ex.flow)/g.flows.publishers + g.spec.FirstChannel), seq: ex.seq,
		intended: g.wall(ex.intended), late: uint32(min((ex.sent-ex.intended)/1000, 1<<32-1)),
	}
	return p.mine.make()
}

// request is the whole request of a publish, valid until the next one.
func (p *publishes) request(publisher int, ex *exchange) []byte {
	p.nextFlow(publisher, ex)
	channel := int(ex.flow) / p.g.flows.publishers
	r := p.requests[channel]
	if r == nil {
		r = p.g.preparePublish(channel)
		if len(p.requests) < maxPrepared {
			p.requests[channel] = r
		}
	}
	b := append(p.scratch[:0], r.before...)
	b = append(b, p.payload(publisher, ex)...)
	p.scratch = append(b, r.after...)
	return p.scratch
}

// preparePublish makes the request for a channel. Payloads are of one size and of
// letters that no format quotes, so all else is fixed.
func (g *traffic) preparePublish(channel int) *prepared {
	before, after, contentType := "", "", ""
	name := g.channelName(channel)
	switch g.adapter.name {
	case "weir", "centrifuge":
		quoted, _ := json.Marshal(name) // a string always can be
		before, after, contentType = `{"channel":`+string(quoted)+`,"data":"`, `"}`, "application/json"
	case "mercure":
		before, contentType = "topic="+url.QueryEscape(name)+"&data=", "application/x-www-form-urlencoded"
	default:
		contentType = "text/plain"
	}
	path := fill(g.publish.path, 0, g.channelDigits(channel))
	hole := make([]byte, g.spec.Payload)
	whole := g.appendRequest(nil, "POST", path, g.publish.host, contentType, before+string(hole)+after)
	cut := len(whole) - len(after) - len(hole)
	return &prepared{before: whole[:cut], after: whole[cut+len(hole):]}
}

// acknowledged counts a publish that the server took.
func (s *shard) acknowledged(ex exchange) {
	if ex.intended < s.since {
		return
	}
	f := s.g.flows
	s.rec.delivery.Published++
	if n := f.standing[int(ex.flow)/f.publishers].Load(); n > 0 {
		s.rec.delivery.Expected += uint64(n)
	}
}
