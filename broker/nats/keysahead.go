package nats

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A server that opens a log's directory reads the messages of idempotency_window one by one for their keys, about 500,000 a
// second, while all clients wait. So a process that hands its directory over sends the keys, and makes the log's
// duplicate_window short for as long as no server has it open: then none are read. Who finds it short has the keys, or looks them
// up (see storedKeys): also a process that comes after a crash.

const (
	// narrowWindow is the shortest duplicate_window that NATS allows.
	narrowWindow = 100 * time.Millisecond
	// fewKeys is how many messages of idempotency_window a server may read when it opens a directory: some 20 ms.
	fewKeys = 10_000
	// mostRecent bounds the keys that a log in this process keeps, of 40 bytes each. With more of them the next process looks them up.
	mostRecent = 1 << 20
	// finishWithin bounds what is sent of all logs while clients wait.
	finishWithin = 2 * time.Second
)

// recentKeys are the idempotency keys that a log of the server in this process has stored within idempotency_window.
type recentKeys struct {
	mu      sync.Mutex
	entries []recentKey // oldest first, from start
	start   int
	since   time.Time // what was stored after it is in entries
}

type recentKey struct {
	id  hub.KeyID
	seq uint64
	at  int64 // Unix nanoseconds
}

// add notes that the message at seq has id.
func (r *recentKeys) add(id hub.KeyID, seq uint64, window time.Duration) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.start < len(r.entries) && r.entries[r.start].at < now.Add(-window).UnixNano() {
		r.start++
	}
	if len(r.entries)-r.start >= mostRecent {
		r.since = time.Unix(0, r.entries[r.start].at)
		r.start++
	}
	if r.start > 16 && r.start > len(r.entries)/2 { // amortised one copy for each
		r.entries = r.entries[:copy(r.entries, r.entries[r.start:])]
		r.start = 0
	}
	r.entries = append(r.entries, recentKey{id, seq, now.UnixNano()})
}

// missing notes that a message was stored, or may be, whose key is not in entries.
func (r *recentKeys) missing() {
	r.mu.Lock()
	r.since = time.Now()
	r.mu.Unlock()
}

// after returns those of messages after seq; complete reports that they are all of the window.
func (r *recentKeys) after(seq uint64, window time.Duration) (list []recentKey, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.entries[r.start:] {
		if k.seq > seq {
			list = append(list, k)
		}
	}
	return list, time.Since(r.since) > window
}

// noteKey notes the key of p, which was stored at seq. The server has to be alone in this process.
func noteKey(p *pending, seq uint64) {
	if s := p.s; p.p.IdempotencyKey != "" && s.b.server != nil && s.b.cfg.Cluster.Name == "" {
		s.recent.add(p.p.KeyID(), seq, time.Duration(s.opts.Load().IdempotencyWindow))
	}
}

// KeysAhead are the idempotency keys that another process has of this one's logs before it opens their directory.
type KeysAhead struct {
	send func(piece []byte) error
	logs map[*stream]*sentKeys
}

// sentKeys are those of one log that the server need not read.
type sentKeys struct {
	lookUp bool   // there are too many: the other process looks them up
	upTo   uint64 // the message whose key was sent last
}

// ExportKeys sends to the process that is to open the directory which idempotency keys the logs have, in pieces for its ImportKeys,
// and returns what Suspend continues. It returns nil for servers that are part of a cluster. It may be called while publishes are stored.
func ExportKeys(ctx context.Context, b *Broker, send func(piece []byte) error) (*KeysAhead, error) {
	if b.server == nil || b.cfg.Cluster.Name != "" {
		return nil, nil //nolint:nilnil // there is nothing to continue
	}
	a := &KeysAhead{send: send, logs: map[*stream]*sentKeys{}}
	for _, s := range b.all() {
		if !s.durable() {
			continue
		}
		n, err := inWindow(ctx, s)
		if err != nil {
			return nil, err
		}
		_, complete := s.recent.after(0, time.Duration(s.opts.Load().IdempotencyWindow))
		if n <= b.fewKeys || !complete && n <= mostRecent {
			continue // the server reads them
		}
		a.logs[s] = &sentKeys{lookUp: !complete}
		if err := a.sendKeys(s, 0); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// inWindow returns how many messages of s a server that opens it reads.
func inWindow(ctx context.Context, s *stream) (uint64, error) {
	in, err := s.look(ctx)
	window := time.Duration(s.opts.Load().IdempotencyWindow)
	if err != nil || in.last == 0 || s.serverTime().Sub(in.lastAt) > window {
		return 0, err
	}
	p, err := s.b.reads.get(ctx, s.direct(), query{StartTime: s.serverTime().Add(-window).UTC().Format(time.RFC3339Nano), Batch: 1})
	if err != nil || len(p.messages) == 0 {
		return 0, err
	}
	return in.last - p.messages[0].seq + 1, nil
}

// sendKeys sends the keys of s that were not sent yet; the log ends at last, 0 if it does not yet.
func (a *KeysAhead) sendKeys(s *stream, last uint64) error {
	const perPiece = 4096
	k := a.logs[s]
	if k.lookUp {
		return nil
	}
	list, complete := s.recent.after(k.upTo, time.Duration(s.opts.Load().IdempotencyWindow))
	if !complete {
		k.lookUp = true
		return nil
	}
	for {
		n := min(len(list), perPiece)
		end := uint64(0)
		if n == len(list) {
			end = last
		}
		if err := a.send(appendKeys(nil, s.opts.Load().LogName(), end, list[:n])); err != nil {
			return err
		}
		if n == len(list) {
			break
		}
		list = list[n:]
	}
	if len(list) > 0 {
		k.upTo = list[len(list)-1].seq
	}
	return nil
}

// finish sends the keys of what was stored since ExportKeys, and has no server read them.
func (a *KeysAhead) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), finishWithin)
	defer cancel()
	for s := range a.logs {
		if sharePending(s.b.out, s) > 0 {
			continue // its answer is not here yet, and so its key is not
		}
		in, err := s.look(ctx)
		if err == nil {
			err = a.sendKeys(s, in.last)
		}
		if err == nil {
			err = narrow(ctx, s, in)
		}
		if err != nil {
			s.b.log.Warn("the next process reads all idempotency keys when it opens the directory", "namespace", s.opts.Load().Title(), "err", err)
		}
	}
}

// sharePending is how many publishes to s have no answer.
func sharePending(o *outbox, s *stream) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return s.share.count
}

// narrow has the server that opens the log next, which is in, read no keys.
func narrow(ctx context.Context, s *stream, in info) error {
	s.keys.Store(newStoredKeys(s, in.last, in.last, true)) // should this process take the directory back
	cfg := in.config
	cfg.Duplicates = narrowWindow
	return s.put(ctx, "UPDATE", cfg)
}

// A piece of keys is the log's name with its length before it, the log's end if the piece is the last, otherwise 0, and then
// keys, each with the number of its message. Numbers are unsigned varints.

func appendKeys(b []byte, log string, last uint64, list []recentKey) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(log))), log...)
	b = binary.AppendUvarint(b, last)
	for _, k := range list {
		b = binary.AppendUvarint(append(b, k.id[:]...), k.seq)
	}
	return b
}

var errKeys = errors.New("a piece of idempotency keys is damaged")

// handedKeys are those that another process has sent of a log.
type handedKeys struct {
	last uint64 // the log's end, when it has them all; 0 until then
	ids  map[hub.KeyID]uint64
}

// ImportKeys notes a piece that ExportKeys or Suspend of another process has sent. It is called before Start.
func ImportKeys(b *Broker, piece []byte) error {
	size, n := binary.Uvarint(piece)
	if n <= 0 || size > uint64(len(piece)-n) {
		return errKeys
	}
	log, rest := string(piece[n:n+int(size)]), piece[n+int(size):]
	last, n := binary.Uvarint(rest)
	if n <= 0 {
		return errKeys
	}
	if b.handed == nil {
		b.handed = map[string]*handedKeys{}
	}
	h := b.handed[log]
	if h == nil {
		h = &handedKeys{ids: map[hub.KeyID]uint64{}}
		b.handed[log] = h
	}
	for rest = rest[n:]; len(rest) > 0; rest = rest[n:] {
		var id hub.KeyID
		if len(rest) <= len(id) || len(h.ids) >= 2*mostRecent {
			return errKeys
		}
		copy(id[:], rest)
		rest = rest[len(id):]
		var seq uint64
		if seq, n = binary.Uvarint(rest); n <= 0 || seq == 0 {
			return errKeys
		}
		h.ids[id] = seq
	}
	h.last = last
	return nil
}

// keysOfOpened has the keys recognized that the server has not read of the log up to last: those that were sent with the
// directory, or if they are not complete by looking them up.
func keysOfOpened(s *stream, last uint64) {
	if k := s.keys.Load(); k != nil && k.complete && k.upTo == last {
		return
	}
	k := newStoredKeys(s, last, last, true)
	if h := s.handed; h != nil && h.last == last {
		k.ids, k.complete = h.ids, true
	}
	s.keys.Store(k)
}

// openedKeys starts what a log that this process has opened, which is in, notes of its keys.
func openedKeys(s *stream, in info) {
	s.handed = nil // keys has what is needed of it
	window := time.Duration(s.opts.Load().IdempotencyWindow)
	if k := s.keys.Load(); k != nil && k.complete {
		for id, seq := range k.ids {
			s.recent.add(id, seq, window)
		}
	} else if in.last > 0 && s.serverTime().Sub(in.lastAt) <= window {
		s.recent.missing()
	}
}
