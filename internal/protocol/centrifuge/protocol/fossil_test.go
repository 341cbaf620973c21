package protocol

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol/fossiltest"
)

func checkDelta(t *testing.T, a, b []byte) []byte {
	t.Helper()
	d := AppendDelta(nil, a, b)
	got, err := fossiltest.Apply(a, d, len(b))
	if err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%q to %q by %q: %q, %v", a, b, d, got, err)
	}
	if utf8.Valid(b) && !utf8.Valid(d) {
		t.Fatalf("%q to %q: %q is not UTF-8", a, b, d)
	}
	return d
}

func TestDeltaMakesTheTarget(t *testing.T) {
	f := func(a, b string) { t.Helper(); checkDelta(t, []byte(a), []byte(b)) }
	f("", "")
	f("", "abc")
	f("abc", "")
	f(`{"bid":1.08,"ask":1.09}`, `{"bid":1.08,"ask":1.10}`)
	f(`{"name":"Größe und Länge über alles"}`, `{"name":"Größe und Lönge über alles"}`)
	f("日本語日本語日本語日本語", "日本話日本語日本語日本語本")
	f("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
}

func TestDeltaOfASmallChangeIsSmall(t *testing.T) {
	var a, b bytes.Buffer
	for i := range 200 {
		fmt.Fprintf(&a, `{"id":%d,"price":%d},`, i, i*7)
		fmt.Fprintf(&b, `{"id":%d,"price":%d},`, i, i*7+i/190)
	}
	if d := checkDelta(t, a.Bytes(), b.Bytes()); len(d) > b.Len()/10 {
		t.Errorf("%d bytes of delta for %d", len(d), b.Len())
	}
}

func TestDeltaOfRandomEdits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a := make([]byte, rng.IntN(400))
		for i := range a {
			a[i] = "abc{}\"ü"[rng.IntN(8)]
		}
		b := bytes.Clone(a)
		for range rng.IntN(6) {
			at := rng.IntN(len(b) + 1)
			end := min(at+rng.IntN(30), len(b))
			b = append(append(bytes.Clone(b[:at]), a[:rng.IntN(min(len(a), 40)+1)]...), b[end:]...)
		}
		checkDelta(t, a, b)
	}
}

// The format's own example: what other implementations of it make and take.
func TestDeltaOfOthersIsRead(t *testing.T) {
	f := func(source, delta, want string) {
		t.Helper()
		got, err := fossiltest.Apply([]byte(source), []byte(delta), 1<<10)
		if (want == "") != (err != nil) || string(got) != want {
			t.Errorf("%q: %q, %v", delta, got, err)
		}
	}
	f("hello world", "B\n6@0,5:therexz4NK;", "hello there")
	f("hello world", "B\n6@0,5:there0;", "")     // another sum
	f("hello world", "C\n6@0,5:therexz4NK;", "") // another length
	f("hello world", "B\n6@9,5:therexz4NK;", "")
	f("hello world", "~~~~~~~~~~\n", "")
	f("hello world", "", "")
	f("hello world", "B\n6", "")
	f("hello world", "B\n6,", "")
}

func FuzzDelta(f *testing.F) {
	f.Add([]byte(`{"bid":1.08,"ask":1.09,"time":1}`), []byte(`{"bid":1.08,"ask":1.10,"time":2}`))
	f.Add([]byte("日本語日本語日本語日本語"), []byte("日本話日本語日本語日本語本"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		checkDelta(t, a, b)
		out, err := fossiltest.Apply(a, b, 1<<16)
		if err == nil && len(out) > 1<<16 {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
