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
	moveLog     = iota + 1 // name of the namespace: begins a log; a State of log fields follows
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

var errHandedOver = fmt.Errorf("%w: the log is handed over to another process", hub.ErrUnavailable)

// Export hands the logs to another process's Import, in pieces. From now on nothing is stored
// or read here, until Resume.
func (b *Broker) Export(send func(piece []byte) error) error {
	for _, l := range b.all() {
		if err := l.export(send); err != nil {
			return err
		}
	}
	return nil
}

// Resume undoes Export.
func (b *Broker) Resume() error {
	for _, l := range b.all() {
		l.mu.Lock()
		if errors.Is(l.closed, errHandedOver) {
			l.closed = nil
		}
		l.mu.Unlock()
	}
	return nil
}

func (l *log) export(send func([]byte) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}
	l.closed = errHandedOver
	now := l.age()
	name := l.opts.Load().Name
	var s takeover.State
	begin := func() { s = takeover.State{}.MustString(moveLog, name) }
	flush := func(least int) error {
		if len(s) < least {
			return nil
		}
		err := send(s)
		begin()
		return err
	}
	begin()
	s = s.MustBytes(moveHead, takeover.State{}.String(logEpoch, l.epoch).Uint(logLast, l.last).Uint(logRemoved, l.removed).Uint(logForgot, l.forgot))
	for _, c := range l.channels {
		s = s.MustBytes(moveChannel, takeover.State{}.String(channelName, c.name).Uint(channelLast, c.last).Uint(channelRemoved, c.removed))
		if err := flush(pieceSize); err != nil {
			return err
		}
	}
	for e := range l.order.after(0) {
		m, err := e.state(now)
		if err != nil {
			return err
		}
		s = s.MustBytes(moveMessage, m)
		if err := flush(pieceSize); err != nil {
			return err
		}
	}
	for _, k := range l.keys.queue[l.keys.head:] {
		u := l.keys.used[k.id]
		s = s.MustBytes(moveKey, takeover.State{}.Bytes(keyID, k.id[:]).Bytes(keyContent, u.content[:]).Uint(keyOffset, u.offset).Uint(keyAge, uint64(now-k.at)))
		if err := flush(pieceSize); err != nil {
			return err
		}
	}
	return flush(0)
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
				in = &importing{at: time.Now()}
				b.moving[name] = in
			}
			return true, nil
		}
		if in == nil {
			return true, errors.New("no log was begun")
		}
		return in.take(f)
	})
}

// An importing log is what came of one so far.
type importing struct {
	at                    time.Time
	epoch                 string
	last, removed, forgot uint64
	channels              []movedChannel
	messages              []movedMessage
	keys                  []movedKey
}

type movedChannel struct {
	name          string
	last, removed uint64
}

type movedMessage struct {
	msg hub.Message
	age time.Duration
}

type movedKey struct {
	id  hub.KeyID
	use use
	age time.Duration
}

func (in *importing) take(f takeover.Field) (known bool, err error) {
	s := takeover.State(f.Bytes)
	switch f.Tag {
	case moveHead:
		err = s.Read(in.head)
	case moveChannel:
		var c movedChannel
		err = s.Read(c.take)
		in.channels = append(in.channels, c)
	case moveMessage:
		in.messages = append(in.messages, movedMessage{})
		m := &in.messages[len(in.messages)-1]
		err = s.Read(m.take)
		if m.msg.Epoch = in.epoch; err == nil && (m.msg.Offset == 0 || m.msg.Channel == "") {
			err = errors.New("a message without a place")
		}
	case moveKey:
		var k movedKey
		err = s.Read(k.take)
		in.keys = append(in.keys, k)
	default:
		return false, nil
	}
	return true, err
}

func (in *importing) head(f takeover.Field) (bool, error) {
	switch f.Tag {
	case logEpoch:
		in.epoch = string(f.Bytes)
	case logLast:
		in.last = f.Uint
	case logRemoved:
		in.removed = f.Uint
	case logForgot:
		in.forgot = f.Uint
	default:
		return false, nil
	}
	return true, nil
}

func (c *movedChannel) take(f takeover.Field) (bool, error) {
	switch f.Tag {
	case channelName:
		c.name = string(f.Bytes)
	case channelLast:
		c.last = f.Uint
	case channelRemoved:
		c.removed = f.Uint
	default:
		return false, nil
	}
	return true, nil
}

func (m *movedMessage) take(f takeover.Field) (bool, error) {
	switch f.Tag {
	case messageChannel:
		m.msg.Channel = string(f.Bytes)
	case messageKey:
		m.msg.Key = string(f.Bytes)
	case messageData:
		m.msg.Data = f.Bytes
	case messageAttributes:
		m.msg.Attributes = &hub.Attributes{}
		return true, json.Unmarshal(f.Bytes, m.msg.Attributes)
	case messageTime:
		m.msg.Time = int64(f.Uint)
	case messageOffset:
		m.msg.Offset = f.Uint
	case messagePrev:
		m.msg.Prev = f.Uint
	case messageAge:
		m.age = time.Duration(f.Uint)
	default:
		return false, nil
	}
	return true, nil
}

func (k *movedKey) take(f takeover.Field) (bool, error) {
	switch f.Tag {
	case keyID:
		return true, fill(k.id[:], f.Bytes)
	case keyContent:
		return true, fill(k.use.content[:], f.Bytes)
	case keyOffset:
		k.use.offset = f.Uint
	case keyAge:
		k.age = time.Duration(f.Uint)
	default:
		return false, nil
	}
	return true, nil
}

func fill(dst, b []byte) error {
	if copy(dst, b) != len(dst) || len(b) != len(dst) {
		return fmt.Errorf("%d bytes, want %d", len(b), len(dst))
	}
	return nil
}

// restore makes l, which is new and empty, the log that in is.
func (l *log) restore(in *importing) error {
	if (in.epoch == "") != (l.epoch == "") {
		return fmt.Errorf("namespace %q: durability changed: a log cannot become none, nor none a log, while it moves; restart instead", l.opts.Load().Name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch, l.last, l.removed, l.forgot = in.epoch, in.last, in.removed, in.forgot
	for _, c := range in.channels {
		l.channels[c.name] = &channel{log: l, name: c.name, last: c.last, removed: c.removed}
		l.empty++
	}
	behind := time.Since(in.at)
	for i := range in.messages {
		m := &in.messages[i]
		c := l.channels[m.msg.Channel]
		if c == nil || m.msg.Offset > l.last || i > 0 && m.msg.Offset <= in.messages[i-1].msg.Offset {
			return fmt.Errorf("namespace %q: message %d does not fit the log that moves", l.opts.Load().Name, m.msg.Offset)
		}
		l.put(c, m, l.age()-m.age-behind)
	}
	for _, k := range in.keys {
		l.keys.add(k.id, k.use, l.age()-k.age-behind, l.maxKeys)
	}
	for _, c := range l.channels {
		if c.ring.n > 0 {
			l.trim(c)
		}
	}
	return nil
}

// put adds a message that has its place. l.mu is held.
func (l *log) put(c *channel, m *movedMessage, at time.Duration) {
	if c.idle() {
		l.empty--
	}
	e := &entry{ch: c, at: at}
	e.msg.Channel, e.msg.Key, e.msg.Data, e.msg.Attributes = c.name, m.msg.Key, m.msg.Data, m.msg.Attributes
	e.msg.Time, e.msg.Epoch, e.msg.Offset, e.msg.Prev = m.msg.Time, l.epoch, m.msg.Offset, m.msg.Prev
	l.order.push(e)
	if a := e.msg.Attributes; a != nil && a.ID != "" {
		l.ids.add(a.ID, e.msg.Offset)
	}
	l.bytes += e.size()
	l.budget.used.Add(e.size())
	c.ring.push(e)
}
