package tlsterm

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// A peer is a client that speaks records by hand, once crypto/tls has done its
// side of the handshake.
type peer struct {
	t     testing.TB
	raw   net.Conn
	r     *records
	plain []byte
	err   error // how the server's side ended
}

// whole gives crypto/tls no more than the rest of one record per Read, and
// remembers the first one.
type whole struct {
	net.Conn
	left []byte
	head []byte
}

func (w *whole) Read(b []byte) (int, error) {
	if len(w.left) == 0 {
		rec := make([]byte, headerLen)
		if _, err := io.ReadFull(w.Conn, rec); err != nil {
			return 0, err
		}
		rec = append(rec, make([]byte, int(rec[3])<<8|int(rec[4]))...)
		if _, err := io.ReadFull(w.Conn, rec[headerLen:]); err != nil {
			return 0, err
		}
		if w.head == nil {
			w.head = bytes.Clone(rec)
		}
		w.left = rec
	}
	n := copy(b, w.left)
	w.left = w.left[n:]
	return n, nil
}

// clientLog is the secrets of a handshake, with the client's random.
type clientLog struct {
	secrets
	random []byte
}

func (l *clientLog) Write(line []byte) (int, error) {
	l.random = must(hex.DecodeString(string(bytes.Fields(line)[1])))
	return l.secrets.Write(line)
}

// meet connects a peer; the server must not send tickets.
func meet(t testing.TB, s *server, version uint16) *peer {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
	w := &whole{Conn: raw}
	var log clientLog
	c := tls.Client(w, client(func(c *tls.Config) { c.MinVersion, c.MaxVersion, c.KeyLogWriter = version, version, &log }))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	state := c.ConnectionState()
	su := suiteOf(state.Version, state.CipherSuite)
	r := &records{loopState: newLoopState(), suite: su}
	if su.v13 {
		su.setSecret(&r.out, log.client)
		su.setSecret(&r.in, log.server)
	} else {
		su.setMaster(&r.out, &r.in, log.master, log.random, w.head[serverRandomAt:serverRandomAt+randomLen])
	}
	return &peer{t: t, raw: raw, r: r}
}

// send writes records as they are.
func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.raw.Write(b); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// read waits for n bytes of plaintext, or for the end.
func (p *peer) read(n int) []byte {
	p.t.Helper()
	buf := make([]byte, 4096)
	for len(p.plain) < n && p.err == nil {
		k, err := p.raw.Read(buf)
		if err != nil {
			p.err = err
			break
		}
		plain, _, err := p.r.Open(bytes.Clone(buf[:k]))
		p.plain = append(p.plain, plain...)
		p.err = err
	}
	got := p.plain[:min(n, len(p.plain))]
	p.plain = p.plain[len(got):]
	return got
}

// expect wants b from the server.
func (p *peer) expect(b string) {
	p.t.Helper()
	if got := p.read(len(b)); string(got) != b {
		p.t.Fatalf("got %.40q and %v, want %.40q", got, p.err, b)
	}
}

// expectAlert wants the connection to end with an alert.
func (p *peer) expectAlert(what string, alert uint8) {
	p.t.Helper()
	p.read(1 << 20)
	if e, ok := errors.AsType[AlertError](p.err); !ok || uint8(e) != alert {
		p.t.Errorf("%s: the connection ended with %v, want alert %d", what, p.err, alert)
	}
}

func (p *peer) data(s string) []byte { return p.r.Seal(nil, []byte(s)) }

// update is a key update; the keys after it are new.
func (p *peer) update(kind byte) []byte {
	b := p.r.seal(nil, typeHandshake, []byte{keyUpdate, 0, 0, 1, kind})
	p.r.suite.nextKey(&p.r.out)
	return b
}

// byHand runs a server that sends no tickets.
func byHand(t testing.TB) *server { return serve(t, Config{Tickets: setting.Off}, echoes) }

func TestKeysMayBeUpdatedByBothSides(t *testing.T) {
	p := meet(t, byHand(t), tls.VersionTLS13)
	p.send(p.data("a"))
	p.expect("a")
	p.send(append(p.update(updateUnrequested), p.data("b")...))
	p.expect("b")
	before := p.r.in.key
	for range 3 { // three requests at once are answered by one update
		p.send(append(p.update(updateRequested), p.data("c")...))
		p.expect("c")
	}
	if p.r.in.key == before {
		t.Error("the server's key stayed the same after a request to update it")
	}
	msg := []byte{keyUpdate, 0, 0, 1, updateRequested} // in pieces
	for _, c := range msg {
		p.send(p.r.seal(nil, typeHandshake, []byte{c}))
	}
	p.r.suite.nextKey(&p.r.out)
	p.send(p.data("d"))
	p.expect("d")
	p.send(p.r.Close(nil))
	if p.read(1); p.err != io.EOF {
		t.Errorf("the end was %v", p.err)
	}
}

func TestTheServerRenewsItsKeyInTime(t *testing.T) {
	r, q := pair(suiteOf(tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256))
	r.out.seq, q.in.seq = recordsPerKey-1, recordsPerKey-1
	before := r.out.key
	for i, want := range []string{"last", "first", "second"} {
		plain, _, err := q.Open(r.Seal(nil, []byte(want)))
		if err != nil || string(plain) != want {
			t.Fatalf("record %d: %q and %v", i, plain, err)
		}
	}
	if r.out.key == before || r.out.seq != 2 {
		t.Errorf("the key is the same, or its count is %d", r.out.seq)
	}
}

func TestUselessRecordsInTheirMassAreRefused(t *testing.T) {
	s := byHand(t)
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		p := meet(t, s, v)
		for range maxUseless {
			p.send(p.r.seal(nil, typeData, nil))
		}
		p.send(p.data("a"))
		p.expect("a")
		for range maxUseless + 1 {
			p.send(p.r.seal(nil, typeData, nil))
		}
		p.expectAlert("empty records", alertUnexpectedMessage)
	}
	p := meet(t, s, tls.VersionTLS13)
	var flood []byte
	for range maxUseless + 1 {
		flood = append(flood, p.update(updateRequested)...)
	}
	p.send(flood)
	p.expectAlert("key updates", alertUnexpectedMessage)
}

func TestRenegotiationIsRefused(t *testing.T) {
	p := meet(t, byHand(t), tls.VersionTLS12)
	p.send(p.data("a"))
	p.expect("a")
	hello := append([]byte{clientHello, 0, 0, 40, 3, 3}, make([]byte, 38)...)
	p.send(p.r.seal(nil, typeHandshake, hello))
	p.expectAlert("a ClientHello", alertUnexpectedMessage)
}

// A breach of the record protocol ends the connection with the alert that the
// standard names, and never reaches the handler.
func TestBrokenRecordsAreRefused(t *testing.T) {
	s := byHand(t)
	f := func(version uint16, what string, alert uint8, make func(p *peer) []byte) {
		t.Helper()
		p := meet(t, s, version)
		p.send(p.data("a"))
		p.expect("a")
		p.send(make(p))
		p.expectAlert(what, alert)
	}
	const v12, v13 = tls.VersionTLS12, tls.VersionTLS13
	flip := func(at int) func(*peer) []byte {
		return func(p *peer) []byte {
			b := p.data("abc")
			b[(at+len(b))%len(b)] ^= 1
			return b
		}
	}
	for _, v := range []uint16{v12, v13} {
		f(v, "a changed tag", alertBadRecordMAC, flip(-1))
		f(v, "changed data", alertBadRecordMAC, flip(-18))
		f(v, "a repeated record", alertBadRecordMAC, func(p *peer) []byte { b := p.data("x"); return append(b, b...) })
		f(v, "a skipped record", alertBadRecordMAC, func(p *peer) []byte { p.data("x"); return p.data("y") })
		f(v, "another version", alertProtocolVersion, flip(1))
		f(v, "a huge record", alertRecordOverflow, func(*peer) []byte { return []byte{23, 3, 3, 0xff, 0xff} })
		f(v, "an unknown type", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, 99, []byte("x")) })
		f(v, "a long alert", alertDecodeError, func(p *peer) []byte { return p.r.seal(nil, typeAlert, []byte{1, 0, 0}) })
	}
	f(v12, "a changed type", alertBadRecordMAC, flip(0))
	f(v12, "a short record", alertBadRecordMAC, func(*peer) []byte { return []byte{23, 3, 3, 0, 5, 1, 2, 3, 4, 5} })
	f(v12, "a new cipher", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, typeChangeCipherSpec, []byte{1}) })
	f(v12, "17 KB in a record", alertRecordOverflow, func(p *peer) []byte { return p.r.seal(nil, typeData, make([]byte, 17000)) })
	f(v13, "17 KB in a record", alertRecordOverflow, func(p *peer) []byte { return p.r.seal(nil, typeData, make([]byte, 17000)) })
	f(v13, "1 byte too much in a record", alertRecordOverflow, func(p *peer) []byte { return p.r.seal(nil, typeData, make([]byte, maxPlaintext+1)) })
	f(v13, "padding beyond a record's limit", alertRecordOverflow, func(p *peer) []byte {
		return p.r.seal(nil, 0, append([]byte("x\x17"), make([]byte, maxPlaintext-1)...))
	})
	f(v13, "an empty alert", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, typeAlert, nil) })
	f(v13, "a key update that says it is long", alertDecodeError, func(p *peer) []byte {
		return p.r.seal(nil, typeHandshake, []byte{keyUpdate, 0, 0, 2, 0, 0})
	})
	f(v13, "a bare record", alertUnexpectedMessage, func(*peer) []byte { return []byte{20, 3, 3, 0, 1, 1} })
	f(v13, "no type", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, 0, nil) })
	f(v13, "an empty handshake record", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, typeHandshake, nil) })
	f(v13, "a ClientHello", alertUnexpectedMessage, func(p *peer) []byte { return p.r.seal(nil, typeHandshake, []byte{clientHello, 0, 0, 1}) })
	f(v13, "a key update of a third kind", alertIllegalParameter, func(p *peer) []byte { return p.update(2) })
	f(v13, "a key update of two bytes", alertDecodeError, func(p *peer) []byte { return p.r.seal(nil, typeHandshake, []byte{keyUpdate, 0, 0, 2, 0}) })
	f(v13, "data behind a key update", alertUnexpectedMessage, func(p *peer) []byte {
		return p.r.seal(nil, typeHandshake, []byte{keyUpdate, 0, 0, 1, 0, keyUpdate})
	})
	f(v13, "data within a key update", alertUnexpectedMessage, func(p *peer) []byte {
		return append(p.r.seal(nil, typeHandshake, []byte{keyUpdate, 0}), p.data("x")...)
	})
}

func TestPaddingIsTakenOff(t *testing.T) {
	p := meet(t, byHand(t), tls.VersionTLS13)
	// Content, type and zeros: a record of type 0 whose content ends in the true type.
	p.send(p.r.seal(nil, 0, append([]byte("padded\x17"), make([]byte, 1000)...)))
	p.expect("padded")
}

func TestWarningsArePassedOver(t *testing.T) {
	s := byHand(t)
	p := meet(t, s, tls.VersionTLS13)
	p.send(append(p.r.seal(nil, typeAlert, []byte{1, alertUserCanceled}), p.data("a")...))
	p.expect("a")
	p = meet(t, s, tls.VersionTLS12)
	p.send(append(p.r.seal(nil, typeAlert, []byte{1, 112}), p.data("a")...))
	p.expect("a")
	p.send(p.r.seal(nil, typeAlert, []byte{2, 40}))
	if got := p.read(1); len(got) != 0 || p.err == nil {
		t.Errorf("after a fatal alert came %q and %v", got, p.err)
	}
}
