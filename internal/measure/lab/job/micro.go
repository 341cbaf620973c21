package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// timed runs op again and again in batches and returns how often, and the
// processor time and the allocations of the process meanwhile.
func timed(ctx context.Context, d time.Duration, op func()) (calls, seconds, allocs float64, err error) {
	const batch = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := sys.CPUTime()
	n, err := repeat(ctx, d, func() error {
		for range batch {
			op()
		}
		return nil
	})
	seconds = (sys.CPUTime() - used).Seconds()
	runtime.ReadMemStats(&after)
	return float64(n * batch), seconds, float64(after.Mallocs - before.Mallocs), err
}

type key struct{}

// A reusable is a context that is given a new deadline and a new value instead of
// being made again. It can do so only because no code keeps it.
type reusable struct {
	context.Context
	deadline time.Time
	value    any
}

func (r *reusable) Deadline() (time.Time, bool) { return r.deadline, true }
func (r *reusable) Value(k any) any {
	if k == (key{}) {
		return r.value
	}
	return r.Context.Value(k)
}

// contexts compares the ways to bring a deadline and a value to a request:
// setting kind is fresh, reused or argument.
func contexts(ctx context.Context, p Params) (Values, error) {
	pool := sync.Pool{New: func() any { return &reusable{Context: ctx} }}
	user, sink := "user", ""
	op := map[string]func(){
		"fresh": func() {
			c, cancel := context.WithTimeout(context.WithValue(ctx, key{}, user), time.Second)
			sink = c.Value(key{}).(string)
			cancel()
		},
		"reused": func() {
			r := pool.Get().(*reusable)
			r.deadline, r.value = time.Now().Add(time.Second), user
			sink = r.Value(key{}).(string)
			pool.Put(r)
		},
		"argument": func() {
			deadline := time.Now().Add(time.Second)
			sink = user
			runtime.KeepAlive(deadline)
		},
	}[p.Set["kind"]]
	if op == nil {
		return nil, fmt.Errorf("kind %q: fresh, reused or argument", p.Set["kind"])
	}
	calls, seconds, allocs, err := timed(ctx, p.Duration, op)
	runtime.KeepAlive(sink)
	return Values{"seconds": seconds / calls, "allocs": allocs / calls}, err
}

// counters has one goroutine per CPU count events: setting kind is mutex, atomic
// or batched (a ring of its own that is added up when it is full).
func counters(ctx context.Context, p Params) (Values, error) {
	var (
		mu     sync.Mutex
		plain  uint64
		shared atomic.Uint64
	)
	batched := func() func() {
		var ring [256]uint8
		at := 0
		return func() {
			ring[at] = 1
			if at++; at < len(ring) {
				return
			}
			at = 0
			sum := uint64(0)
			for _, v := range ring {
				sum += uint64(v)
			}
			shared.Add(sum)
		}
	}
	ops := map[string]func() func(){
		"mutex":   func() func() { return func() { mu.Lock(); plain++; mu.Unlock() } },
		"atomic":  func() func() { return func() { shared.Add(1) } },
		"batched": batched,
	}
	op := ops[p.Set["kind"]]
	if op == nil {
		return nil, fmt.Errorf("kind %q: mutex, atomic or batched", p.Set["kind"])
	}
	n := runtime.GOMAXPROCS(0)
	counts, errs := make([]float64, n), make([]error, n)
	used := sys.CPUTime()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { counts[i], _, _, errs[i] = timed(ctx, p.Duration, op()) })
	}
	wg.Wait()
	sum := 0.0
	for _, c := range counts {
		sum += c
	}
	return Values{"seconds": (sys.CPUTime() - used).Seconds() / sum}, errors.Join(errs...)
}

// A quote is what is encoded: a message of ordinary shape.
type quote struct {
	Channel string  `json:"channel"`
	Offset  uint64  `json:"offset"`
	Symbol  string  `json:"symbol"`
	Bid     float64 `json:"bid"`
	Ask     float64 `json:"ask"`
	Note    string  `json:"note"`
}

// encode turns a message into JSON: setting kind is fresh (a new buffer and
// encoder each time), pooled (a buffer of the right size kept) or append (written
// by hand into it).
func encode(ctx context.Context, p Params) (Values, error) {
	q := quote{"market", 42, "WEIR", 101.25, 101.27, "a note of a length that is not unusual in such messages"}
	buffers := sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, 1024)) }}
	var out []byte
	op := map[string]func(){
		"fresh": func() {
			var b bytes.Buffer
			_ = json.NewEncoder(&b).Encode(q) // a quote can always be encoded
			out = append([]byte(nil), b.Bytes()...)
		},
		"pooled": func() {
			b := buffers.Get().(*bytes.Buffer)
			b.Reset()
			_ = json.NewEncoder(b).Encode(&q)
			buffers.Put(b)
		},
		"append": func() { out = appendQuote(out[:0], &q) },
	}[p.Set["kind"]]
	if op == nil {
		return nil, fmt.Errorf("kind %q: fresh, pooled or append", p.Set["kind"])
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls, seconds, allocs, err := timed(ctx, p.Duration, op)
	runtime.ReadMemStats(&after)
	return Values{
		"seconds": seconds / calls, "allocs": allocs / calls,
		"gc_per_100k": float64(after.NumGC-before.NumGC) / calls * 1e5,
	}, err
}

func appendQuote(b []byte, q *quote) []byte {
	b = strconv.AppendQuote(append(b, `{"channel":`...), q.Channel)
	b = strconv.AppendUint(append(b, `,"offset":`...), q.Offset, 10)
	b = strconv.AppendQuote(append(b, `,"symbol":`...), q.Symbol)
	b = strconv.AppendFloat(append(b, `,"bid":`...), q.Bid, 'g', -1, 64)
	b = strconv.AppendFloat(append(b, `,"ask":`...), q.Ask, 'g', -1, 64)
	b = strconv.AppendQuote(append(b, `,"note":`...), q.Note)
	return append(b, '}')
}

// preempt runs heartbeats that compute for 100 ms without a function call, and
// measures how late others run. GODEBUG=asyncpreemptoff=1 in its environment shows
// what they cost where a loop cannot be interrupted.
func preempt(ctx context.Context, p Params) (Values, error) {
	stop := time.Now().Add(p.Duration)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Now().Before(stop) && ctx.Err() == nil {
				spin(spinsFor(100 * time.Millisecond))
				time.Sleep(100 * time.Millisecond) // the heartbeat's interval: what is measured, not a wait
			}
		})
	}
	var late []float64
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for due := time.Now(); time.Now().Before(stop); due = time.Now() {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
			late = append(late, max(time.Since(due)-time.Millisecond, 0).Seconds())
		}
	}
	wg.Wait()
	return Values{"late_p50": quantile(late, 0.5), "late_p99": quantile(late, 0.99), "late_max": quantile(late, 1)}, nil
}

// spun keeps the compiler from dropping the loop.
var spun atomic.Uint64

// spin computes without a point at which it would yield by itself.
func spin(n uint64) {
	x := uint64(1)
	for range n {
		x = x*6364136223846793005 + 1442695040888963407
	}
	spun.Store(x)
}

// spinsFor returns how many turns take about d here.
var spinsFor = func() func(time.Duration) uint64 {
	perSecond := sync.OnceValue(func() float64 {
		const n = 10_000_000
		began := time.Now()
		spin(n)
		return n / time.Since(began).Seconds()
	})
	return func(d time.Duration) uint64 { return uint64(perSecond() * d.Seconds()) }
}()
