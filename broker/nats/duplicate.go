package nats

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// messageID is what the stream finds duplicates by: two publications have the same if
// publisher, channel and idempotency key are.
func messageID(p *hub.Publication) string {
	id := p.KeyID()
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// compare answers the publish called id, whose idempotency key the message at seq has:
// the stream does not look at what duplicates contain. It reports false if the publish
// has no key, has one that no other publish can have, or no longer waits; otherwise the publish keeps its place in the outbox,
// and so its deadline, until the message was read.
func (o *outbox) compare(id, seq uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.waiting[id]
	if p == nil || p.p.IdempotencyKey == "" || p.named || o.closed != nil {
		return false
	}
	o.b.wg.Go(func() { // before close returns, hence before Close waits
		first, check, err := p.s.readOne(o.b.ctx, seq)
		if err != nil && p.s.bridged() && p.repeatable() {
			o.again(id, bridgeEvery) // until its deadline
			return
		}
		if p := o.pop(id); p != nil {
			p.done(p.duplicateOf(first, check, seq, err))
		}
	})
	return true
}

// duplicateOf is the answer to p when the message at seq, which has check, has its key. If
// that one is gone, and check 0, it is taken to be the same.
func (p *pending) duplicateOf(first hub.Publication, check hub.Check, seq uint64, err error) (hub.Position, error) {
	if err != nil {
		return hub.Position{}, p.failed(fmt.Errorf("%w: the message that has the idempotency key cannot be read: %w", hub.ErrUnavailable, err))
	}
	at, err := p.s.acknowledged(seq, true)
	if err != nil {
		return at, err
	}
	at.Check = check
	if check != 0 && first.ContentID() != p.p.ContentID() {
		return hub.Position{}, &hub.KeyReusedError{At: at, Channel: p.p.Channel}
	}
	return at, nil
}

// readOne returns the content and the check of the message at seq; the check is 0 if it
// was removed. Any replica may answer, but only the leader knows that there is no such
// message.
func (s *logReader) readOne(ctx context.Context, seq uint64) (p hub.Publication, check hub.Check, err error) {
	pg, err := s.b.reads.get(ctx, s.direct(), query{Seq: seq})
	if err == nil && len(pg.messages) > 0 {
		m := pg.messages[0]
		return hub.Publication{Key: m.key, Data: m.data, Attributes: s.attributes(m.attributes)}, m.check, nil
	}
	m, at, err := s.messageAt(ctx, seq)
	if err != nil || m == nil {
		return p, 0, err
	}
	data, attributes := unpack(m)
	p = hub.Publication{Key: unquote(m.Header.Get(headerKey)), Data: data, Attributes: s.attributes(attributes)}
	return p, hub.NewCheck(seq, at), nil
}

// messageAt requests from the leader the message at seq and when it was stored; nil if it was
// removed. A replica may not know either of the message or of its end.
func (s *logReader) messageAt(ctx context.Context, seq uint64) (*natsgo.Msg, time.Time, error) {
	m, _, at, err := s.leaderRead(ctx, map[string]any{"seq": seq})
	return m, at, err
}

// leaderNext requests from the leader the first message of subject after since.
func (s *logReader) leaderNext(ctx context.Context, since uint64, subject string) (st stored, ok bool, err error) {
	m, seq, at, err := s.leaderRead(ctx, map[string]any{"seq": since + 1, "next_by_subj": subject})
	if err != nil || m == nil {
		return st, false, err
	}
	st = stored{seq: seq, subject: m.Subject, time: at.UnixMilli(), check: hub.NewCheck(seq, at), key: unquote(m.Header.Get(headerKey))}
	st.data, st.attributes = unpack(m)
	if st.data == nil {
		st.data = []byte{}
	}
	return st, true, nil
}

// leaderRead requests from the leader one message, with its place and time; nil if it has none.
func (s *logReader) leaderRead(ctx context.Context, query map[string]any) (*natsgo.Msg, uint64, time.Time, error) {
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Headers []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := s.request(ctx, "STREAM.MSG.GET."+s.name(), query, &answer)
	switch {
	case isCode(err, codeNoMessage):
		return nil, 0, time.Time{}, nil
	case err != nil:
		return nil, 0, time.Time{}, err
	}
	a := &answer.Message
	m := natsgo.NewMsg(a.Subject)
	m.Data = a.Data
	if len(a.Headers) > 0 {
		if m.Header, err = natsgo.DecodeHeadersMsg(a.Headers); err != nil {
			return nil, 0, time.Time{}, fmt.Errorf("%w: headers of message %d: %w", hub.ErrUnavailable, a.Seq, err)
		}
	}
	return m, a.Seq, a.Time, nil
}
