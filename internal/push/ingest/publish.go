package ingest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Pauses between two attempts.
const (
	minWait = 20 * time.Millisecond
	maxWait = 5 * time.Second
)

// A mapping makes publications of a source's messages.
type mapping struct {
	namespace    string
	channel, key Template
	payload      hub.Payload
	publisher    string
}

func newMapping(c Config) (mapping, error) {
	m := mapping{namespace: c.Namespace, payload: payloads[c.Payload], publisher: "weir:source/" + c.Name}
	var err, err2 error
	m.channel, err = ParseTemplate(c.Channel)
	m.key, err2 = ParseTemplate(c.Key)
	return m, errors.Join(err, err2)
}

// channelOf returns the channel of msg, which is always one of the source's namespace.
func (m *mapping) channelOf(msg *Message) (string, error) {
	name, err := m.channel.Expand(msg)
	if err != nil {
		return "", fmt.Errorf("channel: %w", err)
	}
	if m.namespace != hub.DefaultNamespace {
		name = m.namespace + ":" + strings.TrimPrefix(name, m.namespace+":")
	}
	if err := hub.CheckChannel(name); err != nil {
		return "", err
	}
	if ns := hub.NamespaceOf(name); ns != m.namespace {
		return "", fmt.Errorf("%w: %.60q is in namespace %q, and the source publishes in %q", hub.ErrBadChannel, name, ns, m.namespace)
	}
	return name, nil
}

// publication returns what msg is published as on channel.
func (m *mapping) publication(msg *Message, channel string) (hub.Publication, error) {
	p := hub.Publication{Channel: channel, Data: msg.Data, IdempotencyKey: msg.Position, Publisher: m.publisher}
	var err error
	if len(m.key.parts) > 0 {
		if p.Key, err = m.key.Expand(msg); err != nil {
			return p, fmt.Errorf("key: %w", err)
		}
	}
	switch m.payload {
	case hub.JSON:
		if p.Data == nil { // such as a tombstone of Kafka
			p.Data = []byte("null")
		}
		if !json.Valid(p.Data) {
			return p, errors.New("the payload is not valid JSON")
		}
	case hub.Text:
		if !utf8.Valid(msg.Data) {
			return p, errors.New("the payload is not valid UTF-8")
		}
		p.Attributes = &hub.Attributes{Payload: hub.Text}
	case hub.Binary:
		p.Attributes = &hub.Attributes{Payload: hub.Binary}
	}
	return p, nil
}

// temporary reports whether publishing again may succeed without a change of anything else.
func temporary(err error) bool {
	for _, e := range []error{hub.ErrUnavailable, hub.ErrOverloaded, hub.ErrStorageFull, hub.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, new(*hub.UncertainError))
}

// publishAll publishes messages until each is in the log or in the dead-letter channel, or
// ctx is done. It returns those that are, in their order.
func (s *Source) publishAll(ctx context.Context, messages []Message) []Message {
	channels := map[string][]int{} // those of one channel in their order
	for i := range messages {
		name, err := s.mapping.channelOf(&messages[i])
		if err != nil {
			name = "" // one that cannot be published
		}
		channels[name] = append(channels[name], i)
	}
	settled := make([]bool, len(messages))
	var wg sync.WaitGroup
	for name, list := range channels {
		publish := func() {
			for _, i := range list {
				if settled[i] = s.settle(ctx, &messages[i], name); !settled[i] {
					return
				}
			}
		}
		if len(channels) == 1 {
			publish()
		} else {
			wg.Go(publish)
		}
	}
	wg.Wait()
	var done []Message
	for i, ok := range settled {
		if ok {
			done = append(done, messages[i])
		}
	}
	return done
}

// settle publishes msg, or after so many tries what became of it, and reports whether it
// need not be read again. It returns false only when ctx is done.
func (s *Source) settle(ctx context.Context, msg *Message, channel string) bool {
	if s.settledBefore(msg.Position) {
		return true
	}
	tries, wait := 0, minWait
	for {
		err := s.publish(ctx, msg, channel)
		switch {
		case err == nil:
			s.stats.published.Add(1)
			s.unblocked(msg)
			return true
		case ctx.Err() != nil:
			return false
		case temporary(err):
			s.stats.retries.Add(1)
			s.reportError(fmt.Errorf("publish: %w", err))
		default:
			if tries++; tries >= s.cfg.Tries {
				if s.cfg.DeadLetter != "" {
					return s.deadLetter(ctx, msg, err, tries)
				}
				s.blocked(msg, err)
				wait = maxWait
			}
		}
		if !sleep(ctx, wait) {
			return false
		}
		wait = min(2*wait, maxWait)
	}
}

func (s *Source) publish(ctx context.Context, msg *Message, channel string) error {
	if channel == "" {
		_, err := s.mapping.channelOf(msg)
		return err
	}
	p, err := s.mapping.publication(msg, channel)
	if err != nil {
		return err
	}
	return s.send(ctx, p)
}

// send publishes p and waits for the answer. After ctx is done it is not known whether p is
// stored.
func (s *Source) send(ctx context.Context, p hub.Publication) error {
	answer := make(chan error, 1)
	s.deps.Publish(p, func(_ hub.Position, err error) { answer <- err })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A DeadLetter is what the dead-letter channel receives, as JSON.
type DeadLetter struct {
	Source   string    `json:"source"`
	Position string    `json:"position,omitempty"`
	Time     time.Time `json:"time,omitzero"`
	Error    string    `json:"error"`
	Tries    int       `json:"tries"`
	// Data is the payload: as it is if it is JSON, else as text, or in base64 if it is
	// not UTF-8, which Encoding states then.
	Data      json.RawMessage `json:"data"`
	Encoding  string          `json:"encoding,omitempty"`
	Truncated bool            `json:"truncated,omitempty"`
}

// maxDead bounds the payload in a dead letter, so that one always fits.
const maxDead = 32 << 10

func newDeadLetter(source string, msg *Message, cause error, tries int) DeadLetter {
	d := DeadLetter{Source: source, Position: text(msg.Position, 512), Time: msg.Time, Error: text(cause.Error(), 1024), Tries: tries}
	data := msg.Data
	if d.Truncated = len(data) > maxDead; d.Truncated {
		data = data[:maxDead]
	}
	switch {
	case len(data) > 0 && json.Valid(data):
		d.Data = data
	case utf8.Valid(data):
		d.Data, _ = json.Marshal(string(data))
		d.Encoding = "text"
	default:
		d.Data, _ = json.Marshal(base64.StdEncoding.EncodeToString(data))
		d.Encoding = "base64"
	}
	return d
}

// deadLetter publishes msg to the dead-letter channel until that succeeds or ctx is done.
func (s *Source) deadLetter(ctx context.Context, msg *Message, cause error, tries int) bool {
	body, err := json.Marshal(newDeadLetter(s.cfg.Name, msg, cause, tries))
	if err != nil {
		panic("ingest: a dead letter is made of text and valid JSON: " + err.Error())
	}
	p := hub.Publication{Channel: s.cfg.DeadLetter, Data: body, Publisher: s.mapping.publisher + "/dead"}
	if msg.Position != "" {
		p.IdempotencyKey = msg.Position
	}
	for wait := minWait; ; wait = min(2*wait, maxWait) {
		err := s.send(ctx, p)
		if err == nil || errors.Is(err, hub.ErrKeyReused) { // the reason may differ from the first time
			s.stats.dead.Add(1)
			s.deps.Log.Warn("message moved to the dead-letter channel", "source", s.cfg.Name, "position", text(msg.Position, 128), "err", cause)
			s.unblocked(msg)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if temporary(err) {
			s.stats.retries.Add(1)
			s.reportError(fmt.Errorf("publish to %s: %w", s.cfg.DeadLetter, err))
		} else {
			s.blocked(msg, fmt.Errorf("publish to %s: %w", s.cfg.DeadLetter, err))
			wait = maxWait
		}
		if !sleep(ctx, wait) {
			return false
		}
	}
}

// sleep waits for d, or returns false when ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
