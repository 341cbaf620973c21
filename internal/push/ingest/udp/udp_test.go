package udp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/ingesttest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type counts struct{ dropped, conflated, gaps, missing atomic.Uint64 }

func (c *counts) Dropped(n uint64)   { c.dropped.Add(n) }
func (c *counts) Conflated(n uint64) { c.conflated.Add(n) }
func (c *counts) Gap(n uint64)       { c.gaps.Add(1); c.missing.Add(n) }

// appendQuote appends q as a message with its length, as ParseQuote and NextMessage read it.
func appendQuote(dst []byte, q *Quote) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(quoteBytes+q.Count*levelBytes))
	dst = append(dst, quoteType)
	dst = binary.BigEndian.AppendUint64(dst, q.Time)
	dst = append(dst, q.Symbol[:]...)
	dst = append(dst, byte(q.Count))
	for _, l := range q.Levels[:q.Count] {
		dst = binary.BigEndian.AppendUint64(dst, l.Bid)
		dst = binary.BigEndian.AppendUint32(dst, l.BidSize)
		dst = binary.BigEndian.AppendUint64(dst, l.Ask)
		dst = binary.BigEndian.AppendUint32(dst, l.AskSize)
	}
	return dst
}

// appendHead appends the head of a packet.
func appendHead(dst []byte, p Packet) []byte {
	dst = append(dst, p.Session[:]...)
	dst = binary.BigEndian.AppendUint64(dst, p.Sequence)
	n := uint16(p.Count)
	if p.End {
		n = endOfSession
	}
	return binary.BigEndian.AppendUint16(dst, n)
}

func quote(name string, bid uint64) *Quote {
	q := &Quote{Time: 1_700_000_000_000_000_000, Count: 2}
	copy(q.Symbol[:], name+"        ")
	q.Levels[0] = Level{Bid: bid, BidSize: 100, Ask: bid + 100, AskSize: 200}
	q.Levels[1] = Level{Bid: bid - 100, BidSize: 300} // no second ask
	return q
}

func packet(session string, sequence uint64, quotes ...*Quote) []byte {
	p := Packet{Sequence: sequence, Count: len(quotes)}
	copy(p.Session[:], session+"          ")
	b := appendHead(nil, p)
	for _, q := range quotes {
		b = appendQuote(b, q)
	}
	return b
}

// popped returns what the book has to publish as "symbol@sequence".
func popped(b *book) string {
	var all []string
	b.popChanged(1000, func(q *Quote, sequence uint64) {
		all = append(all, fmt.Sprintf("%s@%d", symbol(q.Symbol[:]), sequence))
	})
	return strings.Join(all, " ")
}

func TestQuotesAreConflatedAndGapsCounted(t *testing.T) {
	c := &counts{}
	b := newBook(3, c)
	f := func(data []byte, want string, dropped, conflated, gaps, missing uint64) {
		t.Helper()
		b.packet(data)
		if got := popped(b); got != want {
			t.Errorf("published %q, want %q", got, want)
		}
		if d, o, g, m := c.dropped.Swap(0), c.conflated.Swap(0), c.gaps.Swap(0), c.missing.Swap(0); d != dropped || o != conflated || g != gaps || m != missing {
			t.Errorf("dropped %d, conflated %d, %d gaps of %d; want %d, %d, %d of %d", d, o, g, m, dropped, conflated, gaps, missing)
		}
	}
	one := quote("A", 10_000)
	f(packet("S1", 7, one, quote("B", 1000), one), "A@9 B@8", 0, 1, 0, 0) // joining a running session is not a gap
	f(packet("S1", 7, one, quote("B", 1000), one), "", 0, 0, 0, 0)        // the other line
	f(packet("S1", 9, one, one), "A@10", 0, 0, 0, 0)                      // half of it was seen
	f(packet("S1", 15, one), "A@15", 0, 0, 1, 4)
	f(packet("S1", 12, one), "", 0, 0, 0, 0) // late
	f(packet("S1", 20), "", 0, 0, 1, 4)      // a heartbeat shows that 16 to 19 are missing
	f(packet("S2", 1, one), "A@1", 0, 0, 0, 0)
	f(packet("S2", 2, quote("C", 1000), quote("D", 1000)), "C@2", 1, 0, 0, 0) // one symbol too many
	f([]byte("short"), "", 1, 0, 0, 0)
	cut := packet("S2", 4, one, one)
	f(cut[:len(cut)-1], "A@4", 1, 0, 0, 0)
	f(packet("S2", 6, one), "A@6", 0, 0, 1, 1)
	odd := packet("S2", 7, &Quote{Symbol: [8]byte{'"', 0x80}, Count: 1})
	f(odd, "", 1, 0, 0, 0)
	other := append(packet("S2", 8), 0, 1, 'X')
	other[sessionBytes+9] = 1 // one message, of a type that is not a quote
	f(other, "", 0, 0, 0, 0)
	f(packet("S2", 9, one), "A@9", 0, 0, 0, 0)
}

func TestQuoteAsJSON(t *testing.T) {
	q := quote(`A"`, 1_893_200)
	got := string(appendJSON(nil, q, 42, 4))
	const want = `{"symbol":"A\"","seq":42,"time":1700000000000000000,"bids":[[189.32,100],[189.31,300]],"asks":[[189.33,200]]}`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	f := func(price uint64, decimals int, want string) {
		t.Helper()
		if got := string(appendPrice(nil, price, decimals)); got != want {
			t.Errorf("%d with %d decimals: %s, want %s", price, decimals, got, want)
		}
	}
	f(0, 4, "0")
	f(1, 4, "0.0001")
	f(10_000, 4, "1")
	f(10_500, 4, "1.05")
	f(123, 0, "123")
	f(18446744073709551615, 12, "18446744.073709551615")
}

func FuzzPacket(f *testing.F) {
	f.Add(packet("S", 1, quote("A", 1), quote("B", 2)))
	f.Add(packet("S", 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBook(4, &counts{})
		b.packet(data)
		b.popChanged(10, func(q *Quote, sequence uint64) {
			if text := appendJSON(nil, q, sequence, 4); !json.Valid(text) {
				t.Errorf("not JSON: %s", text)
			}
			m := appendQuote(nil, q)
			message, rest, err := NextMessage(m)
			var again Quote
			ok, err2 := ParseQuote(message, &again)
			if err != nil || err2 != nil || !ok || len(rest) != 0 || !bytes.Equal(appendQuote(nil, &again), m) {
				t.Errorf("%+v is read as %+v: %v, %v", q, again, err, err2)
			}
		})
	})
}

// Datagrams through a socket, on two lines: each symbol is published with its newest quote, and
// what another network sends is dropped.
func TestAFeedIsPublished(t *testing.T) {
	h := ingesttest.Hub(t)
	cfg := Config{Listen: []string{freeUDP(t), freeUDP(t)}, Interval: hub.Duration(5 * time.Millisecond), From: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}.WithDefaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	common := ingest.Config{Name: "feed", Kind: "udp", Channel: "quotes.{symbol}", Key: "{symbol}"}.WithDefaults()
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, ingest.Spec{Config: common, Open: Open(cfg), Shared: true})
	trial.Eventually(t, "it reads", func() bool { return ingesttest.State(t, set, "feed").Phase == ingest.Reading })
	send := func(from string, line int, data []byte) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("udp", cfg.Listen[line])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	send("127.0.0.1", 0, packet("S", 1, quote("A", 10_000), quote("B", 20_000)))
	trial.Eventually(t, "both symbols are published", func() bool {
		return len(ingesttest.Log(t, h, "quotes.A")) == 1 && len(ingesttest.Log(t, h, "quotes.B")) == 1
	})
	send("127.0.0.1", 1, packet("S", 1, quote("A", 10_000), quote("B", 20_000)))
	send("127.0.0.2", 0, packet("S", 3, quote("A", 1)))
	trial.Eventually(t, "the packet of another network is dropped", func() bool { return ingesttest.State(t, set, "feed").Dropped == 1 })
	send("127.0.0.1", 1, packet("S", 5, quote("A", 30_000)))
	log := ingesttest.Await(t, h, "quotes.A", 2)
	if len(log) != 2 || !strings.Contains(log[1], `"seq":5`) || !strings.Contains(log[1], `"bids":[[3,100]`) {
		t.Errorf("%q", log)
	}
	if s := ingesttest.State(t, set, "feed"); s.Gaps != 1 || s.Missing != 2 {
		t.Errorf("%+v: want one gap of two messages", s)
	}
}

func freeUDP(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*Config), says string) {
		t.Helper()
		c := Config{Listen: []string{"239.1.1.1:5000"}}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(func(*Config) {}, "")
	f(func(c *Config) { c.Listen = nil }, "listen: there is no address")
	f(func(c *Config) { c.Listen = []string{"x:1"} }, `listen[0]: invalid address "x:1": want ip:port`)
	f(func(c *Config) { c.Interval = 1 }, "interval: invalid duration 1ns")
	f(func(c *Config) { c.MaxSymbols = -1 }, "max_symbols: invalid number -1")
	f(func(c *Config) { c.PriceDecimals = new(13) }, "price_decimals: invalid number 13")
	f(func(c *Config) { c.ReceiveBufferBytes = 1 }, "receive_buffer_bytes: invalid size 1")
	if !(Config{Listen: []string{"239.1.1.1:5000"}}).Multicast() || (Config{Listen: []string{"10.1.1.1:5000"}}).Multicast() {
		t.Error("multicast is not recognized")
	}
}

// Decoding and conflating, quotes per second of one goroutine: 20 quotes of two levels in a
// packet, 2,000 symbols, published once in 50,000 quotes.
func BenchmarkBook(b *testing.B) {
	const perPacket, symbols = 20, 2000
	var feed [][]byte
	for i := 0; i < symbols; i += perPacket {
		var quotes []*Quote
		for j := range perPacket {
			quotes = append(quotes, quote(fmt.Sprintf("S%d", i+j), uint64(10_000+j)))
		}
		feed = append(feed, packet("S", 0, quotes...))
	}
	book := newBook(symbols, &counts{})
	sequence, sent := uint64(0), 0
	var text []byte
	b.ReportAllocs()
	for b.Loop() {
		data := feed[sequence/perPacket%uint64(len(feed))]
		p := Packet{Sequence: sequence, Count: perPacket}
		appendHead(data[:0], p)
		book.packet(data)
		sequence += perPacket
		if sequence%50_000 == 0 {
			book.popChanged(symbols, func(q *Quote, n uint64) { text = appendJSON(text[:0], q, n, 4); sent++ })
		}
	}
	b.ReportMetric(float64(b.N*perPacket)/b.Elapsed().Seconds(), "quotes/s")
}
