package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Moving to another process: the logs with their epochs and offsets, their messages, what is
// remembered of removed ones, and the idempotency keys. To readers it is the same log.

// The fields of a piece of a moving log. Their meaning does not change; see takeover.State.
const (
	moveLog     = iota + 1 // name of the namespace: starts a log; a State of log fields follows
	moveHead               // log fields
	moveChannel            // channel fields; repeated
	moveMessage            // message fields; repeated, oldest first
	moveKey                // key fields; repeated, oldest first
)

const (
	logEpoch = iota + 1
	logLast
	logRemoved
	logForgot
)

const (
	channelName = iota + 1
	channelLast
	channelRemoved
)

const (
	messageChannel = iota + 1
	messageKey
	messageData
	messageAttributes // JSON
	messageTime
	messageOffset
	messagePrev
	messageAge // nanoseconds
)

const (
	keyID = iota + 1
	keyContent
	keyOffset
	keyAge
)

// pieceSize is about how much Export passes on at a time.
const pieceSize = 1 << 20

var errMoved = fmt.Errorf("%w: the log was moved to another process", hub.ErrUnavailable)

// An Ahead is what another process has of the logs already, see ExportAhead.
type Ahead struct{ logs map[*log]*sent }

// sent is what was sent of a log.
type sent struct {
	last     uint64              // messages and keys up to this offset
	channels map[*channel]uint64 // what was removed of each
}

// channel reports whether c is known as it is.
func (s *sent) channel(c *channel) bool {
	removed, known := s.channels[c]
	return known && c.last <= s.last && c.removed == removed
}

// ExportAhead hands what the logs hold now to another process's Import, in pieces, and serves
// on: Export then has little left to send.
func (b *Broker) ExportAhead(send func(piece []byte) error) (*Ahead, error) {
	a := &Ahead{logs: map[*log]*sent{}}
	for _, l := range b.all() {
		s := &sent{channels: map[*channel]uint64{}}
		if err := l.exportAhead(s, send); err != nil {
			return nil, err
		}
		a.logs[l] = s
	}
	return a, nil
}

// Export hands the logs to another process's Import, in pieces, but for what ahead says that it
// has; nil: nothing. From now on nothing is stored or read here, until Resume.
func (b *Broker) Export(ahead *Ahead, send func(piece []byte) error) error {
	for _, l := range b.all() {
		s := &sent{}
		if ahead != nil && ahead.logs[l] != nil {
			s = ahead.logs[l]
		}
		if err := l.export(s, send); err != nil {
			return err
		}
	}
	return nil
}

// Resume undoes Export, if the other process has stored nothing.
func (b *Broker) Resume() error {
	for _, l := range b.all() {
		l.mu.Lock()
		if errors.Is(l.closed, errMoved) {
			l.closed = nil
		}
		l.mu.Unlock()
	}
	return nil
}

// Renew undoes Export when the other process may have stored messages that are lost with it:
// each log starts anew, empty and with another epoch, so that no position of that process is
// taken for one of this process.
func (b *Broker) Renew() error {
	for _, l := range b.all() {
		l.renew()
	}
	return b.Resume()
}

// renew makes a log that is with another process an empty one.
func (l *log) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !errors.Is(l.closed, errMoved) || l.epoch == "" {
		return
	}
	l.epoch = newEpoch()
	l.budget.used.Add(-l.bytes)
	l.bytes, l.last, l.removed, l.forgot, l.empty = 0, 0, 0, 0, 0
	l.order, l.ids, l.keys = order{}, ids{}, keys{}
	for name, c := range l.channels {
		if c.last, c.removed, c.ring = 0, 0, (ring{}); !c.subscribed {
			delete(l.channels, name)
		}
	}
}

// A pieces makes pieces of a log of about pieceSize bytes.
type pieces struct {
	log  string // its name
	send func([]byte) error
	s    takeover.State
}

// add appends a field, and sends what there is when it is enough.
func (p *pieces) add(tag int, b takeover.State) error {
	if len(p.s) == 0 {
		p.s = p.s.MustString(moveLog, p.log)
	}
	if p.s = p.s.MustBytes(tag, b); len(p.s) < pieceSize {
		return nil
	}
	return p.flush()
}

func (p *pieces) flush() error {
	if len(p.s) == 0 {
		return nil
	}
	s := p.s
	p.s = nil
	return p.send(s)
}

// exportBatch is how many messages are looked up at once while the log is in use.
const exportBatch = 1024

// exportAhead sends what l holds, and writes down in s what that is. The lock is not held while
// anything is made of it or sent.
func (l *log) exportAhead(s *sent, send func([]byte) error) error {
	p := &pieces{log: l.opts.Load().LogName(), send: send}
	l.mu.Lock()
	if l.closed != nil {
		defer l.mu.Unlock()
		return l.closed
	}
	end := l.last
	head := l.head()
	records := make([]takeover.State, 0, len(l.channels))
	for _, c := range l.channels {
		records = append(records, c.record())
		s.channels[c] = c.removed
	}
	keys := l.exportKeys(0)
	s.last = end
	l.mu.Unlock()
	if err := p.add(moveHead, head); err != nil {
		return err
	}
	for _, r := range records {
		if err := p.add(moveChannel, r); err != nil {
			return err
		}
	}
	for at := uint64(0); at < end; {
		list, now := l.retained(at, end)
		for _, e := range list {
			m, err := e.state(now)
			if err == nil {
				err = p.add(moveMessage, m)
			}
			if err != nil {
				return err
			}
		}
		if at = end; len(list) == exportBatch {
			at = list[len(list)-1].msg.Offset
		}
	}
	for _, k := range keys {
		if err := p.add(moveKey, k); err != nil {
			return err
		}
	}
	return p.flush()
}

// retained returns the next messages after an offset, up to end.
func (l *log) retained(after, end uint64) (list []*entry, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := range l.order.after(after) {
		if e.msg.Offset > end || len(list) == exportBatch {
			break
		}
		list = append(list, e)
	}
	return list, l.age()
}

// export sends what l holds besides s, and closes it.
func (l *log) export(s *sent, send func([]byte) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}
	l.closed = errMoved
	p := &pieces{log: l.opts.Load().LogName(), send: send}
	if err := p.add(moveHead, l.head()); err != nil {
		return err
	}
	for _, c := range l.channels {
		if s.channel(c) {
			continue
		}
		if err := p.add(moveChannel, c.record()); err != nil {
			return err
		}
	}
	for c := range s.channels { // forgotten meanwhile: nothing of them is left
		if l.channels[c.name] == c {
			continue
		}
		gone := channel{name: c.name, last: c.last, removed: max(c.last, c.removed)}
		if now := l.channels[c.name]; now != nil {
			gone.last, gone.removed = now.last, now.removed
		}
		if err := p.add(moveChannel, gone.record()); err != nil {
			return err
		}
	}
	now := l.age()
	for e := range l.order.after(s.last) {
		m, err := e.state(now)
		if err == nil {
			err = p.add(moveMessage, m)
		}
		if err != nil {
			return err
		}
	}
	for _, k := range l.exportKeys(s.last) {
		if err := p.add(moveKey, k); err != nil {
			return err
		}
	}
	return p.flush()
}

// head is what is known of the log as a whole. l.mu is held.
func (l *log) head() takeover.State {
	return takeover.State{}.String(logEpoch, l.epoch).Uint(logLast, l.last).Uint(logRemoved, l.removed).Uint(logForgot, l.forgot)
}

func (c *channel) record() takeover.State {
	return takeover.State{}.String(channelName, c.name).Uint(channelLast, c.last).Uint(channelRemoved, c.removed)
}

// exportKeys returns the idempotency keys of messages after an offset, oldest first. l.mu is
// held.
func (l *log) exportKeys(after uint64) (list []takeover.State) {
	now := l.age()
	for _, k := range l.keys.queue[l.keys.head:] {
		if u := l.keys.used[k.id]; u.offset > after {
			list = append(list, takeover.State{}.Bytes(keyID, k.id[:]).Bytes(keyContent, u.content[:]).Uint(keyOffset, u.offset).Uint(keyAge, uint64(now-k.at)))
		}
	}
	return list
}

func (e *entry) state(now time.Duration) (takeover.State, error) {
	m := &e.msg
	s := takeover.State{}.String(messageChannel, m.Channel).String(messageKey, m.Key).Bytes(messageData, m.Data).
		Uint(messageTime, uint64(m.Time)).Uint(messageOffset, m.Offset).Uint(messagePrev, m.Prev).Uint(messageAge, uint64(now-e.at))
	if m.Attributes == nil {
		return s, nil
	}
	b, err := json.Marshal(m.Attributes)
	return s.MustBytes(messageAttributes, b), err
}

// Import takes a piece of Export's of another process. Before Start only; Start puts the logs
// in place of empty ones. Logs of namespaces that are not served any more are dropped.
func (b *Broker) Import(piece []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == nil || errors.Is(b.state, hub.ErrClosed) {
		return errors.New("import logs: the broker is started already")
	}
	var in *importing
	return takeover.State(piece).Read(func(f takeover.Field) (bool, error) {
		if f.Tag == moveLog {
			if b.moving == nil {
				b.moving = map[string]*importing{}
			}
			name := string(f.Bytes)
			if in = b.moving[name]; in == nil {
				in = newImporting(b.maxKeys, b.budget)
				b.moving[name] = in
			}
			return true, nil
		}
		if in == nil {
			return true, errors.New("no log was started")
		}
		return in.readField(f)
	})
}

// An importing log is what came of one so far: most of it before the pause, so that little is left to do in it. Which
// namespace it is of, and so how much of it is kept, is known at Start.
type importing struct {
	log    *log
	newest uint64                 // offset of the message that came last
	again  map[hub.KeyID]movedKey // keys that the log had already, as they came last
}

func newImporting(maxKeys int, b *budget) *importing {
	return &importing{log: newLog(hub.Namespace{Durability: hub.None}, maxKeys, b, nil)}
}

type movedKey struct {
	id  hub.KeyID
	use use
	at  time.Duration // since log.born
}

func (in *importing) readField(f takeover.Field) (known bool, err error) {
	l, s := in.log, takeover.State(f.Bytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch f.Tag {
	case moveHead:
		err = s.Into([]any{logEpoch: &l.epoch, logLast: &l.last, logRemoved: &l.removed, logForgot: &l.forgot})
	case moveChannel:
		var name string
		var last, removed uint64
		if err = s.Into([]any{channelName: &name, channelLast: &last, channelRemoved: &removed}); err == nil {
			in.channel(name, last, removed)
		}
	case moveMessage:
		e := &entry{at: l.age()}
		if err = e.read(s); err == nil {
			err = in.message(e)
		}
	case moveKey:
		k := movedKey{at: l.age()}
		if err = k.read(s); err == nil {
			in.key(&k)
		}
	default:
		return false, nil
	}
	return true, err
}

// channel adds a channel, or what became of one that came before. The log's mu is held, here and below.
func (in *importing) channel(name string, last, removed uint64) {
	l := in.log
	c := l.channels[name]
	if c == nil {
		c = &channel{log: l, name: name}
		l.channels[name] = c
		l.empty++
	}
	for c.ring.n > 0 && c.ring.at(0).msg.Offset <= removed {
		l.remove(c.ring.at(0))
	}
	c.last, c.removed = last, removed
}

// message adds a message, unless it was removed since it was sent.
func (in *importing) message(e *entry) error {
	l, at := in.log, e.msg.Offset
	c := l.channels[e.msg.Channel]
	if c == nil || at == 0 || at > l.last || at <= in.newest {
		return fmt.Errorf("message %d of channel %q does not fit the log that moves", at, e.msg.Channel)
	}
	if in.newest = at; at > c.removed {
		l.put(c, e)
	}
	return nil
}

// key adds a key. One that expired and was used again comes twice: it is added when all have come, in place of its
// first use.
func (in *importing) key(k *movedKey) {
	if _, is := in.log.keys.used[k.id]; !is {
		in.log.keys.add(k.id, k.use, k.at, in.log.maxKeys)
		return
	}
	if in.again == nil {
		in.again = map[hub.KeyID]movedKey{}
	}
	in.again[k.id] = *k
}

// useKeysAgain adds the keys that came again.
func (in *importing) useKeysAgain() {
	if len(in.again) == 0 {
		return
	}
	keys := &in.log.keys
	keys.forget(func(id hub.KeyID) bool { _, is := in.again[id]; return is })
	for id, k := range in.again {
		keys.add(id, k.use, k.at, in.log.maxKeys)
	}
}

// restored returns the log, as one of namespace n.
func (in *importing) restored(n hub.Namespace, deliver func(*hub.Message)) (*log, error) {
	l := in.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if (l.epoch == "") != (n.Durability == hub.None) {
		return nil, fmt.Errorf("namespace %q: durability changed: a log cannot become none, nor none a log, while it moves; restart instead", n.Name)
	}
	l.opts.Store(&n)
	l.deliver = deliver
	in.useKeysAgain()
	for _, c := range l.channels {
		if c.ring.n > 0 {
			l.trim(c)
		}
	}
	return l, nil
}

func (e *entry) read(s takeover.State) error {
	m := &e.msg
	var at, age uint64
	err := s.Into([]any{
		messageChannel: &m.Channel, messageKey: &m.Key, messageData: &m.Data, messageTime: &at, messageOffset: &m.Offset, messagePrev: &m.Prev, messageAge: &age,
		messageAttributes: func(f takeover.Field) error {
			m.Attributes = &hub.Attributes{}
			return json.Unmarshal(f.Bytes, m.Attributes)
		},
	})
	m.Time = int64(at)
	e.at -= time.Duration(age)
	return err
}

func (k *movedKey) read(s takeover.State) error {
	var age uint64
	err := s.Into([]any{
		keyID:      func(f takeover.Field) error { return fill(k.id[:], f.Bytes) },
		keyContent: func(f takeover.Field) error { return fill(k.use.content[:], f.Bytes) },
		keyOffset:  &k.use.offset, keyAge: &age,
	})
	k.at -= time.Duration(age)
	return err
}

func fill(dst, b []byte) error {
	if copy(dst, b) != len(dst) || len(b) != len(dst) {
		return fmt.Errorf("%d bytes, want %d", len(b), len(dst))
	}
	return nil
}

// put adds a message that has its place. l.mu is held.
func (l *log) put(c *channel, e *entry) {
	if c.idle() {
		l.empty--
	}
	e.ch = c
	e.msg.Channel, e.msg.Epoch = c.name, l.epoch
	l.order.push(e)
	if a := e.msg.Attributes; a != nil && a.ID != "" {
		l.ids.add(a.ID, e.msg.Offset)
	}
	l.bytes += e.size()
	l.budget.used.Add(e.size())
	c.ring.push(e)
}
