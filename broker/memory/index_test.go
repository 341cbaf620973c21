package memory

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The index against a plain list, under random additions and removals.
func TestTheIndexIsTheLog(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var o order
		x := ids{}
		var list []*entry
		names := map[uint64]string{}
		last := uint64(0)
		for step := range 6000 {
			switch k := r.IntN(100); {
			case k < 45 || k < 60 && step < 3000:
				last += 1 + uint64(r.IntN(2))
				e := &entry{}
				e.msg.Offset = last
				o.push(e)
				list = append(list, e)
				names[last] = []string{"a", "b", "c", "d"}[r.IntN(4)]
				x.add(names[last], last)
			case len(list) > 0:
				i := 0
				if seed%2 == 0 || k < 80 {
					i = r.IntN(len(list))
				}
				e := list[i]
				list = slices.Delete(list, i, i+1)
				o.remove(e.msg.Offset)
				x.remove(names[e.msg.Offset], &o)
			}
			if step%50 == 0 {
				compareIndex(t, r, &o, x, list, names, last)
			}
		}
		for _, e := range list {
			o.remove(e.msg.Offset)
			x.remove(names[e.msg.Offset], &o)
		}
		if len(o.chunks) != 0 || len(x) != 0 || o.oldest() != nil {
			t.Errorf("seed %d: %d chunks and %d ids are left", seed, len(o.chunks), len(x))
		}
	}
}

func compareIndex(t *testing.T, r *rand.Rand, o *order, x ids, list []*entry, names map[uint64]string, last uint64) {
	t.Helper()
	since := uint64(r.IntN(int(last) + 2))
	var want []*entry
	earliest := map[string]uint64{}
	for _, e := range list {
		if e.msg.Offset > since {
			want = append(want, e)
		}
		if name := names[e.msg.Offset]; earliest[name] == 0 {
			earliest[name] = e.msg.Offset
		}
	}
	if got := slices.Collect(o.after(since)); !slices.Equal(got, want) {
		t.Fatalf("after %d: %d entries, want %d", since, len(got), len(want))
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		if got := x.earliest(name, o); got != earliest[name] {
			t.Fatalf("earliest %s: %d, want %d", name, got, earliest[name])
		}
	}
	n := r.IntN(40)
	got := o.newest(n)
	slices.Reverse(got)
	if want := list[max(0, len(list)-n-1):]; !slices.Equal(got, want) {
		t.Fatalf("newest %d: %d entries, want %d", n, len(got), len(want))
	}
	var first *entry
	if len(list) > 0 {
		first = list[0]
	}
	if o.oldest() != first || o.live != len(list) {
		t.Fatalf("oldest %v of %d, want %v of %d", o.oldest(), o.live, first, len(list))
	}
	slots := 0
	for _, c := range o.chunks[o.head:] {
		slots += len(c.slots)
	}
	if slots > 4*len(list)+chunkSlots+16*len(o.chunks) {
		t.Fatalf("%d slots for %d entries", slots, len(list))
	}
}
