package nats

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// There are messages of which NATS servers do not know the idempotency keys.
//
// Servers in a cluster keep none of a mirror: they set its duplicate_window to 0, and an update that makes it a log sets
// the window again but reads no key of what is stored (nats-server 2.15: fixCfgMirrorWithDedupWindow and rebuildDedupe). So a log
// does not recognize what it has copied from another site. And a server that starts reads the messages of the last
// duplicate_window one by one, while all clients wait for a directory that changes its process: so that is made short before, and
// what is older is not read (see KeysAhead).
//
// A node that was not sent these keys looks them up: within idempotency_window it reads, before it sends a publish with a
// key, which keys the stored messages of the channel have. These messages are a fixed set: what is stored later, the log
// recognizes itself. Hence the order of events decides, and nothing else has to be excluded meanwhile.

// A storedKeys has the idempotency keys of messages that a log's server does not know.
type storedKeys struct {
	// Fixed.
	s     *stream
	base  uint64    // the log's end when this site took over, or the server was stopped
	upTo  uint64    // the server knows the keys of the messages after it
	until time.Time // when the message at base is older than idempotency_window; by this node's monotonic clock
	// seen says that this node saw the change of sites, or opened the log; otherwise that may be long ago.
	seen bool
	// complete says that ids has all keys: another process sent them with its directory.
	complete bool

	// mu is locked while the outbox is, never the other way round.
	mu      sync.Mutex
	ids     map[hub.KeyID]uint64 // the sequence of each key, in the channels that were read
	read    map[string]bool      // channels that were
	reading map[string]bool      // channels that are being read
	since   *time.Time           // see from; nil while unknown
}

const (
	// copiedAhead is how many messages after base may have been copied: they were proposed to the replicas but not stored yet
	// when the copy became the log. It is used where the exact number is not known.
	copiedAhead = 16384
	// mostKeys bounds the keys, and the channels, that are kept: past it the channels are read again.
	mostKeys = 1 << 18
	// keysAtOnce is how many channels are read at once, keysAhead how many waiting publishes
	// are looked at for the next ones.
	keysAtOnce = 32
	keysAhead  = 256
	// clocksApart is how much the clocks of the sites' servers may differ. It matters to nodes alone that start
	// after a change of sites: after idempotency_window and this much longer they look nothing up.
	clocksApart = 2 * time.Hour
)

func newStoredKeys(s *stream, base, upTo uint64, seen bool) *storedKeys {
	return &storedKeys{
		s: s, base: base, upTo: upTo, seen: seen, until: time.Now().Add(time.Duration(s.opts.Load().IdempotencyWindow)),
		ids: map[hub.KeyID]uint64{}, read: map[string]bool{}, reading: map[string]bool{},
	}
}

// crossed has this node look up the keys of what the log that l is copied. It is called
// before anything is published there, and when that log has stored all (see settled).
func crossed(ctx context.Context, w *siteLog, l *siteLook) {
	upTo := l.base + copiedAhead
	if now := w.s.lookAt(ctx, l.site); now.leadsLog() && now.epoch == l.epoch {
		upTo = now.last
	}
	w.s.keys.Store(newStoredKeys(w.s, l.base, upTo, true))
}

// keysAtStart is crossed for a node that starts, when l leads the log.
func keysAtStart(w *siteLog, l *siteLook) {
	if l.term > 0 && l.base > 0 {
		w.s.keys.Store(newStoredKeys(w.s, l.base, min(l.last, l.base+copiedAhead), false))
	}
}

// narrowed reports whether the server in this process has the log, which is in, with a shorter window than the namespace's:
// another process has handed the directory over, or this one takes it back.
func narrowed(s *stream, in info) bool {
	return s.b.server != nil && s.b.cfg.Cluster.Name == "" && in.last > 0 && in.config.Duplicates < time.Duration(s.opts.Load().IdempotencyWindow)
}

// recognize returns where the log has a message with the idempotency key of p that its server does not know; 0 if it has
// none. known is false while that is being looked up. The outbox's lock is held.
func recognize(s *stream, p *pending) (seq uint64, known bool) {
	if p.p.IdempotencyKey == "" || p.named && p.sent == 0 {
		return 0, true
	}
	k := s.keys.Load()
	switch {
	case k == nil:
		return 0, true
	case time.Now().After(k.until):
		s.keys.CompareAndSwap(k, nil)
		return 0, true
	case s.crossing.Load(), !s.verified(): // its place is said as of the epoch, which may be that of before
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.complete || k.read[p.p.Channel] {
		return k.ids[p.p.KeyID()], true
	}
	if len(k.ids)+len(k.read) >= mostKeys && len(k.reading) == 0 {
		clear(k.ids)
		clear(k.read)
	}
	k.begin(p)
	for i, q := range s.share.order {
		if i >= keysAhead || len(k.reading) >= keysAtOnce || len(k.ids)+len(k.read) >= mostKeys {
			break
		}
		if !q.answered && q.p.IdempotencyKey != "" && (!q.named || q.sent > 0) {
			k.begin(q)
		}
	}
	return 0, false
}

// begin has the channel of p read, if it is not. k.mu and the outbox's lock are held.
func (k *storedKeys) begin(p *pending) {
	o, channel := k.s.b.out, p.p.Channel
	if k.read[channel] || k.reading[channel] || o.closed != nil {
		return
	}
	k.reading[channel] = true
	o.b.wg.Go(func() { // before close returns, hence before Close waits
		found, err := k.find(k.s.life(), channel)
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.reading, channel)
		if err != nil {
			o.b.log.Debug("idempotency keys of stored messages cannot be read yet", "channel", channel, "err", err)
			return // the outbox tries what it keeps again, see bridgeEvery
		}
		for id, seq := range found {
			k.ids[id] = seq
		}
		k.read[channel] = true
		o.nudge()
	})
}

// find reads the keys of the channel's messages that the server does not know. Any replica answers, and may be behind: the
// leader says which message of the channel is the last. Where there is one copy it has all.
func (k *storedKeys) find(ctx context.Context, channel string) (map[hub.KeyID]uint64, error) {
	ctx, cancel := k.s.b.bound(ctx)
	defer cancel()
	from, err := k.from(ctx)
	if err != nil {
		return nil, err
	}
	if from.After(never) {
		return nil, nil
	}
	subject := k.s.log + token(k.s.opts.Load().Name, channel)
	one, last := k.s.opts.Load().Replicas <= 1, uint64(0)
	if !one {
		m, seq, at, err := k.s.leaderRead(ctx, map[string]any{"last_by_subj": subject})
		if err != nil || m == nil || seq <= k.upTo && at.Before(from) {
			return nil, err
		}
		last = min(seq, k.upTo)
	}
	found := map[hub.KeyID]uint64{}
	q := query{NextFor: subject, StartTime: from.UTC().Format(time.RFC3339Nano), Batch: readBatch}
	if from.IsZero() {
		q.StartTime, q.Seq = "", 1
	}
	for {
		p, err := k.s.b.reads.get(ctx, k.s.direct(), q)
		if err != nil {
			return nil, err
		}
		for _, st := range p.messages {
			if id, err := base64.RawURLEncoding.DecodeString(st.id); err == nil && len(id) == len(hub.KeyID{}) && st.seq <= k.upTo {
				found[hub.KeyID(id)] = st.seq
			}
			q.StartTime, q.Seq = "", st.seq+1
		}
		if one && p.pending == 0 || !one && q.Seq > last || q.Seq > k.upTo {
			return found, nil
		}
		if len(p.messages) == 0 { // that replica is behind
			select {
			case <-ctx.Done():
				return nil, k.s.b.reads.late(ctx)
			case <-time.After(noReaderEvery):
			}
		}
	}
}

// never is after the time of every message.
var never = time.Unix(1<<40, 0)

// from returns when the oldest message was stored whose key counts: idempotency_window before the one at base, by the
// clock of the same servers. The zero Time means that all count, for that one is gone; a
// time after never that none does.
func (k *storedKeys) from(ctx context.Context) (time.Time, error) {
	k.mu.Lock()
	since := k.since
	k.mu.Unlock()
	if since != nil {
		return *since, nil
	}
	m, at, err := k.s.messageAt(ctx, k.base)
	if err != nil {
		return time.Time{}, fmt.Errorf("message at %d: %w", k.base, err)
	}
	window := time.Duration(k.s.opts.Load().IdempotencyWindow)
	var from time.Time
	if m != nil {
		from = at.Add(-window)
		if !k.seen && k.s.serverTime().Sub(at) > window+clocksApart {
			from = never.Add(time.Second)
		}
	}
	k.mu.Lock()
	k.since = &from
	k.mu.Unlock()
	return from, nil
}

// answerStored answers the publish called id, whose idempotency key the message at seq has.
func answerStored(o *outbox, id, seq uint64) {
	o.found(id, true)
	if s := streamOf(o, id); s != nil && s.site.deferAck(id, seq, true) {
		return
	}
	answerPublish(o, id, seq, true, []byte("{}"), nil)
}
