package tlsterm

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// movable is a record layer as after a handshake of a suite, and its twin on the client's side.
func movable(version, id uint16) (server, client *records) {
	make1 := func(in, out byte) *records {
		r := &records{loopState: newLoopState(), suite: suiteOf(version, id), peer: bareHTTP1}
		for h, seed := range map[*half]byte{&r.in: in, &r.out: out} {
			if r.suite.v13 {
				r.suite.setSecret(h, bytes.Repeat([]byte{seed}, r.suite.hashLen))
			} else {
				copy(h.key[:r.suite.keyLen], bytes.Repeat([]byte{seed}, 32))
				copy(h.iv[:12-r.suite.explicit], bytes.Repeat([]byte{seed + 1}, 12))
				copy(h.secret[:r.suite.secretLen()], bytes.Repeat([]byte{seed + 2}, 32))
				h.seq = 1
			}
		}
		return r
	}
	return make1(1, 2), make1(2, 1)
}

// passes has from seal what to opens.
func passes(t *testing.T, what string, from, to *records, text string) {
	t.Helper()
	plain, _, err := to.Open(from.Seal(nil, []byte(text)))
	if err != nil || string(plain) != text {
		t.Errorf("%s: %q, %v; want %q", what, plain, err, text)
	}
}

func TestARecordLayerResumesInAnotherProcess(t *testing.T) {
	f := func(version, id uint16) {
		t.Helper()
		server, client := movable(version, id)
		say := func(from, to *records, text string) {
			t.Helper()
			passes(t, fmt.Sprintf("%x %x", version, id), from, to, text)
		}
		say(client, server, "one")
		say(server, client, "two")
		if version == tls.VersionTLS13 {
			say(client, server, "before a key update")
			if _, _, err := server.Open(client.updateKey(nil)); err != nil {
				t.Fatal(err)
			}
		}
		half := client.Seal(nil, []byte("in two pieces"))
		if _, _, err := server.Open(bytes.Clone(half[:9])); err != nil {
			t.Fatal(err)
		}
		state, ok := server.AppendState(nil)
		if !ok || len(state) > 280 {
			t.Fatalf("%x %x: a state of %d bytes, %v", version, id, len(state), ok)
		}
		server.Wipe()
		if server.in.key != [32]byte{} || server.out.key != [32]byte{} || server.in.secret != [48]byte{} || server.out.secret != [48]byte{} || server.out.iv != [12]byte{} {
			t.Errorf("%x %x: keys are left", version, id)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%x %x: a wiped record layer seals", version, id)
				}
			}()
			server.Seal(nil, []byte("x"))
		}()
		other := &Terminator{loopStates: []*loopState{newLoopState()}}
		restored, _, err := other.Restore(0, state)
		if err != nil {
			t.Fatal(err)
		}
		again := restored.(*records)
		if again.peer.Protocol != "http/1.1" {
			t.Errorf("protocol %q", again.peer.Protocol)
		}
		if plain, _, err := again.Open(half[9:]); err != nil || string(plain) != "in two pieces" {
			t.Errorf("%x %x: %q, %v", version, id, plain, err)
		}
		say(again, client, "three")
		say(client, again, "four")
		if version == tls.VersionTLS13 {
			if _, _, err := client.Open(again.updateKey(nil)); err == nil {
				say(again, client, "after a key update")
			}
		}
	}
	f(tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256)
	f(tls.VersionTLS13, tls.TLS_AES_256_GCM_SHA384)
	f(tls.VersionTLS13, tls.TLS_CHACHA20_POLY1305_SHA256)
	f(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)
	f(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)
	f(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)
	for _, s := range gm.Suites {
		f(s.Version, s.ID)
	}
}

// A connection that was dialed resumes, too, in the middle of a session ticket.
func TestADialedRecordLayerResumesInAnotherProcess(t *testing.T) {
	f := func(version, id uint16) {
		t.Helper()
		server, client := movable(version, id)
		client.peer, client.dialed = nil, &dialed{}
		say := func(from, to *records, text string) {
			t.Helper()
			passes(t, fmt.Sprintf("%x %x", version, id), from, to, text)
		}
		say(client, server, "one")
		if version == tls.VersionTLS13 {
			if _, _, err := client.Open(server.seal(nil, typeHandshake, []byte{newSessionTicket, 0, 0, 9, 1, 2})); err != nil {
				t.Fatal(err)
			}
		}
		state, ok := client.AppendState(nil)
		if !ok {
			t.Fatalf("%x %x: it does not move", version, id)
		}
		client.Wipe()
		if _, _, err := (&Terminator{loopStates: []*loopState{newLoopState()}}).Restore(0, state); err == nil {
			t.Error("the server's side takes the client's state")
		}
		restored, err := NewClient(1).Restore(0, state)
		if err != nil {
			t.Fatal(err)
		}
		again := restored.(*records)
		if version == tls.VersionTLS13 {
			if plain, _, err := again.Open(server.seal(nil, typeHandshake, []byte{3, 4, 5, 6, 7, 8, 9})); err != nil || len(plain) > 0 {
				t.Errorf("%x %x: the end of a ticket: %q, %v", version, id, plain, err)
			}
		}
		say(again, server, "two")
		say(server, again, "three")
	}
	f(tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256)
	f(tls.VersionTLS13, tls.TLS_CHACHA20_POLY1305_SHA256)
	f(tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)
	for _, s := range gm.Suites {
		f(s.Version, s.ID)
	}
}

func FuzzRestore(f *testing.F) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		r, _ := movable(version, tls.TLS_AES_128_GCM_SHA256)
		s, _ := r.AppendState(nil)
		f.Add([]byte(s))
	}
	for _, g := range gm.Suites {
		r, _ := movable(g.Version, g.ID)
		s, _ := r.AppendState(nil)
		f.Add([]byte(s))
	}
	t1 := &Terminator{loopStates: []*loopState{newLoopState()}}
	t1.current.Store(&service{config: &tls.Config{}})
	dials, _ := movable(tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256)
	dials.dialed = &dialed{skip: 7}
	s, _ := dials.AppendState(nil)
	f.Add([]byte(s))
	cl := NewClient(1)
	f.Fuzz(func(t *testing.T, b []byte) {
		x, _, err := t1.Restore(0, takeover.State(b))
		if err != nil {
			if x, err = cl.Restore(0, takeover.State(b)); err != nil {
				return
			}
		}
		r := x.(*records)
		r.Seal(nil, []byte("x"))
		_, _, _ = r.Open([]byte{23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
		if again, ok := r.AppendState(nil); ok && !r.failed {
			_, _, err := t1.Restore(0, again)
			if r.dialed != nil {
				_, err = cl.Restore(0, again)
			}
			if err != nil {
				t.Fatalf("%x: its state again: %v", b, err)
			}
		}
	})
}
