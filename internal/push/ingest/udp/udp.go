// Package udp reads market data: L2 quotes in MoldUDP64 packets, by unicast or multicast.
//
// Quotes are conflated here: of each symbol the newest is published once in an interval, if
// it changed. Gaps in the sequence numbers are counted; a quote carries the complete state of
// its symbol, so the next one repairs what was missed. There is no acknowledgement and no
// request for what is missing.
//
// The datagrams are those of MoldUDP64 1.00: session (10 bytes), sequence number of the first
// message (8), number of messages (2), and for each message its length (2) and bytes. A quote
// is 'Q', its time in nanoseconds since 1970 (8), the symbol padded with spaces (8), the
// number of levels (1), and for each level bid price (8), bid size (4), ask price (8) and ask
// size (4), best first. Integers are big-endian. Messages of other types are skipped.
//
// Several listeners are lines of one feed: what came on one already is skipped on the others.
package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// A Config is where a feed arrives and how it is conflated.
type Config struct {
	// Listen are the addresses at which the feed arrives, host:port: of this machine, or
	// multicast groups. Several are lines of the same feed.
	Listen []string `json:"listen"`
	// Interface is the network interface to join multicast groups on. Empty means the
	// system's choice.
	Interface string `json:"interface"`
	// From are the networks that may send, such as 10.1.0.0/16; packets of others are dropped
	// and counted. Empty means any.
	From []netip.Prefix `json:"from"`
	// Interval is how often a symbol is published at most, 1ms to 1m. 0 means 50ms.
	Interval hub.Duration `json:"interval"`
	// MaxSymbols bounds the symbols that are known; quotes of others are dropped and counted.
	// 1 to 1000000; 0 means 10000.
	MaxSymbols int `json:"max_symbols"`
	// PriceDecimals is how many digits of a price are behind the point, 0 to 12. Absent means
	// 4.
	PriceDecimals *int `json:"price_decimals"`
	// ReceiveBufferBytes is the socket's buffer; the kernel may allow less. 0 means 8 MiB.
	ReceiveBufferBytes int `json:"receive_buffer_bytes"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Interval == 0 {
		c.Interval = hub.Duration(50 * time.Millisecond)
	}
	if c.MaxSymbols == 0 {
		c.MaxSymbols = 10_000
	}
	if c.PriceDecimals == nil {
		c.PriceDecimals = new(4)
	}
	if c.ReceiveBufferBytes == 0 {
		c.ReceiveBufferBytes = 8 << 20
	}
	return c
}

// Validate returns all that is wrong with c, joined. It expects c completed.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(c.Listen) == 0 {
		bad("listen: there is no address: want host:port")
	}
	for i, a := range c.Listen {
		if _, err := netip.ParseAddrPort(a); err != nil {
			bad("listen[%d]: invalid address %.60q: want ip:port", i, a)
		}
	}
	if c.Interval < hub.Duration(time.Millisecond) || c.Interval > hub.Duration(time.Minute) {
		bad("interval: invalid duration %s: want 1ms to 1m", c.Interval)
	}
	if c.MaxSymbols < 1 || c.MaxSymbols > 1_000_000 {
		bad("max_symbols: invalid number %d: want 1 to 1000000", c.MaxSymbols)
	}
	if d := c.PriceDecimals; d != nil && (*d < 0 || *d > 12) {
		bad("price_decimals: invalid number %d: want 0 to 12", *d)
	}
	if c.ReceiveBufferBytes < 4096 || c.ReceiveBufferBytes > 1<<30 {
		bad("receive_buffer_bytes: invalid size %d: want 4KiB to 1GiB", c.ReceiveBufferBytes)
	}
	return errors.Join(errs...)
}

// Multicast reports whether every node receives the feed, so that one node is to read it.
func (c Config) Multicast() bool {
	for _, a := range c.Listen {
		if p, err := netip.ParseAddrPort(a); err == nil && p.Addr().IsMulticast() {
			return true
		}
	}
	return false
}

// A reader receives on its own goroutines, one for each listener.
type reader struct {
	cfg   Config
	count ingest.Counter
	batch int
	conns []*net.UDPConn
	done  sync.WaitGroup
	due   time.Time // of the next publication
	fail  chan error

	mu   sync.Mutex
	book *book
}

// Open returns the Opener of a source.
func Open(c Config) ingest.Opener {
	c = c.WithDefaults()
	return func(_ context.Context, o ingest.Options) (ingest.Reader, error) {
		r := &reader{cfg: c, count: o.Count, batch: o.Batch, book: newBook(c.MaxSymbols, o.Count), fail: make(chan error, len(c.Listen))}
		for _, a := range c.Listen {
			conn, err := listen(c, a)
			if err != nil {
				r.Close()
				return nil, err
			}
			r.conns = append(r.conns, conn)
			r.done.Go(func() { r.receive(conn) })
		}
		return r, nil
	}
}

func listen(c Config, addr string) (*net.UDPConn, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	at := net.UDPAddrFromAddrPort(a)
	var conn *net.UDPConn
	if a.Addr().IsMulticast() {
		var on *net.Interface
		if c.Interface != "" {
			if on, err = net.InterfaceByName(c.Interface); err != nil {
				return nil, fmt.Errorf("interface %s: %w", c.Interface, err)
			}
		}
		conn, err = net.ListenMulticastUDP("udp", on, at)
	} else {
		conn, err = net.ListenUDP("udp", at)
	}
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadBuffer(c.ReceiveBufferBytes); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("receive buffer: %w", err)
	}
	return conn, nil
}

const (
	packets  = 64   // of one system call
	maxBytes = 2048 // of a datagram; feeds fit in a packet of Ethernet
)

// receive reads conn until it is closed.
func (r *reader) receive(conn *net.UDPConn) {
	p := ipv4.NewPacketConn(conn) // recvmmsg, which knows no version of IP
	list := make([]ipv4.Message, packets)
	for i := range list {
		list[i].Buffers = [][]byte{make([]byte, maxBytes)}
	}
	for {
		n, err := p.ReadBatch(list, 0)
		if err != nil {
			r.fail <- fmt.Errorf("receive on %s: %w", conn.LocalAddr(), err)
			return
		}
		r.mu.Lock()
		for i := range list[:n] {
			m := &list[i]
			if !r.trusted(m.Addr) {
				r.count.Dropped(1)
				continue
			}
			r.book.packet(m.Buffers[0][:m.N])
		}
		r.mu.Unlock()
	}
}

func (r *reader) trusted(from net.Addr) bool {
	if len(r.cfg.From) == 0 {
		return true
	}
	a, ok := from.(*net.UDPAddr)
	if !ok {
		return false
	}
	ip := a.AddrPort().Addr().Unmap()
	for _, p := range r.cfg.From {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// Read implements ingest.Reader: once in an interval it returns what changed.
func (r *reader) Read(ctx context.Context) ([]ingest.Message, error) {
	t := time.NewTimer(time.Until(r.due))
	defer t.Stop()
	select {
	case err := <-r.fail:
		return nil, err
	case <-ctx.Done():
		return nil, nil
	case <-t.C:
	}
	var list []ingest.Message
	r.mu.Lock()
	session := symbol(r.book.session[:])
	r.book.popChanged(r.batch, func(q *Quote, sequence uint64) {
		list = append(list, message(q, session, sequence, *r.cfg.PriceDecimals))
	})
	more := len(r.book.changed) > 0
	r.mu.Unlock()
	if !more {
		r.due = time.Now().Add(time.Duration(r.cfg.Interval))
	}
	return list, nil
}

func message(q *Quote, session string, sequence uint64, decimals int) ingest.Message {
	name := symbol(q.Symbol[:])
	return ingest.Message{
		Position: session + "/" + strconv.FormatUint(sequence, 10), Data: appendJSON(nil, q, sequence, decimals), Time: time.Unix(0, int64(q.Time)),
		Lookup: func(n string) (string, bool) { return name, n == "symbol" },
	}
}

// Acknowledge implements ingest.Reader; a feed knows none.
func (r *reader) Acknowledge(context.Context, []ingest.Message) error { return nil }

// Lag implements ingest.Reader: symbols that changed and are not published.
func (r *reader) Lag(context.Context) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.book.changed)), nil
}

// Close implements ingest.Reader.
func (r *reader) Close() {
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.done.Wait()
}
