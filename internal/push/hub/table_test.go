package hub

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

func (t *table) insert(ch *channel) {
	hash := t.hash(ch.name)
	p := t.part(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(ch, hash)
}

func (t *table) drop(ch *channel) {
	hash := t.hash(ch.name)
	p := t.part(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(ch, hash)
}

func (t *table) get(name string) *channel { return t.find(name, t.hash(name)) }

// TestTableIsAMap compares it with one over many changes, from small to large and back.
func TestTableIsAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	table, want := newTable(), map[string]*channel{}
	for step := range 200_000 {
		most := 1 + step/50
		if step > 100_000 {
			most = 1 + (200_000-step)/50
		}
		name := fmt.Sprint("channel.", r.IntN(4000))
		switch ch := want[name]; {
		case ch != nil && (r.IntN(2) == 0 || len(want) > most):
			table.drop(ch)
			delete(want, name)
		case ch == nil && len(want) < most:
			ch = &channel{name: name}
			table.insert(ch)
			want[name] = ch
		}
		if got := table.get(name); got != want[name] {
			t.Fatalf("step %d: %q is %p, want %p", step, name, got, want[name])
		}
		if step%20_000 == 0 {
			n := 0
			for i := range table.parts {
				n += len(table.parts[i].all())
			}
			if n != len(want) {
				t.Fatalf("step %d: %d channels, want %d", step, n, len(want))
			}
		}
	}
	for i := range table.parts {
		if p := &table.parts[i]; p.taken > len(*p.slots.Load())*3/4 || p.n == 0 && len(*p.slots.Load()) > leastSlots {
			t.Errorf("part %d: %d of %d slots taken by %d", i, p.taken, len(*p.slots.Load()), p.n)
		}
	}
}

// TestWhatStaysIsAlwaysFound looks up channels that stay while others come and go, so that
// the table grows, shrinks and is cleaned meanwhile; and names that are never there.
func TestWhatStaysIsAlwaysFound(t *testing.T) {
	table := newTable()
	stay := make([]*channel, 300)
	for i := range stay {
		stay[i] = &channel{name: fmt.Sprint("stays.", i)}
		table.insert(stay[i])
	}
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for !over.Load() {
				for i, ch := range stay {
					if table.get(ch.name) != ch {
						t.Errorf("%q is not found", ch.name)
						return
					}
					hash := table.hash(ch.name)
					table.prefetch(hash)
					_ = table.guess(hash)
					if name := fmt.Sprint("never.", i); table.get(name) != nil {
						t.Errorf("%q is found", name)
						return
					}
				}
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			for range 30 {
				var mine []*channel
				for i := range 3000 {
					ch := &channel{name: fmt.Sprint("goes.", w, ".", i)}
					table.insert(ch)
					mine = append(mine, ch)
				}
				for _, ch := range mine {
					table.drop(ch)
				}
			}
		})
	}
	writers.Wait()
	over.Store(true)
	readers.Wait()
}

// TestFindingTakesNoLock finds while the part is locked, as long as nothing changes.
func TestFindingTakesNoLock(t *testing.T) {
	table := newTable()
	ch := &channel{name: "x"}
	table.insert(ch)
	p := table.part(table.hash("x"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if table.get("x") != ch || table.get("y") != nil {
		t.Error("x is there, and y is not")
	}
	if n := testing.AllocsPerRun(100, func() { table.get("x") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFind(b *testing.B) {
	table := newTable()
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprint("c", i)
		table.insert(&channel{name: names[i]})
	}
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if table.get(names[i%len(names)]) == nil {
				b.Error("not found")
				return
			}
		}
	})
}
