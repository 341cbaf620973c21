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

// catchUp waits until the copy here has all of the other site's log, which grows no more.
func (w *siteLog) catchUp(ctx context.Context) (here *siteLook, err error) {
	for {
		var other *siteLook
		if here, other = w.look(ctx); here.err != nil || other.err != nil {
			return here, errors.Join(here.err, other.err)
		}
		if here.copy && here.last >= other.last {
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
// that do it write the same.
func (w *siteLog) promote(ctx context.Context, here *siteLook, complete bool) error {
	s := w.s
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

// brokeOff reports whether this node could not follow the log before epoch to its end.
func (w *siteLog) brokeOff(epoch string) bool {
	if w == nil {
		return false
	}
	b := w.broken.Load()
	return b != nil && *b == epoch
}

// cross follows the log to the site that leads it. What this node lacks of the epoch before is
// delivered first, while it still is that epoch. Only run of the stream may call it.
func cross(s *stream) {
	w := s.site
	if w == nil {
		return
	}
	to := w.leading.Load()
	if to == nil || to.err != nil || to.site == w.site() {
		return
	}
	before := s.epochNow()
	upTo, ok := to.reaches(before)
	s.crossing.Store(true)
	ctx, cancel := context.WithTimeout(s.b.ctx, w.detect())
	if err := w.settled(ctx, to.site); err != nil {
		s.b.log.Warn("it is not known whether the log has stored all that it had copied; a publish that is sent again now may be stored twice",
			"namespace", s.opts.Load().Title(), "err", err)
	}
	crossed(ctx, w, to)
	cancel()
	s.leads(to.site)
	w.forget(to)
	if ok {
		if err := finish(s, upTo); err != nil {
			s.b.log.Error("log cannot be followed to the other site; clients get a gap", "namespace", s.opts.Load().Title(), "err", err)
			w.broken.Store(&to.epoch)
		}
	}
	s.checked.Store(0)
	s.crossing.Store(false)
	s.b.out.resend(s)
	s.b.log.Warn("log is led by another site", "namespace", s.opts.Load().Title(), "site", to.site, "epoch", to.epoch, "continued", ok)
}

// settled waits until the log at site has stored all that it had copied when it was one. Of several
// replicas, the leader may have proposed messages that are not stored yet, and publishes that are sent again are compared with what
// is stored (see siteKeys). A purge is replicated in order with the messages; the one here is of a subject that none has.
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
	l := s.laggards(upTo, true)
	end, err := s.leaderMessage(s.life(), map[string]any{"last_by_subj": s.log + ">"})
	if err != nil || end.seq == 0 {
		return err
	}
	end.seq = upTo
	missing, _, from, err := s.missing(l, end, true)
	if l.whole {
		from = min(from, l.wholeSince)
	}
	if err != nil || len(missing) == 0 && (!l.whole || l.wholeSince >= upTo) {
		return err
	}
	s.repairs.holes.Add(1)
	return s.scan(info{}, from, upTo, nil)
}
