package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A siteLog finds out which of two sites leads a log, keeps the copy, and knows how far it
// has come. Its run looks at both sites about four times a second, confirms at the copy as often as it
// can while publishes wait for it: looking at both takes the longest while one is silent.
type siteLog struct {
	siteView

	// create: neither site has the log, so that it may be made: at the home site at the start, later at the one that led it.
	create atomic.Bool

	// Owned by run.
	joined uint64 // where the log was when publishes began to wait for this copy
	waited string // the epoch that joined is of
	// removed: at the last look neither site had the log.
	removed bool
}

// A siteView is what a siteLog has seen of both sites, and what waits for them.
type siteView struct {
	// Fixed.
	s    *stream
	cfg  *Sites
	kick chan struct{} // holds a token when it is to look now
	news chan struct{} // the same for the goroutine that delivers

	leading atomic.Pointer[siteLook] // the site that is to be followed, and the log there

	mu sync.Mutex
	// answered is when each site did last; seen that the other one led the log since this
	// process began.
	answered map[string]time.Time
	seen     bool
	lost     map[string]bool
	last     map[string]*siteLook // what each answered last
	copied   hub.Position         // how far the copy is known to have come
	alone    string               // the epoch in which publishes need no copy, as was seen last
	deferred []deferredAck        // publishes that are stored at one site
}

// siteEvery is how often both sites are asked, siteHurry how long to wait at least between
// two looks while publishes wait for one.
const (
	siteEvery = 250 * time.Millisecond
	siteHurry = time.Millisecond
)

func newSiteLog(s *stream) *siteLog {
	c := &s.b.cfg.Sites
	if !c.enabled() || !s.durable() {
		return nil
	}
	w := &siteLog{siteView: siteView{s: s, cfg: c, kick: make(chan struct{}, 1), news: make(chan struct{}, 1),
		answered: map[string]time.Time{}, lost: map[string]bool{}, last: map[string]*siteLook{}}}
	s.leads(c.Home, 0)
	return w
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// both reports whether publishes are acknowledged when both sites have them.
func (w *siteLog) both() bool { return w != nil && w.s.opts.Load().BothSites }

// detect is how long a site may be without an answer.
func (w *siteView) detect() time.Duration { return time.Duration(w.cfg.Detect) }

// look requests both sites at once.
func (w *siteView) look(ctx context.Context) (here, other *siteLook) {
	ctx, cancel := context.WithTimeout(ctx, min(w.detect()/2, time.Second))
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { other = w.s.lookAt(ctx, w.cfg.Other) })
	here = w.s.lookAt(ctx, w.cfg.Here)
	wg.Wait()
	return here, other
}

// leader returns the one of two looks that leads the log; nil if neither is known to.
func (w *siteView) leader(here, other *siteLook) *siteLook {
	switch {
	case here.leadsLog() && other.leadsLog():
		if here.term > other.term || here.term == other.term && here.site == w.cfg.Home {
			return here
		}
		return other
	case here.leadsLog():
		return here
	case other.leadsLog():
		return other
	}
	return nil
}

// settle finds out where the log is led, before it is used. It waits for a site that may lead it.
func (w *siteLog) settle(ctx context.Context) error {
	if w == nil {
		return nil
	}
	for n := 0; ; n++ {
		here, other := w.look(ctx)
		l := w.leader(here, other)
		switch {
		case l != nil:
			w.s.leads(l.site, l.term)
			w.update(here, other)
			keysAtStart(w, l)
			return nil
		case here.err == nil && other.err == nil && here.missing && other.missing:
			w.create.Store(true)
			return nil
		}
		err := errors.Join(here.err, other.err)
		if here.err == nil && here.copy && w.s.b.leadAtStart.Load() {
			err = w.promote(ctx, here, w.both() && here.whole)
		} else if err == nil {
			err = fmt.Errorf("%w: no site leads the log", hub.ErrUnavailable)
		}
		w.s.b.waits("the site that leads namespace "+w.s.opts.Load().Title(), err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("namespace %s: %w", w.s.opts.Load().Title(), errors.Join(ctx.Err(), err))
		case <-time.After(retryAfter(n)):
		}
	}
}

// run looks at the sites until the broker is closed.
func (w *siteLog) run() {
	w.create.Store(false)
	t := time.NewTicker(min(siteEvery, w.detect()/4))
	defer t.Stop()
	for {
		select {
		case <-w.s.b.ctx.Done():
			return
		case <-t.C:
			w.tick()
		}
	}
}

// confirms answers what waits for the copy until the broker is closed.
func confirms(w *siteLog) {
	for {
		select {
		case <-w.s.b.ctx.Done():
			return
		case <-w.kick:
			w.confirm()
		}
	}
}

// tick does what follows from one look at both sites.
func (w *siteLog) tick() {
	here, other := w.look(w.s.b.ctx)
	if w.s.b.ctx.Err() != nil {
		return
	}
	w.update(here, other)
	if here.err == nil && other.err == nil && here.missing && other.missing {
		makeAnew(w)
		return
	}
	w.removed = false
	w.create.Store(false)
	switch l, lead := w.leader(here, other), w.s.lead.Load(); {
	case l == nil || l.site != lead.site && l.term <= lead.term: // what led before is left there
		w.failOver(here)
	case l.term > lead.term:
		w.move(l)
	case l == other:
		w.keep(here, l)
	}
}

// makeAnew has the log made where it was led, as with one site: it was removed at both. That starts with the second look that
// finds none, so that the other nodes have seen it too: a publish that waits for the copy of what was removed is sent again.
func makeAnew(w *siteLog) {
	if w.removed {
		w.create.Store(true)
	} else {
		w.removed = true
		w.s.b.log.Warn("no site has the log any more; it is made anew", "namespace", w.s.opts.Load().Title(), "site", w.site())
		w.mu.Lock()
		w.deferred, w.copied, w.alone = nil, hub.Position{}, ""
		w.mu.Unlock()
		w.s.checked.Store(0)
		w.s.b.out.resend(w.s)
	}
	w.s.nudge()
	nudge(w.news)
}

// notified looks who leads the log: a node has said that another site does. Any goroutine.
func (w *siteLog) notified() {
	ctx, cancel := context.WithTimeout(w.s.b.ctx, w.detect())
	defer cancel()
	for _, site := range []string{w.cfg.Here, w.cfg.Other} {
		if l := w.s.lookAt(ctx, site); l.leadsLog() && l.term > w.s.lead.Load().term {
			w.move(l)
			return
		}
	}
}

// see looks whether the site that is not followed leads the log by now, unless it is lost: one who comes from a node that has
// seen it would get a gap that is none. It waits for siteEvery at most. Any goroutine.
func (w *siteLog) see(ctx context.Context) {
	if w == nil {
		return
	}
	lead := w.s.lead.Load()
	away := w.cfg.away(lead.site)
	w.mu.Lock()
	lost := w.lost[away]
	w.mu.Unlock()
	if lost {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, siteEvery)
	defer cancel()
	if l := w.s.lookAt(ctx, away); l.leadsLog() && l.term > lead.term {
		w.move(l)
	}
}

// ahead returns the look at the log that is to be followed and is not yet; nil for none.
func (w *siteView) ahead() *siteLook {
	if to := w.leading.Load(); to != nil && to.term > w.s.lead.Load().term {
		return to
	}
	return nil
}

// site is the one that leads the log, as far as this node knows.
func (w *siteView) site() string { return w.s.lead.Load().site }

// move has the goroutine that delivers follow the log to another site.
func (w *siteView) move(l *siteLook) {
	lead := w.s.lead.Load()
	for was := w.leading.Load(); ; was = w.leading.Load() {
		if l.term <= lead.term || was != nil && was.term >= l.term {
			return // it does
		}
		if w.leading.CompareAndSwap(was, l) {
			break
		}
	}
	lead.end() // what it waits for of the site before
	w.s.nudge()
	nudge(w.news)
}

// update notes what was seen.
func (w *siteView) update(looks ...*siteLook) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range looks {
		title := w.s.opts.Load().Title()
		switch was, known := w.answered[l.site]; {
		case l.err == nil && known && w.last[l.site] != nil && l.began.Before(w.last[l.site].began):
			w.answered[l.site] = now // what is known is newer
		case l.err == nil:
			w.answered[l.site], w.last[l.site] = now, l
			if l.site == w.site() && l.leadsLog() {
				w.alone = ""
				if l.sited.alone {
					w.alone = l.epoch
				}
			}
			w.seen = w.seen || l.site == w.cfg.Other && l.leadsLog()
			if w.lost[l.site] {
				w.s.b.log.Info("site answers again", "site", l.site, "namespace", title)
			}
			w.lost[l.site] = false
		case !known:
			w.answered[l.site] = now
		case !w.lost[l.site] && now.Sub(was) >= w.detect():
			w.lost[l.site] = true
			w.s.b.log.Error("site does not answer", "site", l.site, "namespace", title, "for", now.Sub(was).Round(time.Millisecond), "err", l.err)
		}
	}
}

// failOver has this site lead the log if the other one is lost and that is to happen by itself.
// A process that has not seen the other site lead since it began leaves it to an operator: it
// may have come back after the other site went on without it.
func (w *siteLog) failOver(here *siteLook) {
	w.mu.Lock()
	may := w.cfg.Automatic && w.lost[w.cfg.Other] && w.seen
	w.mu.Unlock()
	if !may || !w.both() || here.err != nil || !here.copy || !here.whole {
		return
	}
	// While both were looked at the silent one was waited for.
	if now := w.s.lookAt(w.s.b.ctx, here.site); now.err != nil || now.last != here.last {
		return
	}
	if err := w.promote(w.s.b.ctx, here, true); err != nil {
		w.s.b.log.Error("site cannot take over", "namespace", w.s.opts.Load().Title(), "err", err)
	}
}

// keep keeps the copy here of the log at the other site, which l is.
func (w *siteLog) keep(here, l *siteLook) {
	ctx, cancel := context.WithTimeout(w.s.b.ctx, w.detect())
	defer cancel()
	var err error
	switch {
	case here.err != nil:
		return
	case here.missing:
		err = w.put(ctx, w.cfg.Here, "CREATE", w.s.copyConfig(here.site, l, false))
		if isCode(err, codeNameInUse) { // another node was faster
			err = nil
		}
	case !here.copy:
		err = w.retire(ctx, here, l)
	case !here.follows(l.epoch) && here.whole && here.last > l.base:
		err = fmt.Errorf("the log at site %s has lost messages after offset %d that the copy has up to %d: remove one of them with nats stream rm %s at its site; "+
			"without the log, this site can take over", l.site, l.base, here.last, w.s.name())
	case !here.follows(l.epoch):
		w.s.b.log.Warn("copy is of another epoch; it is made anew", "namespace", w.s.opts.Load().Title(), "epoch", l.epoch)
		err = w.remove(ctx, here.site)
	default:
		err = w.pair(ctx, here, l)
	}
	if err != nil {
		w.s.b.log.Warn("copy of the log", "namespace", w.s.opts.Load().Title(), "site", here.site, "err", err)
	}
}

// closeEnough is how many messages a copy may lack when publishes begin to wait for it.
const closeEnough = 1000

// pair has publishes wait for the copy once it has come close, and notes in the copy when it
// has all that was stored before they did: from then on it may take over without a gap.
func (w *siteLog) pair(ctx context.Context, here, l *siteLook) error {
	whole := here.whole
	if w.both() {
		switch {
		case l.alone && here.last+closeEnough >= l.last:
			next := *parseSited(l.config.Metadata)
			next.alone = false
			cfg := l.config
			cfg.Metadata = maps.Clone(cfg.Metadata)
			delete(cfg.Metadata, metaAlone)
			next.write(cfg.Metadata)
			return w.put(ctx, l.site, "UPDATE", cfg)
		case l.alone:
			w.waited = ""
		case w.waited != l.epoch:
			w.waited, w.joined = l.epoch, l.last
		case here.last >= w.joined:
			whole = true
		}
	}
	want := w.s.copyConfig(here.site, l, whole && !l.alone)
	if sameCopy(&here.config, &want) {
		return nil
	}
	return w.put(ctx, here.site, "UPDATE", want)
}

// sameCopy reports whether have differs from want in nothing that we set. Servers in a cluster set the Duplicates of
// a mirror to 0, and so do others when they start.
func sameCopy(have, want *jetstream.StreamConfig) bool {
	for k, v := range have.Metadata {
		if strings.HasPrefix(k, "weir-") && want.Metadata[k] != v {
			return false
		}
	}
	for k, v := range want.Metadata {
		if have.Metadata[k] != v {
			return false
		}
	}
	return have.MaxMsgsPerSubject == want.MaxMsgsPerSubject && have.MaxBytes == want.MaxBytes && have.MaxAge == want.MaxAge &&
		(have.Duplicates == want.Duplicates || have.Duplicates == 0) && have.Replicas == want.Replicas
}

// retire removes the log that this site led before the other one took over, so that a copy
// can take its place. What only this one has was not acknowledged if the other one took over with
// all that was; otherwise it is left to an operator.
func (w *siteLog) retire(ctx context.Context, here, l *siteLook) error {
	upTo, ok := l.reaches(here.epoch)
	if !ok {
		upTo = l.base
	}
	if here.last > upTo && !(w.both() && ok) {
		return fmt.Errorf("site %s has %d messages that site %s lacks, after offset %d of epoch %s: back them up with nats stream backup %s, "+
			"then remove them with nats stream rm %s, and a copy is made", here.site, here.last-upTo, l.site, upTo, here.epoch, w.s.name(), w.s.name())
	}
	w.s.b.log.Warn("log of before the other site took over is removed", "namespace", w.s.opts.Load().Title(), "site", here.site,
		"epoch", here.epoch, "unacknowledged", here.last-min(upTo, here.last))
	return w.remove(ctx, here.site)
}

func (w *siteView) remove(ctx context.Context, site string) error {
	var a struct{ Success bool }
	err := w.s.b.requestAt(ctx, apiOf(site)+"STREAM.DELETE."+w.s.name(), nil, &a)
	if isCode(err, codeStreamNotFound) {
		return nil
	}
	return err
}

func (w *siteView) put(ctx context.Context, site, verb string, cfg jetstream.StreamConfig) error {
	var a jetstream.StreamInfo
	return w.s.b.requestAt(ctx, apiOf(site)+"STREAM."+verb+"."+cfg.Name, cfg, &a)
}

// A SiteStatus is what this node knows of a log that two sites have.
type SiteStatus struct {
	Namespace string
	Partition int
	// Leads is the site that leads the log, Term how often another one has taken it over.
	Leads string
	Term  uint64
	// Copy is the other site, Copied the last offset of its copy. Behind is how many messages that lacks, of which Whole says
	// that it has had all that is acknowledged: then it can take over without a gap.
	Copy   string
	Copied uint64
	Behind uint64
	Whole  bool
	// Alone says that publishes are acknowledged without the copy, for there was none.
	Alone bool
	// Lost are the sites that do not answer.
	Lost []string
	// Waiting are the publishes that the copy lacks.
	Waiting int
	// Kept are the messages that only the site which led before has, and which an operator is
	// to decide about.
	Kept uint64
}

// SiteLogs returns the logs that two sites have, in order; nil with one site. It does not wait.
func SiteLogs(b *Broker) []SiteStatus {
	if b.stateErr() != nil || !b.cfg.Sites.enabled() {
		return nil
	}
	var out []SiteStatus
	for _, s := range b.all() {
		if s.site != nil {
			out = append(out, s.site.status())
		}
	}
	slices.SortFunc(out, func(a, b SiteStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), a.Partition-b.Partition)
	})
	return out
}

func (w *siteView) status() SiteStatus {
	opts, leads := w.s.opts.Load(), w.site()
	st := SiteStatus{Namespace: opts.Name, Partition: opts.Partition, Leads: leads, Copy: w.cfg.away(leads)}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, site := range []string{w.cfg.Here, w.cfg.Other} {
		if w.lost[site] {
			st.Lost = append(st.Lost, site)
		}
	}
	log, copied := w.last[leads], w.last[st.Copy]
	if log == nil || !log.leadsLog() {
		return st
	}
	st.Term, st.Alone, st.Behind = log.term, log.alone, log.last
	switch {
	case copied == nil:
	case copied.follows(log.epoch):
		st.Copied, st.Behind, st.Whole = copied.last, log.last-min(copied.last, log.last), copied.whole
	case copied.leadsLog():
		upTo, ok := log.reaches(copied.epoch)
		if !ok {
			upTo = log.base
		}
		st.Kept = copied.last - min(upTo, copied.last)
	}
	for _, h := range w.deferred {
		if h.id != 0 {
			st.Waiting++
		}
	}
	return st
}
