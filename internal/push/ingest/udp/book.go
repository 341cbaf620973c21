package udp

import "github.com/weir-gateway/weir/internal/push/ingest"

// A book keeps the newest quote of every symbol until it is published, and follows the
// feed's sequence numbers. One goroutine uses it at a time.
type book struct {
	max   int // symbols
	count ingest.Counter

	quotes  map[[8]byte]*slot
	changed []*slot // in the order in which they first changed

	started  bool
	session  [sessionBytes]byte
	expected uint64 // sequence number of the next message

	quote Quote // scratch
}

// A slot is a symbol's place.
type slot struct {
	quote    Quote
	sequence uint64
	changed  bool
}

func newBook(max int, count ingest.Counter) *book {
	return &book{max: max, count: count, quotes: map[[8]byte]*slot{}}
}

// packet applies one datagram. What was seen before, on another line of the feed or by a
// repetition, counts for nothing. A packet that is malformed is dropped from there on, and
// its messages count as missing when the next one comes.
func (b *book) packet(data []byte) {
	p, rest, err := ParsePacket(data)
	if err != nil {
		b.count.Dropped(1)
		return
	}
	if !b.started || p.Session != b.session {
		b.started, b.session, b.expected = true, p.Session, p.Sequence
	}
	if p.Sequence > b.expected {
		b.count.Gap(p.Sequence - b.expected)
		b.expected = p.Sequence
	}
	dropped, conflated := uint64(0), uint64(0)
	for i := range p.Count {
		var m []byte
		if m, rest, err = NextMessage(rest); err != nil {
			dropped++
			break
		}
		sequence := p.Sequence + uint64(i)
		if sequence < b.expected {
			continue
		}
		b.expected = sequence + 1
		isQuote, err := ParseQuote(m, &b.quote)
		switch {
		case err != nil:
			dropped++
		case isQuote:
			replaced, ok := b.put(sequence)
			if !ok {
				dropped++
			} else if replaced {
				conflated++
			}
		}
	}
	if dropped > 0 {
		b.count.Dropped(dropped)
	}
	if conflated > 0 {
		b.count.Conflated(conflated)
	}
}

// put makes b.quote the newest of its symbol, and reports whether one was replaced that was
// not published. It refuses a new symbol at the bound.
func (b *book) put(sequence uint64) (replaced, ok bool) {
	s := b.quotes[b.quote.Symbol]
	if s == nil {
		if len(b.quotes) >= b.max {
			return false, false
		}
		s = &slot{}
		b.quotes[b.quote.Symbol] = s
	}
	replaced = s.changed
	if !replaced {
		s.changed = true
		b.changed = append(b.changed, s)
	}
	n := b.quote.Count
	s.quote.Symbol, s.quote.Time, s.quote.Count = b.quote.Symbol, b.quote.Time, n
	copy(s.quote.Levels[:n], b.quote.Levels[:n])
	s.sequence = sequence
	return replaced, true
}

// popChanged returns up to n quotes that changed, those that changed first at first. They are
// valid until the next call of packet.
func (b *book) popChanged(n int, yield func(q *Quote, sequence uint64)) {
	n = min(n, len(b.changed))
	for _, s := range b.changed[:n] {
		s.changed = false
		yield(&s.quote, s.sequence)
	}
	b.changed = append(b.changed[:0], b.changed[n:]...)
}
