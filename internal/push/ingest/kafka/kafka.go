// Package kafka reads sources of Kafka: topics, by a consumer group.
//
// The group divides the partitions among the nodes. Offsets are committed after the records
// were published, and a partition changes hands only between two batches.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// A Config is a connection to Kafka and what is read there.
type Config struct {
	// Brokers are some brokers of the cluster, host:port.
	Brokers []string `json:"brokers"`
	ingest.Credential
	// SASL is how the user logs in: plain, scram-sha-256 or scram-sha-512. Empty means plain
	// if there is a user, and no login without one.
	SASL string `json:"sasl"`
	// TLS is how the connection is encrypted.
	TLS ingest.TLS `json:"tls"`
	// Topics are what is read.
	Topics []string `json:"topics"`
	// Group is the consumer group. Empty means weir-<name>.
	Group string `json:"group"`
	// Start is where a partition starts that the group has not read yet: earliest or latest.
	// Empty means earliest.
	Start string `json:"start"`
	// SessionTimeout is how long a node may be silent before the group assigns its partitions
	// to others. 0 means 10s.
	SessionTimeout hub.Duration `json:"session_timeout"`
	// InstanceID is a name of this node in the group that stays the same over a restart: it
	// has its partitions back at once. Each node needs another. Empty means none.
	InstanceID string `json:"instance_id"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Start == "" {
		c.Start = "earliest"
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = hub.Duration(10 * time.Second)
	}
	return c
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	errs := []error{c.Credential.Validate()}
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(c.Brokers) == 0 {
		bad("brokers: there are none: want host:port")
	}
	for i, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("brokers[%d]: invalid address %.60q: want host:port", i, b)
		}
	}
	if len(c.Topics) == 0 {
		bad("topics: there are none")
	}
	for i, t := range c.Topics {
		if t == "" || strings.ContainsAny(t, " \t\r\n/") {
			bad("topics[%d]: invalid topic %.60q", i, t)
		}
	}
	switch c.SASL {
	case "", "plain", "scram-sha-256", "scram-sha-512":
	default:
		bad("sasl: invalid mechanism %.40q: want plain, scram-sha-256 or scram-sha-512", c.SASL)
	}
	if c.SASL != "" && c.User == "" {
		bad("user: it is empty, and sasl is %s", c.SASL)
	}
	if c.Start != "earliest" && c.Start != "latest" {
		bad("start: invalid start %.40q: want earliest or latest", c.Start)
	}
	if c.SessionTimeout < hub.Duration(time.Second) || c.SessionTimeout > hub.Duration(30*time.Minute) {
		bad("session_timeout: invalid duration %s: want 1s to 30m", c.SessionTimeout)
	}
	return errors.Join(errs...)
}

// A reader is a member of the group.
type reader struct {
	client *kgo.Client
	batch  int
	last   []*kgo.Record // of the last Read

	mu  sync.Mutex
	lag map[string]int64 // by topic and partition
}

// Open returns the Opener of a source.
func Open(c Config) ingest.Opener {
	c = c.WithDefaults()
	return func(ctx context.Context, o ingest.Options) (ingest.Reader, error) {
		if c.Group == "" {
			c.Group = "weir-" + o.Name
		}
		r := &reader{batch: o.Batch, lag: map[string]int64{}}
		opts, err := options(c, r)
		if err != nil {
			return nil, err
		}
		if r.client, err = kgo.NewClient(opts...); err != nil {
			return nil, err
		}
		if err := r.client.Ping(ctx); err != nil {
			r.client.Close()
			return nil, fmt.Errorf("connect to Kafka: %w", err)
		}
		return r, nil
	}
}

func options(c Config, r *reader) ([]kgo.Opt, error) {
	start := kgo.NewOffset().AtStart()
	if c.Start == "latest" {
		start = kgo.NewOffset().AtEnd()
	}
	timeout := time.Duration(c.SessionTimeout)
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID("weir"), kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topics...),
		kgo.ConsumeStartOffset(start), kgo.ConsumeResetOffset(start), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.SessionTimeout(timeout), kgo.HeartbeatInterval(timeout / 4), kgo.RebalanceTimeout(max(timeout, 30*time.Second)),
		kgo.OnPartitionsRevoked(r.lost), kgo.OnPartitionsLost(r.lost), kgo.DisableClientMetrics(),
	}
	if c.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(c.InstanceID))
	}
	tls, err := c.TLS.Load()
	if err != nil {
		return nil, err
	}
	if tls != nil {
		opts = append(opts, kgo.DialTLSConfig(tls))
	}
	password, err := c.Read()
	if err != nil {
		return nil, err
	}
	if c.User != "" {
		auth := scram.Auth{User: c.User, Pass: password}
		switch c.SASL {
		case "scram-sha-256":
			opts = append(opts, kgo.SASL(auth.AsSha256Mechanism()))
		case "scram-sha-512":
			opts = append(opts, kgo.SASL(auth.AsSha512Mechanism()))
		default:
			opts = append(opts, kgo.SASL(plain.Auth{User: c.User, Pass: password}.AsMechanism()))
		}
	}
	return opts, nil
}

// lost forgets partitions that other nodes read now. The client calls it.
func (r *reader) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, list := range partitions {
		for _, p := range list {
			delete(r.lag, partition(topic, p))
		}
	}
}

func partition(topic string, p int32) string { return topic + "/" + strconv.Itoa(int(p)) }

// readWait is how long a read waits for a first record.
const readWait = time.Second

// Read implements ingest.Reader.
func (r *reader) Read(ctx context.Context) ([]ingest.Message, error) {
	r.client.AllowRebalance()
	r.last = nil
	waiting, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	fetches := r.client.PollRecords(waiting, r.batch)
	r.last = fetches.Records()
	if len(r.last) == 0 {
		r.client.AllowRebalance()
	}
	r.mu.Lock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if n := len(p.Records); n > 0 {
			r.lag[partition(p.Topic, p.Partition)] = max(0, p.HighWatermark-p.Records[n-1].Offset-1)
		}
	})
	r.mu.Unlock()
	list := make([]ingest.Message, 0, len(r.last))
	for _, rec := range r.last {
		list = append(list, message(rec))
	}
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, context.Canceled) {
			return list, fmt.Errorf("read topic %s: %w", e.Topic, e.Err)
		}
	}
	return list, nil
}

func message(rec *kgo.Record) ingest.Message {
	return ingest.Message{
		// The time distinguishes a topic from a deleted one of the same name.
		Position: fmt.Sprintf("%s/%d/%d/%d", rec.Topic, rec.Partition, rec.Offset, rec.Timestamp.UnixMilli()),
		Data:     rec.Value, Time: rec.Timestamp, Ack: rec,
		Lookup: func(name string) (string, bool) {
			switch name {
			case "topic":
				return rec.Topic, true
			case "partition":
				return strconv.Itoa(int(rec.Partition)), true
			case "key":
				return string(rec.Key), true
			}
			if n, ok := strings.CutPrefix(name, "header."); ok {
				for _, h := range rec.Headers {
					if h.Key == n {
						return string(h.Value), true
					}
				}
			}
			return "", false
		},
	}
}

// Acknowledge implements ingest.Reader: it commits each partition up to the first record that
// is missing in done.
func (r *reader) Acknowledge(ctx context.Context, done []ingest.Message) error {
	settled := map[*kgo.Record]bool{}
	for i := range done {
		settled[done[i].Ack.(*kgo.Record)] = true
	}
	var commit []*kgo.Record
	stopped := map[string]bool{}
	for _, rec := range r.last {
		p := partition(rec.Topic, rec.Partition)
		if !settled[rec] {
			stopped[p] = true
		}
		if !stopped[p] {
			commit = append(commit, rec)
		}
	}
	err := r.client.CommitRecords(ctx, commit...)
	r.client.AllowRebalance()
	return err
}

// Lag implements ingest.Reader, as of the records read last. It fails when no broker answers.
func (r *reader) Lag(ctx context.Context) (int64, error) {
	if err := r.client.Ping(ctx); err != nil {
		return -1, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := int64(0)
	for _, n := range r.lag {
		sum += n
	}
	return sum, nil
}

// Close implements ingest.Reader. A node with an instance id stays a member of the group.
func (r *reader) Close() {
	r.client.AllowRebalance()
	r.client.CloseAllowingRebalance()
}
