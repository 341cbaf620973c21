package hub

import (
	"fmt"
	"sync"
)

// PublishTopics publishes p, whose Channel does not count, on all of topics: channels
// of one namespace, of which the first is the canonical one. Each gets a message with
// Attributes.Topics and the Index it has there; those after the first go by the
// first's id. A subscriber of several gets the one with the lowest Index among them.
//
// done is called once, when all are stored, with the position of the first. After an
// error some may have been stored: with an idempotency key the retry stores what is
// missing. Otherwise PublishTopics is as Publish.
func (h *Hub) PublishTopics(topics []string, p Publication, done func(Position, error)) {
	first, err := h.firstOf(topics, p)
	if err != nil {
		h.stats.refused.Add(1)
		done(Position{}, err)
		return
	}
	topics = first.Attributes.Topics
	if len(topics) == 1 {
		first.Attributes = p.Attributes
		h.publish(first, done)
		return
	}
	h.publish(first, func(at Position, err error) {
		if err != nil {
			done(Position{}, err)
			return
		}
		c := &copies{left: len(topics) - 1, at: at, done: done}
		for i := 1; i < len(topics); i++ {
			a := *first.Attributes
			a.Index, a.First = i, at.Offset
			if a.ID == "" && at.Offset != 0 {
				a.ID = at.String()
			}
			q := Publication{Channel: topics[i], Key: p.Key, Data: p.Data, Attributes: &a, IdempotencyKey: p.IdempotencyKey, Publisher: p.Publisher}
			h.publish(q, c.answered)
		}
	})
}

// firstOf returns the first publication of p to topics, if all of them can be made.
func (h *Hub) firstOf(topics []string, p Publication) (Publication, error) {
	var a Attributes
	if p.Attributes != nil {
		a = *p.Attributes
	}
	if len(a.Topics) > 0 || a.Index != 0 || a.First != 0 {
		return p, errTopics
	}
	if len(topics) == 0 || len(topics) > MaxTopics {
		return p, fmt.Errorf("%w: topics: %d, want 1 to %d", ErrBadAttributes, len(topics), MaxTopics)
	}
	a.Topics = dedupe(nil, topics)
	p.Channel, p.Attributes = a.Topics[0], &a
	if err := a.Validate(); err != nil {
		return p, err
	}
	for _, topic := range a.Topics[1:] {
		if NamespaceOf(topic) != NamespaceOf(p.Channel) {
			return p, fmt.Errorf("%w: topics: %.60q and %.60q are of different namespaces", ErrBadAttributes, p.Channel, topic)
		}
		if n, err := h.Namespace(topic); err == nil && n.Partitions > 1 {
			return p, fmt.Errorf("topics: %w", errPartitioned(n))
		}
	}
	return p, nil
}

var errTopics = fmt.Errorf("%w: topics, index and first are for Hub.PublishTopics to write", ErrBadAttributes)

// copies counts the answers for all but the first of a publication to several channels.
type copies struct {
	at   Position
	done func(Position, error)

	mu   sync.Mutex
	left int
	err  error
}

// answered takes one answer, from any goroutine.
func (c *copies) answered(_ Position, err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.left--
	last := c.left == 0
	err = c.err
	c.mu.Unlock()
	switch {
	case !last:
	case err != nil:
		c.done(Position{}, err)
	default:
		c.done(c.at, nil)
	}
}
