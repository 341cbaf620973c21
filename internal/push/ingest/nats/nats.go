// Package nats reads sources of NATS: a consumer of a JetStream stream, or plain subjects.
//
// Of a stream each message is read until it is acknowledged, in the order of the stream. What
// a process left unacknowledged when it ended is delivered again after ack_wait, before
// anything newer. Plain subjects have no position and no redelivery: what arrives while
// nothing reads, or while the queue is full, is lost.
package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// A Config is a connection to NATS and what is read there.
type Config struct {
	// URL of the server, nats://host:4222 or tls://host:4222; several are separated by
	// commas.
	URL string `json:"url" secret:"path"`
	ingest.Credential
	// CredsFile holds a user's JWT and key, as nsc writes them. Empty means none.
	CredsFile string `json:"creds_file"`
	// TLS is how the connection is encrypted.
	TLS ingest.TLS `json:"tls"`
	// Stream is the JetStream stream to read. Empty means plain subjects, of which
	// messages are lost while nothing reads.
	Stream string `json:"stream"`
	// Subjects are what is read, with wildcards; of a stream they are a filter and may be
	// empty, which means everything.
	Subjects []string `json:"subjects"`
	// Durable is the name of the stream's consumer, or of the queue group of plain subjects.
	// Empty means weir-<name>. It is created where it does not exist.
	Durable string `json:"durable"`
	// AckWait is how long the stream waits for an acknowledgement before it delivers a message
	// again: after a crash a source starts that much later. 0 means 10s.
	AckWait hub.Duration `json:"ack_wait"`
	// MaxPending bounds the messages of plain subjects that wait to be published, 1 to
	// 1000000; what arrives at the bound is dropped and counted. 0 means 65536.
	MaxPending int `json:"max_pending"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.AckWait == 0 {
		c.AckWait = hub.Duration(10 * time.Second)
	}
	if c.MaxPending == 0 {
		c.MaxPending = 1 << 16
	}
	return c
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	var errs []error
	for u := range strings.SplitSeq(c.URL, ",") {
		errs = append(errs, ingest.CheckURL("url", u, "nats", "tls", "ws", "wss"))
	}
	errs = append(errs, c.Credential.Validate())
	if c.Stream == "" && len(c.Subjects) == 0 {
		errs = append(errs, errors.New("subjects: there are none, and no stream"))
	}
	if strings.ContainsAny(c.Stream, ".*> \t\r\n") {
		errs = append(errs, fmt.Errorf("stream: invalid name %.60q: want no dots, wildcards or spaces", c.Stream))
	}
	if strings.ContainsAny(c.Durable, ".*> \t\r\n") {
		errs = append(errs, fmt.Errorf("durable: invalid name %.60q: want no dots, wildcards or spaces", c.Durable))
	}
	for i, s := range c.Subjects {
		if s == "" || strings.ContainsAny(s, " \t\r\n") {
			errs = append(errs, fmt.Errorf("subjects[%d]: invalid subject %.60q: want tokens separated by dots", i, s))
		}
	}
	if c.AckWait < hub.Duration(100*time.Millisecond) || c.AckWait > hub.Duration(time.Hour) {
		errs = append(errs, fmt.Errorf("ack_wait: invalid duration %s: want 100ms to 1h", c.AckWait))
	}
	if c.MaxPending < 1 || c.MaxPending > 1_000_000 {
		errs = append(errs, fmt.Errorf("max_pending: invalid number %d: want 1 to 1000000", c.MaxPending))
	}
	return errors.Join(errs...)
}

// Open returns the Opener of a source.
func Open(c Config) ingest.Opener {
	c = c.WithDefaults()
	return func(ctx context.Context, o ingest.Options) (ingest.Reader, error) {
		if c.Durable == "" {
			c.Durable = "weir-" + o.Name
		}
		nc, closed, err := connect(c, o.Name)
		if err != nil {
			return nil, err
		}
		var r ingest.Reader
		if c.Stream == "" {
			r, err = openSubjects(nc, closed, c, o)
		} else {
			r, err = openStream(ctx, nc, c, o)
		}
		if err != nil {
			nc.Close()
			return nil, err
		}
		return r, nil
	}
}

// connect connects. A connection that breaks is not fixed: closed is closed, and the source
// opens another.
func connect(c Config, name string) (nc *natsgo.Conn, closed chan struct{}, err error) {
	closed = make(chan struct{})
	opts := []natsgo.Option{
		natsgo.Name("weir source " + name), natsgo.NoReconnect(), natsgo.Timeout(5 * time.Second), natsgo.PingInterval(5 * time.Second), natsgo.MaxPingsOutstanding(2),
		natsgo.ClosedHandler(func(*natsgo.Conn) { close(closed) }),
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}), // slow consumers are counted
	}
	tls, err := c.TLS.Load()
	if err != nil {
		return nil, nil, err
	}
	if tls != nil {
		opts = append(opts, natsgo.Secure(tls))
	}
	password, err := c.Read()
	if err != nil {
		return nil, nil, err
	}
	if c.User != "" {
		opts = append(opts, natsgo.UserInfo(c.User, password))
	}
	if c.CredsFile != "" {
		opts = append(opts, natsgo.UserCredentials(c.CredsFile))
	}
	if nc, err = natsgo.Connect(c.URL, opts...); err != nil {
		return nil, nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, closed, nil
}

// lookup returns what templates find in a message.
func lookup(subject string, header natsgo.Header) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name == "subject" {
			return subject, true
		}
		if n, ok := strings.CutPrefix(name, "subject."); ok {
			i, err := strconv.Atoi(n)
			tokens := strings.Split(subject, ".")
			if err != nil || i < 1 || i > len(tokens) {
				return "", false
			}
			return tokens[i-1], true
		}
		if n, ok := strings.CutPrefix(name, "header."); ok {
			v := header.Values(n)
			if len(v) == 0 {
				return "", false
			}
			return v[0], true
		}
		return "", false
	}
}

// A stream is a consumer of a JetStream stream.
type stream struct {
	nc       *natsgo.Conn
	consumer jetstream.Consumer
	batch    int
	readFrom time.Time // what another process left unacknowledged is due again then
}

func openStream(ctx context.Context, nc *natsgo.Conn, c Config, o ingest.Options) (*stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	want := jetstream.ConsumerConfig{
		Durable: c.Durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Duration(c.AckWait), MaxAckPending: o.Batch,
		FilterSubjects: c.Subjects, Description: "weir source " + o.Name,
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, c.Stream, want)
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", c.Durable, c.Stream, err)
	}
	s := &stream{nc: nc, consumer: consumer, batch: o.Batch}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", c.Durable, c.Stream, err)
	}
	if info.NumAckPending > 0 {
		s.readFrom = time.Now().Add(time.Duration(c.AckWait) + 50*time.Millisecond)
	}
	return s, nil
}

// readWait is how long a read waits for a first message.
const readWait = time.Second

// Read implements ingest.Reader.
func (s *stream) Read(ctx context.Context) ([]ingest.Message, error) {
	if d := time.Until(s.readFrom); d > 0 {
		t := time.NewTimer(min(d, readWait))
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		if time.Until(s.readFrom) > 0 {
			return nil, nil
		}
	}
	list, err := s.fetch(s.consumer.FetchNoWait(s.batch))
	if err != nil || len(list) > 0 {
		return list, err
	}
	waiting, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	return s.fetch(s.consumer.Fetch(1, jetstream.FetchContext(waiting)))
}

func (s *stream) fetch(batch jetstream.MessageBatch, err error) ([]ingest.Message, error) {
	if err != nil {
		return nil, quiet(err)
	}
	var list []ingest.Message
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return list, fmt.Errorf("message without a position in the stream: %w", err)
		}
		list = append(list, ingest.Message{
			Position: fmt.Sprintf("%d/%d", meta.Sequence.Stream, meta.Timestamp.UnixNano()),
			Data:     m.Data(), Time: meta.Timestamp, Lookup: lookup(m.Subject(), m.Headers()), Ack: m,
		})
	}
	return list, quiet(batch.Error())
}

// quiet returns nil for the end of a wait.
func quiet(err error) error {
	for _, e := range []error{context.DeadlineExceeded, context.Canceled, natsgo.ErrTimeout, jetstream.ErrNoMessages} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// Acknowledge implements ingest.Reader.
func (s *stream) Acknowledge(ctx context.Context, done []ingest.Message) error {
	for i := range done {
		m := done[i].Ack.(jetstream.Msg)
		var err error
		if i == len(done)-1 {
			err = m.DoubleAck(ctx) // the server has processed those before it then
		} else {
			err = m.Ack()
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return err
		}
	}
	return nil
}

// Lag implements ingest.Reader.
func (s *stream) Lag(ctx context.Context) (int64, error) {
	info, err := s.consumer.Info(ctx)
	if err != nil {
		return -1, err
	}
	return int64(info.NumPending) + int64(info.NumAckPending), nil
}

// Close implements ingest.Reader.
func (s *stream) Close() { s.nc.Close() }

// subjects are plain subscriptions.
type subjects struct {
	nc      *natsgo.Conn
	closed  <-chan struct{}
	in      chan *natsgo.Msg
	subs    []*natsgo.Subscription
	dropped uint64 // as reported
	batch   int
	count   ingest.Counter
}

func openSubjects(nc *natsgo.Conn, closed <-chan struct{}, c Config, o ingest.Options) (*subjects, error) {
	s := &subjects{nc: nc, closed: closed, in: make(chan *natsgo.Msg, c.MaxPending), batch: o.Batch, count: o.Count}
	for _, subject := range c.Subjects {
		sub, err := nc.ChanQueueSubscribe(subject, c.Durable, s.in)
		if err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		s.subs = append(s.subs, sub)
	}
	return s, nc.Flush()
}

// Read implements ingest.Reader.
func (s *subjects) Read(ctx context.Context) (list []ingest.Message, err error) {
	defer s.countDropped()
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case m := <-s.in:
		list = append(list, message(m))
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, nil
	case <-s.closed:
		return nil, fmt.Errorf("the connection to NATS is closed: %w", errors.Join(s.nc.LastError(), natsgo.ErrConnectionClosed))
	}
	for len(list) < s.batch {
		select {
		case m := <-s.in:
			list = append(list, message(m))
		default:
			return list, nil
		}
	}
	return list, nil
}

// message returns m. Its position is the id that its publisher gave it, if any.
func message(m *natsgo.Msg) ingest.Message {
	return ingest.Message{
		Position: m.Header.Get(natsgo.MsgIdHdr), Data: m.Data, Time: time.Now(), Lookup: lookup(m.Subject, m.Header),
	}
}

// countDropped counts what came while the queue was full.
func (s *subjects) countDropped() {
	total := uint64(0)
	for _, sub := range s.subs {
		if n, err := sub.Dropped(); err == nil {
			total += uint64(n)
		}
	}
	if total > s.dropped {
		s.count.Dropped(total - s.dropped)
		s.dropped = total
	}
}

// Acknowledge implements ingest.Reader; there is nothing to acknowledge.
func (s *subjects) Acknowledge(context.Context, []ingest.Message) error { return nil }

// Lag implements ingest.Reader.
func (s *subjects) Lag(context.Context) (int64, error) { return int64(len(s.in)), nil }

// Close implements ingest.Reader. What waits in the queue is dropped.
func (s *subjects) Close() {
	s.countDropped()
	s.nc.Close()
	s.count.Dropped(uint64(len(s.in)))
}
