package centrifuge

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

func TestACrowdHoldsTheSessionsAdded(t *testing.T) {
	var c crowd
	there := map[*session]bool{}
	var list []*session
	for step := range 5000 {
		grow := step < 2000 || step < 4000 && rand.IntN(2) == 0
		if grow || len(list) == 0 {
			s := &session{}
			s.place = c.add(s)
			there[s] = true
			list = append(list, s)
			continue
		}
		i := rand.IntN(len(list))
		s := list[i]
		c.remove(s.place)
		delete(there, s)
		list[i] = list[len(list)-1]
		list = list[:len(list)-1]
	}
	got := c.appendTo(nil)
	if len(got) != len(there) || c.n != len(there) || len(c.pieces) != (c.n+crowdPiece-1)/crowdPiece {
		t.Fatalf("%d of %d, %d pieces", len(got), len(there), len(c.pieces))
	}
	for i, s := range got {
		if !there[s] || s.place != uint32(i) {
			t.Fatalf("%d: it is at %d, there %v", i, s.place, there[s])
		}
	}
	for _, s := range got {
		c.remove(s.place)
	}
	if c.n != 0 || len(c.pieces) != 0 {
		t.Errorf("%d, %d pieces are left", c.n, len(c.pieces))
	}
}

// What the registry takes for a client without a user, of ten thousand.
func TestTheRegistryIsSmall(t *testing.T) {
	const count = 10_000
	sessions := make([]session, count)
	r := newRegistry()
	bytes := 0
	for i := range sessions {
		p := &r.parts[i%len(r.parts)]
		sessions[i].place = p.anonymous.add(&sessions[i])
	}
	for i := range r.parts {
		c := &r.parts[i].anonymous
		bytes += len(c.pieces)*int(unsafe.Sizeof([crowdPiece]*session{})) + cap(c.pieces)*int(unsafe.Sizeof(c.pieces[0]))
	}
	if each := float64(bytes) / count; each > 9 {
		t.Errorf("%.1f bytes for each", each)
	}
}
