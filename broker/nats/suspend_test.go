package nats

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// publishedAt publishes p at b and returns the offset that it has.
func publishedAt(t *testing.T, b *Broker, ns *hub.Namespace, p hub.Publication) (uint64, error) {
	t.Helper()
	type answer struct {
		at  hub.Position
		err error
	}
	done := make(chan answer, 1)
	b.Publish(ns, p, func(at hub.Position, err error) { done <- answer{at, err} })
	a := <-done
	return a.at.Offset, a.err
}

// A server that opens a directory that was passed on reads no idempotency keys, so that no client waits for it. The process
// recognizes them all the same, also the one that takes the directory back, and the next one.
func TestKeysAreRecognizedWhenADirectoryChangesItsProcess(t *testing.T) {
	ns := hub.Namespace{Name: "x"}.WithDefaults()
	dir := t.TempDir()
	start := func(keys [][]byte) *Broker {
		b := newBroker(t, Config{Dir: dir})
		b.fewKeys = 10
		for _, piece := range keys {
			if err := ImportKeys(b, piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Start(t.Context(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	window := func(b *Broker) time.Duration {
		t.Helper()
		in, err := b.all()["x"].look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return in.config.Duplicates
	}
	const n = 60
	of := func(i int) hub.Publication {
		return hub.Publication{Channel: fmt.Sprint("x:", i%7), Data: fmt.Append(nil, i), IdempotencyKey: fmt.Sprint(i)}
	}
	published := 0
	again := func(b *Broker, what string) {
		t.Helper()
		for i := range published + 5 { // and five more
			if at, err := publishedAt(t, b, &ns, of(i)); err != nil || at != uint64(i)+1 {
				t.Fatalf("%s: publication %d is stored at %d, %v", what, i, at, err)
			}
		}
		published += 5
		other := of(0)
		other.Data = []byte("other")
		if _, err := publishedAt(t, b, &ns, other); !errors.Is(err, hub.ErrKeyReused) {
			t.Errorf("%s: other data under the same key: %v", what, err)
		}
		if got := window(b); got != time.Duration(ns.IdempotencyWindow) {
			t.Errorf("%s: the log has a duplicate window of %v", what, got)
		}
	}
	var pieces [][]byte
	suspend := func(b *Broker) {
		t.Helper()
		pieces = nil
		ahead, err := ExportKeys(t.Context(), b, func(piece []byte) error {
			pieces = append(pieces, bytes.Clone(piece))
			return nil
		})
		if err == nil {
			for range 3 { // stored since
				if at, err := publishedAt(t, b, &ns, of(published)); err != nil || at != uint64(published)+1 {
					t.Fatalf("publication %d is stored at %d, %v", published, at, err)
				}
				published++
			}
			err = b.Suspend(ahead)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first := start(nil)
	for i := range n {
		if at, err := publishedAt(t, first, &ns, of(i)); err != nil || at != uint64(i)+1 {
			t.Fatalf("publication %d is stored at %d, %v", i, at, err)
		}
	}
	published = n
	suspend(first)
	if err := first.Resume(); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "the directory to be in use", func() bool { return first.Ready() == nil })
	again(first, "taken back")

	suspend(first)
	second := start(pieces)
	if k := second.all()["x"].keys.Load(); k == nil || !k.complete || len(k.ids) != published {
		t.Errorf("the next process has not got the keys: %+v", k)
	}
	if len(second.handed) > 0 || second.all()["x"].handed != nil {
		t.Error("what was sent is kept when the log is open")
	}
	again(second, "passed on")
	suspend(second)
	third := start(pieces[:1]) // the old process has ended then
	if k := third.all()["x"].keys.Load(); k == nil || k.complete {
		t.Errorf("a part of the keys counts as all: %+v", k)
	}
	again(third, "passed on in part")

	suspend(third) // which does not know all keys itself
	fourth := start(pieces)
	if fourth.all()["x"].keys.Load() != nil {
		t.Error("a directory was passed on without all keys, and its server has not read them")
	}
	again(fourth, "passed on without keys")
	if err := fourth.Suspend(nil); err != nil {
		t.Fatal(err)
	}
	fifth := start(nil)
	if fifth.all()["x"].keys.Load() != nil {
		t.Error("a directory that an older version is to open has a short window")
	}
	again(fifth, "passed on to an older version")
	for _, b := range []*Broker{fifth, fourth, third, second, first} {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What is not known to have an answer may be stored: then the keys that a process has are not all.
func TestKeysOfALogInThisProcess(t *testing.T) {
	const window = time.Minute
	synctest.Test(t, func(t *testing.T) {
		var r recentKeys
		f := func(what string, since uint64, want []uint64, complete bool) {
			t.Helper()
			list, ok := r.after(since, window)
			var got []uint64
			for _, k := range list {
				got = append(got, k.seq)
			}
			if !slices.Equal(got, want) || ok != complete {
				t.Errorf("%s: %v, complete: %v; want %v, %v", what, got, ok, want, complete)
			}
		}
		f("none", 0, nil, true)
		r.add(hub.KeyID{1}, 1, window)
		time.Sleep(window / 2)
		r.add(hub.KeyID{2}, 2, window)
		f("two", 0, []uint64{1, 2}, true)
		f("those after one", 1, []uint64{2}, true)
		r.missing()
		f("one is missing", 0, []uint64{1, 2}, false)
		time.Sleep(window/2 + 1)
		r.add(hub.KeyID{3}, 3, window)
		f("the first is older than the window", 0, []uint64{2, 3}, false)
		time.Sleep(window / 2)
		f("so is the one that is missing", 0, []uint64{2, 3}, true)
		for i := range uint64(mostRecent + 1) {
			r.add(hub.KeyID{4}, 4+i, window)
		}
		if list, complete := r.after(0, window); complete || len(list) != mostRecent || list[0].seq != 5 {
			t.Errorf("more than it keeps: %d from %d, complete: %v", len(list), list[0].seq, complete)
		}
		time.Sleep(window + 1)
		r.add(hub.KeyID{5}, 9, window)
		f("all but one are older than the window", 0, []uint64{9}, true)
	})
}

// What another process sends may be anything.
func FuzzKeysFromAnotherProcess(f *testing.F) {
	id := hub.KeyID{1}
	good := appendKeys(nil, "x.1", 301, []recentKey{{id: id, seq: 300}})
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, piece []byte) {
		b := &Broker{}
		err := ImportKeys(b, piece)
		if bytes.Equal(piece, good) && (err != nil || b.handed["x.1"].last != 301 || b.handed["x.1"].ids[id] != 300) {
			t.Errorf("%v, %+v", err, b.handed)
		}
		for log, h := range b.handed {
			for _, seq := range h.ids {
				if err == nil && (seq == 0 || !bytes.Contains(piece, []byte(log))) {
					t.Errorf("message %d of a log %q that ends at %d", seq, log, h.last)
				}
			}
		}
	})
}
