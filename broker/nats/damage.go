package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/hub"
)

// damage compares the log with its mark, before it is used, and returns in words
// what it lost; "" for nothing. renewed is an epoch that began because of it.
func (s *stream) damage(ctx context.Context, renewed string) (string, error) {
	m, known, err := s.lastMark(ctx) // before the log, which only grows
	if err != nil {
		return "", err
	}
	in, err := s.look(ctx)
	switch {
	case isCode(err, codeStreamNotFound), err == nil && in.epoch == renewed:
		return "", nil
	case err != nil:
		return "", err
	case in.lost > in.base:
		return fmt.Sprintf("the server found messages damaged, up to %d", in.lost), nil
	}
	if s.b.marks != nil && s.b.cfg.Cluster.Name == "" { // nobody else writes it
		switch {
		case in.last == 0 && m.Last == 0:
			return "", nil
		case !known || m.Epoch != in.epoch:
			return "it has no mark", nil
		case !s.b.marks.safe(s.ns.Durability == hub.Synced):
			return "the machine ended before the files were synced", nil
		}
	}
	if !known || m.Epoch != in.epoch {
		return "", nil
	}
	return s.compareMark(ctx, in, m)
}

// compareMark is damage for a log that has mark m.
func (s *stream) compareMark(ctx context.Context, in info, m mark) (string, error) {
	c := m.Count
	// Each new message removes at most one of its channel; what else goes is at the
	// beginning, for its age, or because of new messages for the bytes.
	left := c.Messages - min(c.Messages, in.first-min(in.first, c.First))
	old := func(at int64) bool { return time.Since(time.UnixMilli(at)) >= in.config.MaxAge }
	switch {
	case in.last == c.Last && !old(c.FirstAt):
		left = c.Messages
	case left == 0 && !old(c.LastAt):
		left = min(c.Messages, 1)
	}
	switch {
	case in.last < m.Last:
		return fmt.Sprintf("it ends at %d, and had come to %d", in.last, m.Last), nil
	case in.messages < left && (!in.gone || in.last == c.Last):
		return fmt.Sprintf("%d messages are left, and should be %d at least", in.messages, left), nil
	case c.Check == 0:
		return "", nil
	}
	at, err := s.storedAt(ctx, c.Last)
	if err != nil || at.IsZero() || hub.NewCheck(c.Last, at) == c.Check {
		return "", err
	}
	return fmt.Sprintf("what it has at %d is another message", c.Last), nil
}

// count notes how many messages there are. s.mu is held.
func (s *stream) count(in info) {
	s.counted = count{
		First: in.first, Last: in.last, Messages: in.messages, Check: in.check,
		FirstAt: in.firstAt.UnixMilli(), LastAt: in.lastAt.UnixMilli(),
	}
}

// verifyRead finds out whether the server met damage while it read messages, after
// it had answered in: it leaves such a message out without a word, but counts it no
// longer. The log begins a new epoch then, and the read is void.
func (s *stream) verifyRead(ctx context.Context, in info) error {
	now, err := s.info(ctx)
	switch left := in.messages - min(in.messages, now.first-min(now.first, in.first)); {
	case err != nil:
		return err
	case now.epoch != in.epoch:
		return fmt.Errorf("%w: the log was replaced meanwhile", hub.ErrUnavailable)
	case now.lost <= in.base && (now.messages >= left || now.gone):
		return nil
	}
	s.b.log.Error("log has damaged messages; it begins a new epoch", "namespace", s.ns.Name, "last", now.last, "lost", now.lost)
	if in, err = s.newEpoch(ctx, now); err != nil {
		return err
	}
	s.adopt(in)
	return fmt.Errorf("%w: the log has damaged messages", hub.ErrUnavailable)
}

// recount counts the log for the last mark.
func (s *stream) recount() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if in, err := s.look(ctx); err == nil {
		s.seen(in)
	}
}

// External servers keep the marks of their logs themselves, in a stream beside them:
// the newest per namespace. No namespace has a name with capitals.
func (b *Broker) marksStream() string          { return b.cfg.Prefix + "_MARKS" }
func (b *Broker) markSubject(ns string) string { return b.cfg.Prefix + ".mark." + ns }

// lastMark returns the mark of the log that was written last.
func (s *stream) lastMark(ctx context.Context) (m mark, known bool, err error) {
	b := s.b
	if b.marks != nil {
		m, known = b.marks.last.Logs[s.ns.Name]
		return m, known, nil
	}
	var a struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
	}
	err = b.request(ctx, "STREAM.MSG.GET."+b.marksStream(), map[string]string{"last_by_subj": b.markSubject(s.ns.Name)}, &a)
	switch {
	case isCode(err, codeNoMessage):
		return mark{}, false, nil
	case isCode(err, codeStreamNotFound):
		return mark{}, false, s.makeMarks(ctx)
	case err != nil:
		return mark{}, false, err
	}
	return m, json.Unmarshal(a.Message.Data, &m) == nil, nil
}

func (s *stream) makeMarks(ctx context.Context) error {
	name := s.b.marksStream()
	err := s.put(ctx, "CREATE", jetstream.StreamConfig{
		Name: name, Description: "how far the logs of weir had come", Subjects: []string{s.b.markSubject("*")},
		Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, MaxConsumers: -1, MaxMsgs: -1, MaxMsgSize: -1, MaxBytes: -1,
		Replicas: s.ns.Replicas, Discard: jetstream.DiscardOld,
	})
	if isCode(err, codeNameInUse) { // another node was faster
		return nil
	}
	return err
}

// markOutside writes the marks that have changed to the external servers. It does
// not wait: the next mark follows.
func (b *Broker) markOutside(logs map[string]mark) error {
	for ns, m := range logs {
		if b.outside[ns] == m {
			continue
		}
		body, err := json.Marshal(m)
		if err == nil {
			err = b.nc.PublishMsg(&natsgo.Msg{Subject: b.markSubject(ns), Data: body})
		}
		if err != nil {
			return err
		}
		b.outside[ns] = m
	}
	return nil
}

// note compares a page, read from since to end, with what was said to be left.
func (r *reader) note(since, end uint64, messages int, pending uint64) {
	if r.s.ns.Replicas > 1 {
		return // each answer may be of another replica, which has come less far
	}
	if since != r.end {
		r.begin, r.got = since, 0
	} else if uint64(messages)+pending < r.left {
		r.skipped = true
	}
	r.end, r.left = end, pending
	r.got += uint64(messages)
}

// holed reports whether the server left out messages that it counts, since it had
// answered in: their bytes on the disk are not those that were written. On a channel
// that is published to all the time it compares a few times.
func (r *reader) holed(ctx context.Context, in info) (bool, error) {
	if r.left == 0 || r.skipped {
		return r.skipped, nil
	}
	left, err := r.count(ctx, r.end)
	if err != nil || left < r.left {
		return true, err
	}
	now, err := r.s.info(ctx)
	if err != nil || now.last == in.last {
		return false, err
	}
	for range 5 {
		all, err := r.count(ctx, r.begin)
		if err != nil {
			return false, err
		}
		if left, err = r.count(ctx, r.end); err != nil || all > left+r.got {
			return true, err
		}
	}
	return false, nil
}

// count returns how many messages the server counts after since.
func (r *reader) count(ctx context.Context, since uint64) (uint64, error) {
	p, err := r.s.b.reads.get(ctx, r.s.name(), query{Seq: since + 1, NextFor: r.subject, Batch: 1})
	return p.pending + uint64(len(p.messages)), err
}
