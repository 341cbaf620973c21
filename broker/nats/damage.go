package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// damage compares the log with its mark, before it is used, and returns in words
// what it lost; "" for nothing. renewed is an epoch that began because of it.
func (s *storedLog) damage(ctx context.Context, renewed string) (string, error) {
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
	case in.unread > 0:
		return unreadable(in), nil
	}
	if s.b.marks != nil && s.b.cfg.Cluster.Name == "" { // no other node writes it
		safe := s.b.marks.safe(s.opts.Load().Durability == hub.Synced)
		switch {
		case in.last == 0 && m.Last == 0 && safe:
			return "", nil
		case !known || m.Epoch != in.epoch:
			return "it has no mark", nil
		case !safe: // also of an empty log: what was published after the mark may have been all of it
			return "the machine ended before the files were synced", nil
		}
	}
	if !known || m.Epoch != in.epoch {
		return "", nil
	}
	return s.compareMark(ctx, in, m)
}

// compareMark is damage for a log that has mark m.
func (s *storedLog) compareMark(ctx context.Context, in info, m mark) (string, error) {
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

func unreadable(in info) string {
	return fmt.Sprintf("the server could not read %d bytes, and %d messages are missing between others", in.unread, in.deleted)
}

// A counter is whose count of a log it is, and by what bound for a channel. Another one's may
// be less because it lost something.
type counter struct {
	generation uint64
	leader     string
	most       int64
}

// counter returns who counted in, on the connection called generation.
func (in info) counter(generation uint64) counter {
	return counter{generation, in.leader, in.config.MaxMsgsPerSubject}
}

// shrunk returns in words what the log, which is in now, lost while its server was away, or by the
// word of another leader; "" for nothing. New messages take the places of older ones, and what
// is older than all is counted by the first one that is left.
func shrunk(s *delivery, in info) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, c := in.counter(s.b.generation.Load()), s.counted
	left := c.Messages - min(c.Messages, in.first-min(in.first, c.First))
	switch {
	case now == s.counter || in.epoch != s.epoch:
		return ""
	case in.lost > in.base:
		return fmt.Sprintf("the server found messages damaged, up to %d", in.lost)
	case in.unread > 0:
		return unreadable(in)
	case in.last >= c.Last && in.messages < left && !in.gone && now.most == s.counter.most:
		return fmt.Sprintf("%d messages are left, and should be %d at least", in.messages, left)
	}
	s.count(in)
	return ""
}

// count notes how many messages there are. s.mu is held.
func (s *delivery) count(in info) {
	s.counter = in.counter(s.b.generation.Load())
	s.counted = count{
		First: in.first, Last: in.last, Messages: in.messages, Check: in.check,
		FirstAt: in.firstAt.UnixMilli(), LastAt: in.lastAt.UnixMilli(),
	}
}

// verifyRead finds out whether the server met damage while it read messages, after
// it had answered in: it leaves such a message out without a word, but counts it no
// longer. The log begins a new epoch then, and the read is void.
func (s *readable) verifyRead(ctx context.Context, in info) error {
	now, err := s.info(ctx)
	switch left := in.messages - min(in.messages, now.first-min(now.first, in.first)); {
	case err != nil:
		return err
	case now.epoch != in.epoch:
		return fmt.Errorf("%w: the log was replaced meanwhile", hub.ErrUnavailable)
	case now.lost <= in.base && (now.messages >= left || now.gone):
		return nil
	}
	s.b.log.Error("log has damaged messages; it begins a new epoch", "namespace", s.opts.Load().LogName(), "last", now.last, "lost", now.lost)
	if in, err = s.newEpoch(ctx, now); err != nil {
		return err
	}
	s.adopt(in)
	return fmt.Errorf("%w: the log has damaged messages", hub.ErrUnavailable)
}

// lastMark returns the mark of the log that was written last.
func (s *storedLog) lastMark(ctx context.Context) (m mark, known bool, err error) {
	if o := s.b.outside.Load(); o != nil {
		return o.last(ctx, s.opts.Load().LogName())
	}
	m, known = s.b.marks.start.Logs[s.opts.Load().LogName()]
	return m, known, nil
}
