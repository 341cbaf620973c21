package takeover

import (
	"bytes"
	"errors"
	"testing"
)

func TestAStateIsReadAsItWasWritten(t *testing.T) {
	s := State{}.Uint(1, 300).MustUint(2, 1<<63).Bytes(3, []byte("three")).MustString(4, "four").Uint(5, 0).String(6, "").MustBytes(70, bytes.Repeat([]byte("x"), 300))
	want := []Field{{1, 300, nil}, {2, 1 << 63, nil}, {3, 0, []byte("three")}, {4, 0, []byte("four")}, {70, 0, bytes.Repeat([]byte("x"), 300)}}
	var got []Field
	if err := s.Read(func(f Field) (bool, error) { got = append(got, f); return true, nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d fields, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i].Tag != want[i].Tag || got[i].Uint != want[i].Uint || !bytes.Equal(got[i].Bytes, want[i].Bytes) {
			t.Errorf("field %d: %v, want %v", i, got[i], want[i])
		}
	}
}

// That is how an older version reads what a newer one wrote.
func TestUnknownFieldsAreSkippedUnlessTheyMustBeUnderstood(t *testing.T) {
	f := func(s State, ok bool) {
		t.Helper()
		err := s.Read(func(f Field) (bool, error) { return f.Tag == 1, nil })
		if (err == nil) != ok || err != nil && !errors.Is(err, ErrState) {
			t.Errorf("%x: %v, want it read: %v", s, err, ok)
		}
	}
	f(State{}.Uint(1, 1).Uint(2, 1).String(3, "x"), true)
	f(State{}.Uint(1, 1).MustUint(2, 1), false)
	f(State{}.MustString(3, "x").Uint(1, 1), false)
	f(State{}.MustUint(1, 1), true)
	f(State("\x05\x05abc"), false) // fewer bytes than it says
	f(State("\x04"), false)
	f(State("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), false)
}

func TestFieldsComeToTheirPlaces(t *testing.T) {
	s := State{}.Uint(1, 300).Uint(2, 1).String(3, "x").String(4, "a").String(4, "b").Bytes(5, []byte("y")).Bytes(6, []byte("z")).Uint(7, 9).Uint(9, 1).Uint(10, 1)
	var n, called uint64
	var b bool
	var text string
	var list []string
	var raw []byte
	var inner State
	err := s.Into([]any{1: &n, 2: &b, 3: &text, 4: &list, 5: &raw, 6: &inner, 7: func(f Field) error { called = f.Uint; return nil }, 9: nil})
	if err != nil || n != 300 || !b || text != "x" || len(list) != 2 || list[1] != "b" || string(raw) != "y" || string(inner) != "z" || called != 9 {
		t.Errorf("%v: %d %v %q %q %q %q %d", err, n, b, text, list, raw, inner, called)
	}
	for _, places := range [][]any{nil, {1: nil}, {2: &b}} {
		if err := (State{}.MustUint(1, 1)).Into(places); !errors.Is(err, ErrState) {
			t.Errorf("a field without a place in %v: %v", places, err)
		}
	}
	bad := errors.New("bad")
	if err := (State{}.Uint(1, 1)).Into([]any{1: func(Field) error { return bad }}); !errors.Is(err, bad) || !errors.Is(err, ErrState) {
		t.Error(err)
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(State{}.Uint(1, 300).MustString(2, "x")))
	f.Add([]byte("\x05\x05abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again State
		err := State(b).Read(func(f Field) (bool, error) {
			switch {
			case f.Tag > MaxTag:
				t.Fatalf("tag %d", f.Tag)
			case f.Bytes != nil:
				again = again.Bytes(f.Tag, f.Bytes)
			default:
				again = again.Uint(f.Tag, f.Uint)
			}
			return true, nil
		})
		if err == nil && again.Read(func(Field) (bool, error) { return true, nil }) != nil {
			t.Fatalf("%x is read, and %x of its fields is not", b, again)
		}
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(AppendRecord(AppendRecord(nil, 0, State("abc")), 0, State("de")))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame := &Frame{Type: Conns, Body: b}
		list, err := frame.Records()
		if err != nil {
			return
		}
		var again []byte
		for _, r := range list {
			again = AppendRecord(again, len(r.Files), r.State)
		}
		if second, err := (&Frame{Type: Conns, Body: again}).Records(); err != nil || len(second) != len(list) {
			t.Fatalf("%x: %d records, then %d, %v", b, len(list), len(second), err)
		}
	})
}
