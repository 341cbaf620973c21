package nats

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Two sites have NATS servers of their own, each a JetStream domain, joined by leaf nodes.
// One site leads a log; the other has a copy of it, a mirror with the same offsets, times
// and hence checks. Nodes of both sites publish to the leading site and read there. When it
// is lost the copy becomes the log: see promote. Nothing is decided by comparing clocks.
//
// A stream takes publishes on subjects of its own site only, and writes them into the log
// under the subjects that they have without sites:
//
//	<p>.put_<site>.<ns>.<c>   what the site's stream stores as <p>.log.<ns>.<c>
//
// so that a publish is stored by the site that it is meant for or not at all, also when the
// streams of both sites take publishes for a while.

// Sites are the two sites of an external NATS. The zero value means one site.
type Sites struct {
	// Here is the JetStream domain of the servers in url, Other that of the other site's:
	// 1 to 32 bytes of A-Z, a-z, 0-9, "_" and "-"; empty means one site.
	Here  string `json:"here"`
	Other string `json:"other"`
	// Home is the site that leads new logs, here or other; the same at both sites.
	Home string `json:"home"`
	// Automatic has the site with the copy take over by itself when the leading one has not
	// answered for Detect, in namespaces with both_sites. Otherwise an operator decides.
	Automatic bool `json:"automatic"`
	// Detect is how long a site is without an answer before it counts as lost, by one
	// node's own clock; 0 means 3s, at least 300ms.
	Detect hub.Duration `json:"detect"`
}

// The streams' metadata of two sites.
const (
	metaTerm   = "weir-term"   // how often another site took over, up to this log
	metaAlone  = "weir-alone"  // set while publishes do not wait for the copy
	metaFrom   = "weir-from"   // "<epoch>:<offset> ...": the epochs that this one continues, and how far each goes
	metaCopies = "weir-copies" // of a copy: the epoch that it is of
	metaWhole  = "weir-whole"  // of a copy: that it has had everything which is acknowledged in that epoch
)

func (c *Sites) enabled() bool { return c.Here != "" }

func (c *Sites) validate(url string, bad func(string, ...any)) {
	if *c == (Sites{}) {
		return
	}
	for _, name := range []string{c.Here, c.Other} {
		if name == "" || len(name) > 32 || strings.Trim(name, plain+"-") != "" {
			bad("sites: %q is no JetStream domain of 1 to 32 bytes of A-Z, a-z, 0-9, _ and -; set here and other to those of the two sites", name)
		}
	}
	switch {
	case c.Here == c.Other:
		bad("sites: here and other are both %q; they are two JetStream domains", c.Here)
	case c.Home != c.Here && c.Home != c.Other:
		bad("sites.home: %q is neither here (%s) nor other (%s)", c.Home, c.Here, c.Other)
	case url == "":
		bad("sites: they need NATS servers of your own at each site; set url")
	case c.Detect != 0 && c.Detect < hub.Duration(300*time.Millisecond):
		bad("sites.detect: %v is less than 300ms", c.Detect)
	}
}

// suffix distinguishes what is each site's own.
func (c *Sites) suffix() string {
	if c.Here == "" {
		return ""
	}
	return "_" + c.Here
}

// away returns the site that is not site.
func (c *Sites) away(site string) string {
	if site == c.Here {
		return c.Other
	}
	return c.Here
}

// A lead says which site leads a log, as this node follows it, and how often a site had taken it over then. life ends when
// another one is to be followed, which may be the same site again.
type lead struct {
	site string
	term uint64
	life context.Context
	end  context.CancelFunc
}

// A sited is what a log's metadata says of two sites.
type sited struct {
	epoch string
	term  uint64
	alone bool
	from  []hub.Position // the epochs that epoch continues, with the last offset of each
}

func parseSited(m map[string]string) *sited {
	st := &sited{epoch: m[metaEpoch], alone: m[metaAlone] != ""}
	st.term, _ = strconv.ParseUint(m[metaTerm], 10, 64) // a log that no site took over has none
	for f := range strings.FieldsSeq(m[metaFrom]) {
		epoch, offset, _ := strings.Cut(f, ":")
		if n, err := strconv.ParseUint(offset, 10, 64); err == nil {
			st.from = append(st.from, hub.Position{Epoch: epoch, Offset: n})
		}
	}
	return st
}

// write puts st into the metadata of a log.
func (st *sited) write(m map[string]string) {
	m[metaTerm] = strconv.FormatUint(st.term, 10)
	if st.alone {
		m[metaAlone] = "1"
	}
	var from []string
	for _, p := range st.from {
		from = append(from, p.Epoch+":"+strconv.FormatUint(p.Offset, 10))
	}
	if len(from) > 0 {
		m[metaFrom] = strings.Join(from, " ")
	}
}

// maxFrom bounds the epochs that one continues.
const maxFrom = 8

// after returns what is said of the log that begins epoch at a site that takes over. With
// complete its copy has all that was acknowledged up to last.
func (st *sited) after(epoch string, last uint64, complete bool) *sited {
	next := &sited{epoch: epoch, term: st.term + 1, alone: true}
	if !complete {
		return next
	}
	for _, p := range st.from {
		p.Offset = min(p.Offset, last)
		next.from = append(next.from, p)
	}
	next.from = append(next.from, hub.Position{Epoch: st.epoch, Offset: last})
	if len(next.from) > maxFrom {
		next.from = next.from[len(next.from)-maxFrom:]
	}
	return next
}

// reaches returns how far the log of st has what the log of epoch had; ok is false if it is
// not known to continue that.
func (st *sited) reaches(epoch string) (upTo uint64, ok bool) {
	i := slices.IndexFunc(st.from, func(p hub.Position) bool { return p.Epoch == epoch })
	if i < 0 {
		return 0, false
	}
	return st.from[i].Offset, true
}

// continues returns the epochs that epoch continues, which is that of st or one that st continues: the hub may
// come to it when the next site has taken over.
func (st *sited) continues(epoch string) []hub.Position {
	if st.epoch == epoch {
		return st.from
	}
	i := slices.IndexFunc(st.from, func(p hub.Position) bool { return p.Epoch == epoch })
	return st.from[:max(i, 0)]
}

// api begins the subjects of JetStream's API at the site that leads the log.
func (s *logPlace) api() string {
	l := s.lead.Load()
	if l == nil {
		return "$JS.API."
	}
	return apiOf(l.site)
}

func apiOf(site string) string { return "$JS." + site + ".API." }

// direct is the subject of direct reads.
func (s *logPlace) direct() string { return s.api() + "DIRECT.GET." + s.name() }

// into begins the subjects on which the stream takes publishes; it ends with a dot.
func (s *logPlace) into() string { return s.intoLed(s.lead.Load()) }

// intoLed is into where l leads the log; nil without two sites.
func (s *logPlace) intoLed(l *lead) string {
	if l == nil {
		return s.log
	}
	return s.intoOf(l.site)
}

func (s *logPlace) intoOf(site string) string {
	return s.b.cfg.Prefix + ".put_" + site + "." + s.opts.Load().LogName() + "."
}

// request makes a request of JetStream's API at the site that leads the log.
func (s *logPlace) request(ctx context.Context, what string, body, answer any) error {
	return s.b.requestAt(ctx, s.api()+what, body, answer)
}

// life ends when another site leads the log, or the broker is closed.
func (s *logPlace) life() context.Context {
	if l := s.lead.Load(); l != nil {
		return l.life
	}
	return s.b.ctx
}

// leads makes site the one that leads the log since its take-over number term.
func (s *logPlace) leads(site string, term uint64) {
	l := &lead{site: site, term: term}
	l.life, l.end = context.WithCancel(s.b.ctx)
	if before := s.lead.Swap(l); before != nil {
		before.end()
	}
}

// A siteLook is the stream of a log at one site at one instant.
type siteLook struct {
	site    string
	began   time.Time
	err     error // why nothing is known
	missing bool  // there is none
	copy    bool  // it is a copy
	whole   bool  // of a copy: see metaWhole
	sited         // of a copy: what the log's metadata said, when it was made
	base    uint64
	last    uint64
	least   int
	gone    bool
	config  jetstream.StreamConfig
	cluster *jetstream.ClusterInfo
}

// leadsLog reports whether the site takes publishes.
func (l *siteLook) leadsLog() bool { return l.err == nil && !l.missing && !l.copy }

// follows reports whether it is a copy of the log in epoch.
func (l *siteLook) follows(epoch string) bool {
	return l.err == nil && l.copy && l.config.Metadata[metaCopies] == epoch
}

// lookAt requests the state of the log's stream at site.
func (s *logPlace) lookAt(ctx context.Context, site string) *siteLook {
	l := &siteLook{site: site, began: time.Now()}
	var a streamAnswer
	err := s.b.requestAt(ctx, apiOf(site)+"STREAM.INFO."+s.name(), nil, &a)
	switch {
	case isCode(err, codeStreamNotFound):
		l.missing = true
		return l
	case err != nil:
		l.err = err
		return l
	}
	m := a.Config.Metadata
	l.config, l.cluster, l.last, l.copy, l.gone = a.Config, a.Cluster, a.State.LastSeq, a.Config.Mirror != nil, m[metaGone] != ""
	l.sited, l.whole = *parseSited(m), m[metaWhole] != "" && m[metaWhole] == m[metaCopies]
	var err2 error
	l.base, err = strconv.ParseUint(m[metaBase], 10, 64)
	l.least, err2 = strconv.Atoi(m[metaSizes])
	if err = errors.Join(err, err2); err != nil || l.epoch == "" {
		l.err = fmt.Errorf("stream %s of site %s is not one of ours; remove it, or set another prefix", s.name(), site)
	}
	return l
}

// copyConfig returns the configuration of the copy at site of the log that from has; whole
// is metaWhole.
func (s *logPlace) copyConfig(site string, from *siteLook, whole bool) jetstream.StreamConfig {
	opts := s.opts.Load()
	m := map[string]string{
		metaEpoch: from.epoch, metaBase: strconv.FormatUint(from.base, 10), metaSizes: strconv.Itoa(from.least), metaCopies: from.epoch,
	}
	from.write(m)
	delete(m, metaAlone)
	if from.gone {
		m[metaGone] = "1"
	}
	if parts := partitioning(opts); parts != "" {
		m[metaParts] = parts
	}
	if whole {
		m[metaWhole] = from.epoch
	}
	return jetstream.StreamConfig{
		Name: s.name(), Description: "copy of the log of the weir namespace " + opts.LogName(),
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxConsumers: -1, MaxMsgs: -1, MaxMsgSize: -1,
		MaxMsgsPerSubject: int64(opts.HistorySize), MaxBytes: opts.LogBytes(), MaxAge: time.Duration(opts.HistoryTTL),
		Duplicates: time.Duration(opts.IdempotencyWindow), Replicas: opts.Replicas, AllowDirect: true,
		Mirror: &jetstream.StreamSource{
			Name: s.name(), External: &jetstream.ExternalStream{APIPrefix: strings.TrimSuffix(apiOf(s.b.cfg.Sites.away(site)), ".")},
		},
		Metadata: m,
	}
}

// nextEpoch names the epoch that begins when site takes over from epoch: the same at every
// node that does it.
func (s *logPlace) nextEpoch(site, epoch string, term uint64) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AB"
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", site, epoch, term))
	b := sum[:8]
	for i := range b {
		b[i] = letters[b[i]&63]
	}
	return s.opts.Load().EpochPrefix() + string(b)
}

// Continues returns the epochs that the log of ns continues in epoch with the same offsets,
// each with its last offset: another site took over with a complete copy. Any goroutine.
func (b *streams) Continues(ns *hub.Namespace, epoch string) []hub.Position {
	s := b.all()[ns.LogName()]
	if s == nil {
		return nil
	}
	if st := s.sited.Load(); st != nil {
		return st.continues(epoch)
	}
	return nil
}
