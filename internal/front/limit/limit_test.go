package limit

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
)

func TestABucketLetsItsBurstAndThenItsRateThrough(t *testing.T) {
	tb := NewTable(8)
	key := tb.KeyString(0, "ann")
	q := Rate{PerSecond: 10, Burst: 3}.Quota()
	f := func(at, wait time.Duration) {
		t.Helper()
		got, ok := tb.Allow(key, q, int64(at))
		if ok != (wait == 0) || got != wait {
			t.Errorf("at %v: %v, %v; want a wait of %v", at, got, ok, wait)
		}
	}
	const ms = time.Millisecond
	f(1000*ms, 0)
	f(1000*ms, 0)
	f(1000*ms, 0)
	f(1000*ms, 100*ms)
	f(1030*ms, 70*ms)
	f(1100*ms-1, 1)
	f(1100*ms, 0)
	f(1100*ms, 100*ms)
	f(1250*ms, 0)
	f(1250*ms, 50*ms)
	f(9000*ms, 0) // full again, and no fuller than its burst
	f(9000*ms, 0)
	f(9000*ms, 0)
	f(9000*ms, 100*ms)
	f(8000*ms, 1100*ms) // a clock of another loop that is behind
}

// The answer is exact: a nanosecond before it is refused, and then it is let through.
func TestTheWaitIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tb := NewTable(8)
	for i := range 2000 {
		q := Rate{PerSecond: math.Exp(r.Float64()*16 - 4), Burst: 1 + r.IntN(20)}.Quota()
		key, now := tb.KeyString(uint64(i), "x"), int64(i)*1e12
		for range 40 {
			wait, ok := tb.Allow(key, q, now)
			if ok {
				now += r.Int64N(q.step)
				continue
			}
			if _, ok := tb.Allow(key, q, now+int64(wait)-1); ok {
				t.Fatalf("%+v: let through before the wait of %v", q, wait)
			}
			now += int64(wait)
			if _, ok := tb.Allow(key, q, now); !ok {
				t.Fatalf("%+v: refused after the wait of %v", q, wait)
			}
		}
	}
}

func TestSeveralTokensAtOnce(t *testing.T) {
	tb := NewTable(8)
	key, q := tb.KeyString(0, "x"), Rate{PerSecond: 1, Burst: 5}.Quota()
	f := func(n int64, wait time.Duration) {
		t.Helper()
		if got, ok := tb.AllowN(key, q, 0, n); got != wait || ok != (wait == 0) {
			t.Errorf("%d tokens: %v, %v", n, got, ok)
		}
	}
	f(6, math.MaxInt64)
	f(3, 0)
	f(3, time.Second)
	f(2, 0)
	f(0, 0)
	f(-1, 0)
	f(1, time.Second)
	if got, ok := tb.AllowN(key, Quota{}, 0, 100); got != 0 || !ok {
		t.Error("no quota is a limit")
	}
}

func TestRates(t *testing.T) {
	f := func(r Rate, want string) {
		t.Helper()
		err := r.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	f(Rate{}, "")
	f(Rate{PerSecond: 0.5}, "")
	f(Rate{PerSecond: 1e9, Burst: 1}, "")
	f(Rate{PerSecond: -1}, "per_second")
	f(Rate{PerSecond: math.NaN()}, "per_second")
	f(Rate{PerSecond: math.Inf(1)}, "per_second")
	f(Rate{PerSecond: 1e-9}, "less than one a day")
	f(Rate{Burst: 5}, "no meaning")
	f(Rate{PerSecond: 1, Burst: -1}, "burst")
	f(Rate{PerSecond: 0.0001, Burst: 1e6}, "over a year")
	if q := (Rate{PerSecond: 0.5}).Quota(); q.step != 2e9 || q.burst != 0 || !q.Limited() {
		t.Errorf("%+v", q)
	}
	if q := (Rate{PerSecond: 500}).Quota(); q.step != 2e6 || q.burst != 2e6*499 {
		t.Errorf("%+v", q)
	}
}

func TestRetryAfterRoundsUp(t *testing.T) {
	f := func(wait time.Duration, want int64) {
		t.Helper()
		if got := RetryAfter(wait); got != want {
			t.Errorf("%v: %d, want %d", wait, got, want)
		}
	}
	f(0, 1)
	f(1, 1)
	f(time.Second, 1)
	f(time.Second+1, 2)
	f(90*time.Second, 90)
	f(math.MaxInt64, math.MaxInt64/int64(time.Second)+1)
}

func TestAFullTableForgetsTheFullestBucket(t *testing.T) {
	tb := NewTable(1) // one set
	q := Rate{PerSecond: 1, Burst: 100}.Quota()
	key := func(i int) uint64 { return uint64(i + 1) }
	for i := range ways {
		if _, ok := tb.AllowN(key(i), q, 0, int64(10*(i+1))); !ok {
			t.Fatal("refused")
		}
	}
	if st := tb.Stats(0); st.Used != ways || st.Evicted != 0 || st.Buckets != ways {
		t.Errorf("%+v", st)
	}
	tb.Allow(key(100), q, 0) // the place of the one that had used 10
	if st := tb.Stats(0); st.Evicted != 1 {
		t.Errorf("%+v", st)
	}
	if _, ok := tb.AllowN(key(ways-1), q, 0, 21); ok {
		t.Error("the emptiest bucket was forgotten")
	}
	tb.Allow(key(101), q, 30e9) // 100 and 1 are full again: nothing is lost
	if st := tb.Stats(30e9); st.Evicted != 1 || st.Used != ways-2 {
		t.Errorf("%+v", st)
	}
	if st := tb.Stats(30e9); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

func TestSizesAreRoundedUp(t *testing.T) {
	f := func(n, want int) {
		t.Helper()
		if got := NewTable(n).Stats(0).Buckets; got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
	f(0, DefaultBuckets)
	f(1, 8)
	f(8, 8)
	f(9, 16)
	f(1000, 1024)
}

func TestKeysAreApart(t *testing.T) {
	tb := NewTable(8)
	addr := netip.MustParseAddr
	same := func(a, b uint64, want bool) {
		t.Helper()
		if a == 0 || b == 0 || (a == b) != want {
			t.Errorf("%x, %x", a, b)
		}
	}
	same(tb.Key(1, []byte("a")), tb.KeyString(1, "a"), true)
	same(tb.KeyString(1, "a"), tb.KeyString(2, "a"), false)
	same(tb.KeyString(1, "a"), tb.KeyString(1, "b"), false)
	same(tb.KeyString(1, "a"), NewTable(8).KeyString(1, "a"), false)
	same(tb.KeyAddr(1, addr("192.0.2.1"), 0), tb.KeyAddr(1, addr("::ffff:192.0.2.1"), 0), true)
	same(tb.KeyAddr(1, addr("192.0.2.1"), 0), tb.KeyAddr(1, addr("192.0.2.2"), 0), false)
	same(tb.KeyAddr(1, addr("2001:db8::1"), 0), tb.KeyAddr(1, addr("2001:db8::ffff:0:0:2%eth0"), 0), true)
	same(tb.KeyAddr(1, addr("2001:db8::1"), 0), tb.KeyAddr(1, addr("2001:db8:0:1::1"), 0), false)
	same(tb.KeyAddr(1, addr("2001:db8::1"), 128), tb.KeyAddr(1, addr("2001:db8::2"), 128), false)
	same(tb.KeyAddr(1, addr("2001:db8::1"), 48), tb.KeyAddr(1, addr("2001:db8:0:1::1"), 48), true)
}

// However many goroutines ask, and while buckets come and go around it, a key gets
// its burst and no more.
func TestTheBurstIsABoundForManyGoroutines(t *testing.T) {
	tb := NewTable(64)
	q := Rate{PerSecond: 1, Burst: 1000}.Quota()
	var got atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				if _, ok := tb.Allow(uint64(77), q, 5); ok {
					got.Add(1)
				}
				tb.Allow(tb.KeyString(uint64(g), fmt.Sprint(i)), q, 5)
			}
		})
	}
	wg.Wait()
	if n := got.Load(); n != 1000 {
		t.Errorf("%d let through, the burst is 1000", n)
	}
}

// Goroutines that meet at a new key make one bucket of it.
func TestAKeyThatIsNewToSeveralAtOnceGetsOneBucket(t *testing.T) {
	tb := NewTable(1 << 12)
	q := Rate{PerSecond: 1, Burst: 1}.Quota()
	const keys, each = 2000, 8
	var got [keys]atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range each {
		wg.Go(func() {
			<-start
			for k := range keys {
				if _, ok := tb.Allow(uint64(k+1), q, 0); ok {
					got[k].Add(1)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for k := range got {
		if n := got[k].Load(); n != 1 {
			t.Errorf("key %d: %d let through", k, n)
		}
	}
}

func TestTakingAllocatesNothing(t *testing.T) {
	tb := NewTable(16)
	q, name, a := Rate{PerSecond: 10}.Quota(), []byte("ann"), netip.MustParseAddr("2001:db8::1")
	list, err := NewAddresses(Lists{Allow: []string{"2001:db8::/32", "10.0.0.0/8"}, Deny: []string{"2001:db8::/64"}})
	if err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(Trusted{Proxies: []string{"2001:db8::/32"}})
	if err != nil {
		t.Fatal(err)
	}
	forwarded, err := NewTrust(Trusted{Proxies: []string{"2001:db8::/32"}, Header: "forwarded"})
	if err != nil {
		t.Fatal(err)
	}
	fields := fieldLines("X-Forwarded-For: 1.2.3.4, 2001:db8::7", "Forwarded: for=1.2.3.4, for=\"[2001:db8::7]\"", "X-Forwarded-For: 2001:db8::8, nonsense")
	i := uint64(0)
	if n := testing.AllocsPerRun(1000, func() {
		i++
		tb.Allow(tb.Key(i, name), q, int64(i))
		tb.Allow(tb.KeyAddr(1, a, 0), q, 0)
		list.Allowed(a)
		trust.Client(a, fields)
		forwarded.Client(a, fields)
		trust.Origin(fields)
		forwarded.Origin(fields)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func fieldLines(lines ...string) []http1.Field {
	var out []http1.Field
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		out = append(out, http1.Field{Name: []byte(name), Value: []byte(value)})
	}
	return out
}

func BenchmarkTake(b *testing.B) {
	tb := NewTable(0)
	q := Rate{PerSecond: 1e9, Burst: 1e9}.Quota()
	var key [8]byte
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := key
		for i := uint64(0); pb.Next(); i++ {
			binary.LittleEndian.PutUint64(key[:], i%10000)
			tb.Allow(tb.Key(1, key[:]), q, int64(i))
		}
	})
}
