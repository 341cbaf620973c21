package tlsterm

import (
	"bytes"
	"testing"
)

// FuzzServerMessages cuts what a server says after the handshake, tickets of any
// length and key updates, at any places into records: data comes out as it went in.
func FuzzServerMessages(f *testing.F) {
	f.Add(uint16(200), uint8(1), []byte("hello"), []byte{1, 2, 3})
	f.Add(uint16(0), uint8(4), []byte("x"), []byte{255})
	f.Add(uint16(60_000), uint8(2), bytes.Repeat([]byte("long "), 100), []byte{9, 200})
	f.Fuzz(func(t *testing.T, size uint16, tickets uint8, data, cuts []byte) {
		a, b := pair(allSuites[0])
		b.dialed = &dialed{}
		var wire []byte
		for range tickets % 5 {
			m := append([]byte{newSessionTicket, 0, byte(size >> 8), byte(size)}, make([]byte, size)...)
			for i := 0; len(m) > 0; i++ {
				n := min(len(m), maxPlaintext)
				if i < len(cuts) && i < 8 { // and no more records in a row than are let pass
					n = min(n, 1+int(cuts[i]))
				}
				if i >= 4 {
					n = min(len(m), maxPlaintext)
				}
				wire = a.seal(wire, typeHandshake, m[:n])
				m = m[n:]
			}
			wire = a.Seal(wire, data)
			wire = a.updateKey(wire)
		}
		wire = a.Seal(wire, data)
		want := bytes.Repeat(data, 1+int(tickets%5))
		var got []byte
		for i := 0; len(wire) > 0; i++ {
			n := len(wire)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)])*13)
			}
			plain, reply, err := b.Open(bytes.Clone(wire[:n]))
			if err != nil && len(data) == 0 {
				return // too many records without data
			}
			if err != nil || len(reply) > 0 {
				t.Fatalf("%x and %v", reply, err)
			}
			got = append(got, plain...)
			wire = wire[n:]
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came out of %d", len(got), len(want))
		}
	})
}

func TestWhatAServerMayNotSayAfterTheHandshake(t *testing.T) {
	f := func(what string, messages ...[]byte) {
		t.Helper()
		a, b := pair(allSuites[0])
		b.dialed = &dialed{}
		var wire []byte
		for _, m := range messages {
			typ := uint8(typeHandshake)
			if len(m) > 0 && m[0] == 'D' {
				typ = typeData
			}
			wire = a.seal(wire, typ, m)
		}
		if _, reply, err := b.Open(wire); err == nil || len(reply) == 0 {
			t.Errorf("%s: %x, %v", what, reply, err)
		}
	}
	f("nothing", []byte{})
	f("a certificate request", []byte{13, 0, 0, 3, 0, 0, 0})
	f("a hello request", []byte{0, 0, 0, 0})
	f("a ticket that is too long", []byte{newSessionTicket, 2, 0, 0})
	f("data within a ticket", []byte{newSessionTicket, 0, 0, 9, 1}, []byte("Data"))
	f("data within the head of a ticket", []byte{newSessionTicket, 0}, []byte("Data"))
	f("a message behind a key update", []byte{keyUpdate, 0, 0, 1, 0, newSessionTicket, 0, 0, 0})
}
