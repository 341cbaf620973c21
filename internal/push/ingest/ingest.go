// Package ingest publishes the messages of other systems: database outboxes, logs, streams,
// message buses and market data feeds.
//
// A Source is one of them. It reads a batch, publishes each message with its position as the
// idempotency key, and then acknowledges the batch to the other system. A message that was
// published but not acknowledged is read again, and the hub recognizes its key: within the
// namespace's idempotency window each message is in the log exactly once.
//
//	set := ingest.NewSet(deps)
//	set.Replace(specs)             // also after a reload
//	err := set.Run(ctx)            // returns when all sources have stopped
//
// Messages of one channel are published in the order in which they were read, one at a time;
// messages of different channels at once. A message that can never be published goes to the
// dead-letter channel. While the hub is unavailable or overloaded nothing is read: what waits
// here is one batch.
//
// Packages below this one implement Reader, one for each kind of system.
package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Message is one message of a source.
type Message struct {
	// Position identifies the message in its source and is the same whenever it is read
	// again. Empty means that it has none: it is published at most once.
	Position string
	// Data is the payload. It is kept, not copied.
	Data []byte
	// Time is when the source received the message; zero means unknown.
	Time time.Time
	// Lookup returns the value of a name in a template, such as "subject"; nil means none.
	Lookup func(name string) (string, bool)
	// Ack is what the Reader needs to acknowledge the message.
	Ack any
}

// A Reader is an open connection to a source. One goroutine uses it at a time.
type Reader interface {
	// Read returns the next messages, oldest first. Without any it returns none after about
	// a second, or when ctx is done. An error means that the reader cannot continue.
	Read(ctx context.Context) ([]Message, error)
	// Acknowledge reports to the source that messages of the last Read need not be read
	// again. They are in the order of Read, possibly with some missing between them.
	Acknowledge(ctx context.Context, done []Message) error
	// Lag returns how many messages wait in the source, or -1 if it is not known.
	Lag(ctx context.Context) (int64, error)
	// Close releases everything.
	Close()
}

// A Counter is what a Reader counts besides reading. Any goroutine may call its methods.
type Counter interface {
	// Dropped adds messages that were dropped at the bound of a queue, Conflated those that
	// a newer one replaced.
	Dropped(n uint64)
	Conflated(n uint64)
	// Gap adds a gap in the source's sequence numbers, of missing messages.
	Gap(missing uint64)
}

// Options are what an Opener needs besides its own configuration.
type Options struct {
	// Name is the source's.
	Name string
	// Batch is the most messages that one Read returns.
	Batch int
	Count Counter
}

// An Opener connects to a source.
type Opener func(ctx context.Context, o Options) (Reader, error)

// ErrStandby is an Opener's answer while another node reads the source.
var ErrStandby = errors.New("another node reads this source")

// A Config is what all kinds of sources have in common.
type Config struct {
	// Name identifies the source in metrics, logs, the admin API and in idempotency keys:
	// messages that are read again after it was renamed are published again. 1 to 64 of
	// A-Z, a-z, 0-9, _ and -.
	Name string `json:"name"`
	// Kind is the kind of system: nats, redis, postgres, kafka or udp. Its connection is in
	// the section of the same name.
	Kind string `json:"kind"`
	// Namespace is where the messages are published; a source cannot publish elsewhere. Empty
	// means default. Its idempotency_window is how long a message is recognized that is read
	// again.
	Namespace string `json:"namespace"`
	// Channel is the channel within the namespace: text with names in braces, which each
	// message fills in. {field.a.b} is a value within a JSON payload. nats has {subject},
	// {subject.1} for its first token and {header.Name}; redis {stream} and {value.name};
	// postgres {channel} and {key}; kafka {topic}, {partition}, {key} and {header.Name};
	// udp {symbol}. Empty means {subject}, {stream}, {channel}, {topic} or {symbol}.
	Channel string `json:"channel"`
	// Key is the conflation key, written as channel is. Empty means none, and {key} for
	// postgres.
	Key string `json:"key"`
	// Payload is what the data of a message is: json, text or binary. Empty means json;
	// messages that are not valid JSON are refused then.
	Payload string `json:"payload"`
	// DeadLetter is the channel, with its namespace, that receives messages which cannot be
	// published, with the reason. Empty means that the source stops at the first one until
	// that is configured.
	DeadLetter string `json:"dead_letter"`
	// Tries is how often publishing a message is tried that is refused. While the broker is
	// unavailable, overloaded or full, publishing is repeated without an end. 0 means 3.
	Tries int `json:"tries"`
	// Batch bounds the messages that are read and not acknowledged yet, 1 to 10000. At the
	// bound nothing more is read. 0 means 256.
	Batch int `json:"batch"`
	// Paused starts the source paused, until it is resumed by hand.
	Paused bool `json:"paused"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.Namespace = cmp.Or(c.Namespace, hub.DefaultNamespace)
	c.Channel = cmp.Or(c.Channel, defaultChannel[c.Kind])
	if c.Kind == "postgres" {
		c.Key = cmp.Or(c.Key, "{key}")
	}
	c.Payload = cmp.Or(c.Payload, "json")
	c.Tries = cmp.Or(c.Tries, 3)
	c.Batch = cmp.Or(c.Batch, 256)
	return c
}

// Kinds are the kinds of sources.
var Kinds = []string{"nats", "redis", "postgres", "kafka", "udp"}

var defaultChannel = map[string]string{"nats": "{subject}", "redis": "{stream}", "postgres": "{channel}", "kafka": "{topic}", "udp": "{symbol}"}

// names are what a template of each kind may contain; one that ends with "." is followed by
// a name of the message's.
var names = map[string][]string{
	"nats":     {"subject", "subject.", "header.", "field."},
	"redis":    {"stream", "value.", "field."},
	"postgres": {"channel", "key", "field."},
	"kafka":    {"topic", "partition", "key", "header.", "field."},
	"udp":      {"symbol"},
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !validName(c.Name) {
		bad("name: invalid name %.80q: want 1 to 64 of A-Z, a-z, 0-9, _ and -", c.Name)
	}
	if !slices.Contains(Kinds, c.Kind) {
		bad("kind: invalid kind %.40q: want %s", c.Kind, strings.Join(Kinds, ", "))
	}
	for key, text := range map[string]string{"channel": c.Channel, "key": c.Key} {
		t, err := ParseTemplate(text)
		if err != nil {
			bad("%s: %w", key, err)
			continue
		}
		for _, name := range t.Names() {
			if allowed := names[c.Kind]; allowed != nil && !slices.ContainsFunc(allowed, func(a string) bool {
				rest, ok := strings.CutPrefix(name, a)
				return ok && (rest != "") == strings.HasSuffix(a, ".")
			}) {
				bad("%s: unknown name {%.40s}: messages of %s have %s", key, name, c.Kind, braced(allowed))
			}
		}
	}
	if c.Channel == "" && slices.Contains(Kinds, c.Kind) {
		bad("channel: it is empty")
	}
	if _, ok := payloads[c.Payload]; !ok {
		bad("payload: invalid payload %.40q: want json, text or binary", c.Payload)
	}
	if c.DeadLetter != "" {
		if err := hub.CheckChannel(c.DeadLetter); err != nil {
			bad("dead_letter: %w", err)
		}
	}
	if c.Tries < 1 || c.Tries > 1000 {
		bad("tries: invalid number %d: want 1 to 1000", c.Tries)
	}
	if c.Batch < 1 || c.Batch > 10_000 {
		bad("batch: invalid number %d: want 1 to 10000", c.Batch)
	}
	return errors.Join(errs...)
}

var payloads = map[string]hub.Payload{"json": hub.JSON, "text": hub.Text, "binary": hub.Binary}

func braced(list []string) string {
	var b strings.Builder
	for i, name := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		if strings.HasSuffix(name, ".") {
			name += "…"
		}
		b.WriteString("{" + name + "}")
	}
	return b.String()
}

func validName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
	})
}

// text returns b as text that can be shown: invalid UTF-8 replaced, at most n bytes.
func text(b string, n int) string {
	if len(b) > n {
		b = b[:n]
	}
	if utf8.ValidString(b) {
		return b
	}
	return strings.ToValidUTF8(b, "\ufffd")
}
