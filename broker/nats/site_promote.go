package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// switchPatience is how long a copy may take to get what is left at the other site, which
// takes no publishes meanwhile.
const switchPatience = 10 * time.Second

// Promote has this site lead the logs of the namespaces, all of them if none is named. A site
// that leads and answers gives each one up first, so that nothing is missing. With one that does not
// answer the copy takes over as it is: positions stay valid if it is known to have all that was
// acknowledged (both_sites), otherwise every client gets a gap. The operator says by it that
// the other site does not take publishes any more. Logs that this site leads stay as they are.
//
// A node that waits at its start for a site that leads takes over all logs as it starts.
func Promote(ctx context.Context, b *Broker, namespaces ...string) error {
	if !b.cfg.Sites.enabled() {
		return errors.New("there is one site; broker.nats.sites says which there are")
	}
	switch err := b.stateErr(); {
	case errors.Is(err, hub.ErrClosed):
		return err
	case err != nil && len(namespaces) > 0:
		return fmt.Errorf("%w; a node that starts takes over all namespaces", err)
	case err != nil:
		b.leadAtStart.Store(true)
		return nil
	}
	named := map[string]bool{}
	for _, n := range namespaces {
		named[n] = false
	}
	var errs []error
	for _, s := range b.all() {
		opts := s.opts.Load()
		if _, ok := named[opts.Name]; s.site == nil || len(named) > 0 && !ok {
			continue
		}
		named[opts.Name] = true
		if err := s.site.lead(ctx); err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", opts.Title(), err))
		}
	}
	for n, found := range named {
		if !found {
			errs = append(errs, fmt.Errorf("%w: %s, with a log", hub.ErrUnknownNamespace, n))
		}
	}
	return errors.Join(errs...)
}

// lead is Promote for one log.
func (w *siteLog) lead(ctx context.Context) error {
	here, other := w.look(ctx)
	switch l := w.leader(here, other); {
	case here.err != nil:
		return here.err
	case l == here:
		return w.reopen(ctx, here)
	case !here.copy:
		return fmt.Errorf("site %s has no copy of the log", here.site)
	case l == other:
		return w.exchange(ctx, here, other)
	}
	return w.promote(ctx, here, w.both() && here.whole)
}

// reopen has the log here take publishes again, if an exchange has stopped half way.
func (w *siteLog) reopen(ctx context.Context, here *siteLook) error {
	into := w.s.intoOf(here.site) + ">"
	if slices.Equal(here.config.Subjects, []string{into}) {
		return nil
	}
	cfg := here.config
	cfg.Subjects = []string{into}
	cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: into, Destination: w.s.log + ">"}
	return w.put(ctx, here.site, "UPDATE", cfg)
}

// exchange takes over from other, which answers.
func (w *siteLog) exchange(ctx context.Context, here, other *siteLook) error {
	if !here.follows(other.epoch) {
		return fmt.Errorf("the copy at site %s is not of the log of site %s yet; wait until it is", here.site, other.site)
	}
	open := other.config
	// The transform stays: a publish that arrives during the update may still be stored, and without
	// it would be under a subject on which it is never read.
	shut := open
	shut.Subjects = []string{w.s.b.cfg.Prefix + ".shut_" + other.site + "." + w.s.opts.Load().LogName()}
	ctx, cancel := context.WithTimeout(ctx, switchPatience)
	defer cancel()
	err := w.put(ctx, other.site, "UPDATE", shut)
	if err == nil {
		err = w.drained(ctx, other.site, shut.Subjects[0])
	}
	if err == nil {
		here, err = w.catchUp(ctx)
	}
	if err == nil {
		err = w.promote(ctx, here, true)
	}
	if err == nil {
		return nil
	}
	again, cancel := context.WithTimeout(w.s.b.ctx, w.detect())
	defer cancel()
	// The copy may have become the log all the same.
	if now := w.s.lookAt(again, here.site); now.err == nil && now.copy {
		err = errors.Join(err, w.put(again, other.site, "UPDATE", open))
	}
	return err
}

// drained waits until the stream at site, whose only subject is subject now, has stored what it received before. NATS
// queues publishes, and stores those that were queued when the subjects changed afterwards. A message goes the same way that the
// stream must refuse. Of several replicas, what the leader has proposed may not be stored
// yet: see settled.
func (w *siteView) drained(ctx context.Context, site, subject string) error {
	m := mustRefuse(subject)
	for {
		answer, err := w.s.b.requestWithRetry(ctx, m)
		if err == nil {
			_, _, err = parseAck(answer.Data)
		}
		switch {
		case isCode(err, codeOtherStream):
			return w.settled(ctx, site)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for what site %s has received: %w", site, err)
		}
		w.s.pause(10 * time.Millisecond) // the queue is full, or the news of the subject is on its way
	}
}

// catchUp waits until the copy here has all of the other site's log, which grows no more.
func (w *siteLog) catchUp(ctx context.Context) (here *siteLook, err error) {
	for {
		var other *siteLook
		if here, other = w.look(ctx); here.err != nil || other.err != nil {
			return here, errors.Join(here.err, other.err)
		}
		if here.leadsLog() || here.follows(other.epoch) && here.last >= other.last { // another node may have been faster
			return here, nil
		}
		select {
		case <-ctx.Done():
			return here, fmt.Errorf("%w: the copy at site %s is at %d of %d", hub.ErrUnavailable, here.site, here.last, other.last)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// promote makes the copy here the log. complete says that it has all that was acknowledged. All nodes
// that do it write the same. It looks at the copy again: while here was looked at, the other site may have been
// waited for, which was silent, and what the copy has got meanwhile may have been acknowledged there.
func (w *siteLog) promote(ctx context.Context, here *siteLook, complete bool) error {
	s := w.s
	switch now := s.lookAt(ctx, here.site); {
	case now.err != nil:
		return now.err
	case now.leadsLog(): // another node was faster
		w.move(now)
		return nil
	case now.missing || now.config.Metadata[metaCopies] != here.config.Metadata[metaCopies] || here.whole && !now.whole:
		return fmt.Errorf("%w: the copy at site %s was made anew", hub.ErrUnavailable, here.site)
	default:
		here = now
	}
	next := here.sited.after(s.nextEpoch(here.site, here.epoch, here.term+1), here.last, complete)
	cfg := s.logConfig(here.site, next, here)
	ctx, cancel := context.WithTimeout(ctx, w.detect())
	defer cancel()
	if err := w.put(ctx, here.site, "UPDATE", cfg); err != nil {
		return err
	}
	s.b.log.Warn("site leads the log from now on", "namespace", s.opts.Load().Title(), "site", here.site, "epoch", next.epoch,
		"base", here.last, "complete", complete)
	if l := s.lookAt(ctx, here.site); l.leadsLog() {
		w.move(l)
	}
	if err := s.b.nc.Publish(siteNews(s.b), []byte(s.opts.Load().LogName())); err != nil {
		s.b.log.Debug("other nodes find the site out by themselves", "err", err)
	}
	return nil
}

// logConfig returns the configuration of the log at site, of which next is said, made of a copy.
func (s *storedLog) logConfig(site string, next *sited, copied *siteLook) jetstream.StreamConfig {
	cfg := s.config(next.epoch, copied.last, copied.least, copied.gone)
	into := s.intoOf(site)
	cfg.Subjects = []string{into + ">"}
	cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: into + ">", Destination: s.log + ">"}
	for _, k := range []string{metaTerm, metaAlone, metaFrom} {
		delete(cfg.Metadata, k)
	}
	next.write(cfg.Metadata)
	return cfg
}

// siteNews is the subject on which a node says that a site has taken over a log.
func siteNews(b *Broker) string { return b.cfg.Prefix + ".sites" }

// listenForSites looks at a log at once when a node says that a site has taken it over.
func listenForSites(b *Broker) error {
	if !b.cfg.Sites.enabled() {
		return nil
	}
	_, err := b.nc.Subscribe(siteNews(b), func(m *natsgo.Msg) {
		if s := b.all()[string(m.Data)]; s != nil && s.site != nil && b.ctx.Err() == nil {
			s.site.notified()
		}
	})
	return err
}

// cross follows the log to the site that leads it, and again if another one has taken over meanwhile, which may be the
// first one. Only run of the stream may call it.
func cross(s *stream) {
	if s.site == nil {
		return
	}
	for to := s.site.ahead(); to != nil && s.b.ctx.Err() == nil; to = s.site.ahead() {
		crossTo(s, to)
	}
}

// crossTo follows the log to where to leads it. What this node lacks of its own epoch, up to where the log continues
// that, is delivered first, while it still is that epoch: subscribers are taken to the next one as if they had it.
func crossTo(s *stream, to *siteLook) {
	w := s.site
	s.crossing.Store(true)
	ctx, cancel := context.WithTimeout(s.b.ctx, w.detect())
	if err := w.settled(ctx, to.site); err != nil {
		s.b.log.Warn("it is not known whether the log has stored all that it had copied; a publish that is sent again now may be stored twice",
			"namespace", s.opts.Load().Title(), "err", err)
	}
	crossed(ctx, w, to)
	cancel()
	s.leads(to.site, to.term) // from here on no epoch of before is adopted
	w.forget(to)
	upTo, ok := to.reaches(s.epochNow())
	if ok && !finishUntil(s, upTo) {
		return
	}
	s.checked.Store(0)
	s.crossing.Store(false)
	s.b.out.resend(s)
	s.b.log.Warn("log is led by another site", "namespace", s.opts.Load().Title(), "site", to.site, "epoch", to.epoch, "continued", ok)
}

// finishUntil is finish, again and again until it succeeds; false says that another site is to be followed before it
// did, or that the broker is closed.
func finishUntil(s *stream, upTo uint64) bool {
	for {
		err := finish(s, upTo)
		if err == nil {
			return true
		}
		if s.b.ctx.Err() != nil || s.site.ahead() != nil {
			return false
		}
		s.b.log.Warn("what was stored before another site led the log cannot be read yet", "namespace", s.opts.Load().Title(), "err", err)
		s.pause(retryEvery)
	}
}

// settled waits until the log at site has stored all that it had copied when it was one. Of several
// replicas, the leader may have proposed messages that are not stored yet, and publishes that are sent again are compared with what
// is stored (see storedKeys). A purge is replicated in order with the messages; the one here is of a subject that none has.
func (w *siteView) settled(ctx context.Context, site string) error {
	var a struct{ Purged uint64 }
	err := w.s.b.requestAt(ctx, apiOf(site)+"STREAM.PURGE."+w.s.name(), map[string]any{"filter": w.s.b.cfg.Prefix + ".settled"}, &a)
	if err == nil && a.Purged > 0 {
		err = fmt.Errorf("%d messages had a subject that no message has", a.Purged)
	}
	return err
}

// finish delivers what the channels miss up to upTo, from the copy that has become the log.
func finish(s *stream, upTo uint64) error {
	in, err := s.look(s.life())
	if err != nil {
		return err
	}
	in.epoch, in.first, in.following = s.epochNow(), min(in.first, upTo+1), true
	s.declareRemoved(in)
	end, err := s.leaderMessage(s.life(), map[string]any{"last_by_subj": s.log + ">"})
	if err != nil || end.seq == 0 {
		return err
	}
	upTo = min(upTo, end.seq)
	l := s.laggards(upTo, true)
	missing, _, from, err := s.missing(l, end, true)
	if err != nil || len(missing) == 0 && !l.whole {
		return err
	}
	if l.whole {
		from = min(from, l.wholeSince)
	}
	s.repairs.holes.Add(1)
	if err := s.scan(in, from, upTo, missing); err != nil {
		return err
	}
	s.skipTo(upTo) // what the log has no more
	return nil
}
