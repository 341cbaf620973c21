// Package redis reads sources of Redis and Valkey: streams, by a consumer group.
//
// All nodes are one consumer of the group, of which one node reads at a time. So what a
// process read and did not acknowledge is the first that the next one reads, in order.
package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-gateway/weir/internal/push/ingest"
)

// A Config is a connection to Redis and what is read there.
type Config struct {
	// URL of the server, redis://host:6379/0 or rediss:// with TLS.
	URL string `json:"url" secret:"path"`
	ingest.Credential
	// TLS is how the connection is encrypted.
	TLS ingest.TLS `json:"tls"`
	// Streams are the keys of the streams to read.
	Streams []string `json:"streams"`
	// Group is the consumer group. Empty means weir-<name>. It is created where it does not
	// exist, and so are the streams.
	Group string `json:"group"`
	// Start is where a group starts that is created: 0 at the oldest entry, $ after the newest,
	// or an entry's id. Empty means 0.
	Start string `json:"start"`
	// DataField is the field of an entry that holds the payload, or * for all fields as a JSON
	// object of strings. Empty means data.
	DataField string `json:"data_field"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Start == "" {
		c.Start = "0"
	}
	if c.DataField == "" {
		c.DataField = "data"
	}
	return c
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	errs := []error{ingest.CheckURL("url", c.URL, "redis", "rediss"), c.Credential.Validate()}
	if len(c.Streams) == 0 {
		errs = append(errs, errors.New("streams: there are none"))
	}
	for i, s := range c.Streams {
		if s == "" {
			errs = append(errs, fmt.Errorf("streams[%d]: it is empty", i))
		}
	}
	if c.Start != "$" {
		ms, seq, _ := strings.Cut(c.Start, "-")
		_, err := strconv.ParseUint(ms, 10, 64)
		if seq != "" && err == nil {
			_, err = strconv.ParseUint(seq, 10, 64)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("start: invalid entry id %.40q: want 0, $ or an id such as 1700000000000-0", c.Start))
		}
	}
	return errors.Join(errs...)
}

// consumer is the one that all nodes are.
const consumer = "weir"

// A reader reads streams.
type reader struct {
	client *goredis.Client
	cfg    Config
	batch  int
	// after is up to where a stream's pending entries were read; "" when there are no more.
	after map[string]string
}

// Open returns the Opener of a source.
func Open(c Config) ingest.Opener {
	c = c.WithDefaults()
	return func(ctx context.Context, o ingest.Options) (ingest.Reader, error) {
		if c.Group == "" {
			c.Group = "weir-" + o.Name
		}
		opt, err := options(c)
		if err != nil {
			return nil, err
		}
		r := &reader{client: goredis.NewClient(opt), cfg: c, batch: o.Batch, after: map[string]string{}}
		for _, s := range c.Streams {
			err := r.client.XGroupCreateMkStream(ctx, s, c.Group, c.Start).Err()
			if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
				r.Close()
				return nil, fmt.Errorf("create group %s of stream %s: %w", c.Group, s, err)
			}
			r.after[s] = "0"
		}
		return r, nil
	}
}

func options(c Config) (*goredis.Options, error) {
	opt, err := goredis.ParseURL(c.URL)
	if err != nil {
		return nil, errors.New("url: it cannot be read: want redis://host:6379/0")
	}
	tls, err := c.TLS.Load()
	if err != nil {
		return nil, err
	}
	if tls != nil {
		if opt.TLSConfig != nil && tls.ServerName == "" {
			tls.ServerName = opt.TLSConfig.ServerName
		}
		opt.TLSConfig = tls
	}
	password, err := c.Read()
	if err != nil {
		return nil, err
	}
	if c.User != "" {
		opt.Username = c.User
	}
	if password != "" {
		opt.Password = password
	}
	opt.PoolSize, opt.MaxRetries, opt.DialTimeout, opt.ContextTimeoutEnabled = 2, -1, 5*time.Second, true
	opt.ClientName = "weir"
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opt, nil
}

// readWait is how long a read waits for a first entry, patience for an answer.
const (
	readWait = 500 * time.Millisecond
	patience = 5 * time.Second
)

// Read implements ingest.Reader: first what was delivered and not acknowledged, then what is
// new.
func (r *reader) Read(ctx context.Context) ([]ingest.Message, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience) // a cancelled read would lose what it delivers
	defer cancel()
	for s, after := range r.after {
		list, last, err := r.read(ctx, []string{s, after}, -1)
		if err != nil {
			return nil, err
		}
		if last == "" {
			delete(r.after, s)
		} else {
			r.after[s] = last
		}
		if len(list) > 0 {
			return list, nil
		}
	}
	args := append([]string{}, r.cfg.Streams...)
	for range r.cfg.Streams {
		args = append(args, ">")
	}
	list, _, err := r.read(ctx, args, readWait)
	return list, err
}

// read reads entries, and returns the id of the last one.
func (r *reader) read(ctx context.Context, streams []string, block time.Duration) (list []ingest.Message, last string, err error) {
	got, err := r.client.XReadGroup(ctx, &goredis.XReadGroupArgs{Group: r.cfg.Group, Consumer: consumer, Streams: streams, Count: int64(r.batch), Block: block}).Result()
	if errors.Is(err, goredis.Nil) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read group %s: %w", r.cfg.Group, err)
	}
	for _, s := range got {
		for _, m := range s.Messages {
			last = m.ID
			if m.Values == nil { // deleted from the stream since it was delivered
				if err := r.client.XAck(ctx, s.Stream, r.cfg.Group, m.ID).Err(); err != nil {
					return list, last, err
				}
				continue
			}
			list = append(list, r.message(s.Stream, m))
		}
	}
	return list, last, nil
}

// An entry is what is acknowledged.
type entry struct{ stream, id string }

func (r *reader) message(stream string, m goredis.XMessage) ingest.Message {
	value := func(name string) (string, bool) {
		v, ok := m.Values[name].(string)
		return v, ok
	}
	msg := ingest.Message{Position: stream + "/" + m.ID, Ack: entry{stream, m.ID}, Lookup: func(name string) (string, bool) {
		if name == "stream" {
			return stream, true
		}
		if n, ok := strings.CutPrefix(name, "value."); ok {
			return value(n)
		}
		return "", false
	}}
	if ms, _, ok := strings.Cut(m.ID, "-"); ok {
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			msg.Time = time.UnixMilli(n)
		}
	}
	if r.cfg.DataField == "*" {
		msg.Data, _ = json.Marshal(m.Values) // strings are always valid
		return msg
	}
	data, _ := value(r.cfg.DataField)
	msg.Data = []byte(data)
	return msg
}

// Acknowledge implements ingest.Reader.
func (r *reader) Acknowledge(ctx context.Context, done []ingest.Message) error {
	ids := map[string][]string{}
	for i := range done {
		e := done[i].Ack.(entry)
		ids[e.stream] = append(ids[e.stream], e.id)
	}
	for s, list := range ids {
		if err := r.client.XAck(ctx, s, r.cfg.Group, list...).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Lag implements ingest.Reader.
func (r *reader) Lag(ctx context.Context) (int64, error) {
	sum := int64(0)
	for _, s := range r.cfg.Streams {
		groups, err := r.client.XInfoGroups(ctx, s).Result()
		if err != nil {
			return -1, err
		}
		for _, g := range groups {
			if g.Name != r.cfg.Group {
				continue
			}
			if g.Lag < 0 {
				return -1, nil // unknown to the server after entries were deleted
			}
			sum += g.Lag + g.Pending
		}
	}
	return sum, nil
}

// Close implements ingest.Reader.
func (r *reader) Close() { _ = r.client.Close() }
