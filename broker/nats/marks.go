package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// An outsideMarks keeps the marks of logs on external servers: in a stream beside the
// logs, the newest per namespace. An account that may not have that stream is served
// without marks, with a warning, and the stream is tried again.
type outsideMarks struct {
	b     *Broker
	first string // a namespace that has a log

	mu       sync.Mutex
	replicas int             // the most that a namespace here has
	logs     map[string]bool // the namespaces that have a log
	written  map[string]mark
	why      error  // why no marks are kept; nil while they are
	logged   string // what was logged of it
	weak     bool   // the stream has fewer replicas than it should
}

// marksRetry is how often marks that cannot be kept are tried again.
const marksRetry = 10 * time.Second

var errNotPermitted = errors.New("the NATS account has no permission")

// No namespace has a name with capitals.
func (b *connection) marksStream() string { return b.cfg.Prefix + "_MARKS" }
func (b *connection) markSubject(ns string) string {
	return b.cfg.Prefix + ".mark" + b.cfg.Sites.suffix() + "." + ns
}

// prepareMarks finds out whether external servers can keep marks of the logs.
func (b *Broker) prepareMarks(ctx context.Context, namespaces []hub.Namespace) error {
	if b.server != nil {
		return nil
	}
	o := &outsideMarks{b: b, written: map[string]mark{}, logs: map[string]bool{}}
	for _, n := range namespaces {
		o.admit(n)
	}
	if len(o.logs) == 0 {
		return nil
	}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	b.outside.Store(o)
	return nil
}

// admit counts a namespace in, and reports whether the stream should have more replicas
// for it.
func (o *outsideMarks) admit(n hub.Namespace) (more bool) {
	if n = n.WithDefaults(); n.Durability == hub.None {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.logs) == 0 {
		o.first = n.LogName()
	}
	o.logs[n.LogName()] = true
	more = n.Replicas > o.replicas
	o.replicas = max(o.replicas, n.Replicas)
	return more
}

// count returns how many namespaces have a log.
func (o *outsideMarks) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.logs)
}

// targetReplicas returns how many replicas the stream should have.
func (o *outsideMarks) targetReplicas() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replicas
}

// prepare finds the stream, before the logs are compared with it. It waits while one
// that may exist cannot be looked at, as the logs do, and notes other errors.
func (o *outsideMarks) prepare(ctx context.Context) error {
	for n := 0; ; n++ {
		err := o.ensure(ctx, false)
		if err == nil || !o.mayCome(ctx, err) {
			o.found(err)
			return nil
		}
		if n > 0 {
			o.b.waits(fmt.Sprintf("mark of the log of namespace %q", o.first), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stream %s: %w", o.b.marksStream(), errors.Join(ctx.Err(), err))
		case <-time.After(retryAfter(n)):
		}
	}
}

// create makes the stream if there is none. The logs were made before: an account that
// has room for no more than them keeps them.
func (o *outsideMarks) create(ctx context.Context) {
	if errors.Is(o.missing(), errAbsent) {
		o.found(o.ensure(ctx, true))
	}
}

var errAbsent = errors.New("there is no such stream")

// mayCome reports whether the stream may exist and be back shortly, after err.
func (o *outsideMarks) mayCome(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, errAbsent), hopeless(err):
		return false
	case errors.Is(err, natsgo.ErrNoResponders): // is there no JetStream yet, or is it another account's, who exports but the logs?
		var a jetstream.StreamInfo
		var refused *apiError
		err := o.b.request(ctx, "STREAM.INFO."+o.b.cfg.Prefix+"_"+o.first, nil, &a)
		return err != nil && (!errors.As(err, &refused) || !hopeless(err) && !isCode(err, codeStreamNotFound))
	}
	return true
}

// ensure looks at the stream once, creates it if it may, and gives it as many replicas
// as the best of the logs has: which namespace came first makes no difference.
func (o *outsideMarks) ensure(ctx context.Context, create bool) error {
	name, subjects := o.b.marksStream(), []string{o.b.markSubject("*")}
	var have jetstream.StreamInfo
	err := o.b.request(ctx, "STREAM.INFO."+name, nil, &have)
	switch {
	case isCode(err, codeStreamNotFound) && !create:
		return errAbsent
	case isCode(err, codeStreamNotFound):
		err = o.put(ctx, "CREATE", jetstream.StreamConfig{
			Name: name, Description: "how far the logs of weir had come", Subjects: subjects,
			Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, MaxConsumers: -1, MaxMsgs: -1, MaxMsgSize: -1, MaxBytes: -1,
			Replicas: o.targetReplicas(), Discard: jetstream.DiscardOld,
		})
		if err != nil && !isCode(err, codeNameInUse) { // another node was faster
			return fmt.Errorf("create it: %w", err)
		}
	case err != nil:
		return err
	case !slices.Equal(have.Config.Subjects, subjects):
		return fmt.Errorf("stream %s has the subjects %q, not %q: it is not one of ours; remove it, or set another prefix", name, have.Config.Subjects, subjects)
	case have.Config.Replicas < o.targetReplicas():
		have.Config.Replicas = o.targetReplicas()
		o.raised(o.put(ctx, "UPDATE", have.Config))
	}
	if err := o.b.probe(ctx, o.b.markSubject(o.first)); err != nil {
		return err
	}
	_, _, err = o.read(ctx, o.first)
	return err
}

func (o *outsideMarks) put(ctx context.Context, verb string, cfg jetstream.StreamConfig) error {
	var a jetstream.StreamInfo
	return o.b.request(ctx, "STREAM."+verb+"."+cfg.Name, cfg, &a)
}

// raised notes whether the replicas were raised. The marks are kept with fewer as well.
func (o *outsideMarks) raised(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && !o.weak {
		o.b.log.Warn("marks of the logs have fewer replicas than the logs", "stream", o.b.marksStream(), "want", o.replicas, "err", err, "retry", marksRetry)
	}
	o.weak = err != nil
}

// probe publishes on subject what the stream behind it must refuse. The way to a
// stream that has just been made may not be known briefly.
func (b *connection) probe(ctx context.Context, subject string) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	for n := 1; ; n++ {
		_, err := b.requestWithRetry(ctx, refusedOn(subject))
		if !errors.Is(err, natsgo.ErrNoResponders) || ctx.Err() != nil || n > 20 {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		}
	}
}

// found notes whether marks are kept from now on, and logs it if that is news.
func (o *outsideMarks) found(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	o.why = err
	if text == o.logged || errors.Is(err, errAbsent) {
		return
	}
	o.logged = text
	name := o.b.marksStream()
	if err == nil {
		clear(o.written)
		o.b.log.Info("marks of the logs are kept", "stream", name)
		return
	}
	o.b.log.Warn("marks of the logs cannot be kept: a log that loses its end while no node is connected is not found out, "+
		"and clients whose positions have no check may continue without a gap", "stream", name, "err", err,
		"grant", fmt.Sprintf("one more stream, and publishing to $JS.API.STREAM.{INFO,CREATE,UPDATE,MSG.GET}.%s and to %s", name, o.b.markSubject("*")),
		"retry", marksRetry)
}

// complete reports whether there is nothing to try again.
func (o *outsideMarks) complete() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why == nil && !o.weak
}

// missing returns why no marks are kept, nil while they are. Any goroutine.
func (o *outsideMarks) missing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// run tries again what could not be done at the start.
func (o *outsideMarks) run() {
	t := time.NewTicker(marksRetry)
	defer t.Stop()
	for {
		select {
		case <-o.b.ctx.Done():
			return
		case <-t.C:
		}
		if o.complete() || !o.b.connected.Load() {
			continue
		}
		err := o.ensure(o.b.ctx, true)
		if o.b.ctx.Err() == nil {
			o.found(err)
		}
	}
}

// last returns the mark of ns that was written last.
func (o *outsideMarks) last(ctx context.Context, ns string) (m mark, known bool, err error) {
	if o.missing() != nil {
		return mark{}, false, nil
	}
	m, known, err = o.read(ctx, ns)
	if isCode(err, codeStreamNotFound) || err != nil && hopeless(err) {
		o.found(err)
		return mark{}, false, nil
	}
	return m, known, err
}

func (o *outsideMarks) read(ctx context.Context, ns string) (m mark, known bool, err error) {
	var a struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
	}
	err = o.b.request(ctx, "STREAM.MSG.GET."+o.b.marksStream(), map[string]string{"last_by_subj": o.b.markSubject(ns)}, &a)
	switch {
	case isCode(err, codeNoMessage):
		return mark{}, false, nil
	case err != nil:
		return mark{}, false, err
	}
	return m, json.Unmarshal(a.Message.Data, &m) == nil, nil
}

// write sends the marks that have changed. It does not wait: the next mark follows.
func (o *outsideMarks) write(logs map[string]mark) error {
	if o.missing() != nil {
		return nil
	}
	for ns, m := range logs {
		subject := o.b.markSubject(ns)
		if err := o.b.denied(subject); err != nil { // of the write before
			o.found(err)
			return nil
		}
		o.mu.Lock()
		same := o.written[ns] == m
		o.written[ns] = m
		o.mu.Unlock()
		if same {
			continue
		}
		body, err := json.Marshal(m)
		if err == nil {
			err = o.b.nc.PublishMsg(&natsgo.Msg{Subject: subject, Data: body})
		}
		if err != nil {
			o.mu.Lock()
			delete(o.written, ns)
			o.mu.Unlock()
			return err
		}
	}
	return nil
}

// settle waits until the marks that were written are stored: what the stream refuses
// after them is answered then.
func (o *outsideMarks) settle() error {
	if o.missing() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := o.b.nc.RequestMsgWithContext(ctx, refusedOn(o.b.markSubject(o.first)))
	return err
}

// refusedOn returns what a stream that listens on subject must refuse.
func refusedOn(subject string) *natsgo.Msg {
	return &natsgo.Msg{Subject: subject, Header: natsgo.Header{natsgo.ExpectedStreamHdr: {"none"}}}
}

// noteDenial remembers the subject that err, which the client library reports aside,
// says may not be published to: the request itself gets no answer.
func (b *connection) noteDenial(err error) {
	if !errors.Is(err, natsgo.ErrPermissionViolation) {
		return
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	if subject, _, end := strings.Cut(rest, `"`); ok && end {
		b.denials.Store(subject, struct{}{})
	}
}

// denied returns an error if the server refused the last message to subject.
func (b *connection) denied(subject string) error {
	if _, ok := b.denials.Load(subject); !ok {
		return nil
	}
	return fmt.Errorf("%w to publish to %s", errNotPermitted, subject)
}
