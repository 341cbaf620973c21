package accept

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// A world is what one measurement of an indicator works with.
type world struct {
	opt     *Options
	plan    plan
	chain   *chain
	ev      *Evidence
	known   *knowledge
	started time.Time
	dir     string // for files that are not kept
	ind     string
	cpus    []int // of the gateways that are started; nil: all
}

// knowledge is what one indicator found out and others need too.
type knowledge struct {
	rate float64 // the target rate; 0: not known yet
	from string  // where it comes from
	mix  float64 // the capacity of the mix of burst and priority; 0: not known yet
}

// apiKey lets the load publish. The gateway lives for minutes on loopback.
const apiKey = "acceptance-key-of-this-run"

// baseConfig is what every gateway of a run has: loopback, memory alone, one key.
const baseConfig = `listen: 127.0.0.1:0
admin: {listen: "127.0.0.1:0"}
broker: {kind: memory}
auth: {api_keys: [{name: accept, key: ` + apiKey + `, publish: ["**"]}]}
shutdown: {drain: 50ms}
log: {level: error}
`

// plainConfig adds one namespace that anyone may read.
const plainConfig = baseConfig + `namespaces: [{name: default, anonymous: true, durability: none}]
`

// progress reports what happens.
func (w *world) progress(format string, a ...any) {
	if w.opt.Progress != nil {
		w.opt.Progress(w.ind, fmt.Sprintf(format, a...))
	}
}

// keep writes v as a file of the evidence.
func (w *world) keep(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	file := path.Join("evidence", w.ind, fmt.Sprintf("%d-%02d-%s", w.ev.Attempt, len(w.ev.Files)+1, name))
	w.ev.Files = append(w.ev.Files, file)
	return w.chain.add(file, append(b, '\n'))
}

// addLimited counts the windows in which the generator was the limit.
func addLimited(w *world, windows []loadgen.Window) {
	if w.opt.host != nil { // the machine is what a test says, however busy it is
		return
	}
	for i := range windows {
		w.ev.Limited.Of++
		if g := windows[i].Generator; g.Limited && !g.Crowded {
			w.ev.Limited.N++
			w.ev.LimitedWhy = g.Why
		}
	}
}

// trouble counts what must not happen to a load as counts of the evidence: errors of
// exchanges and connections, and with streams what was lost, repeated or reordered.
func (w *world) trouble(r *loadgen.Result) {
	t := &r.Total
	var n uint64
	var what []string
	for why, k := range t.Errors {
		n += k
		what = append(what, fmt.Sprintf("%s: %d", why, k))
	}
	w.ev.count("errors", n+t.Dropped, t.Offered, what...)
	if d := t.Delivery; d != nil {
		w.ev.count("lost", d.Lost+d.Late, d.Expected)
		w.ev.count("repeated", d.Repeated, d.Expected)
		w.ev.count("reordered", d.Reordered, d.Expected)
	}
}

// noTrouble are the criteria of trouble's counts.
func noTrouble(streams bool) []criterion {
	list := []criterion{{name: "errors", what: "errors and arrivals that were not sent", kind: none}}
	if streams {
		list = append(list,
			criterion{name: "lost", what: "acknowledged messages that a subscriber did not receive", kind: none},
			criterion{name: "repeated", what: "messages received twice", kind: none},
			criterion{name: "reordered", what: "messages received out of order", kind: none})
	}
	return list
}

// tail adds the P99 of the response over time to a series: of as many windows at a time as a P99
// takes.
func (w *world) tail(name string, windows []loadgen.Window) {
	var o outcome
	for i := range windows {
		o.add(&windows[i])
		if v, ok := o.enough(0.99); ok {
			w.ev.point(name, windows[i].Start.Sub(w.started).Seconds(), v)
			o = outcome{}
		}
	}
}

// enough is a quantile in seconds; false when there are too few answers for it.
func (o *outcome) enough(q float64) (float64, bool) {
	if o.times == nil || !stat.EnoughSamples(int(o.times.TotalCount()), q) {
		return 0, false
	}
	return o.quantile(100 * q), true
}

// quantile is a window's, in seconds; false when too few answers carry one.
func quantile(w *loadgen.Window, q float64) (float64, bool) {
	var o outcome
	o.add(w)
	return o.enough(q)
}

// since is the seconds since the measurement started.
func (w *world) since() float64 { return time.Since(w.started).Seconds() }

// watch notes what the machine does, and what the node holds if there is one, until stop is
// called: about once a second, less often in a long measurement. It begins after some time, in
// which the node still grows.
func (w *world) watch(ctx context.Context, s *process.Server, after, length time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if !sleep(ctx, after) {
			return
		}
		tick := time.NewTicker(max(min(w.opt.every, max(length/4, shortest)), length/maxPoints))
		defer tick.Stop()
		start, shown := time.Now(), time.Now()
		for done := false; !done; {
			if time.Since(shown) >= time.Minute {
				shown = time.Now()
				w.progress("%v of %v", time.Since(start).Round(time.Second), length)
			}
			since, used := loadgen.StartHostSample(), childrenCPU()
			began := time.Now()
			select {
			case <-ctx.Done():
				if done = true; time.Since(began) < shortest {
					return // the kernel counts in ticks: too short for shares
				}
			case <-tick.C:
			}
			h, g := since()
			c := stat.Covariates{Steal: h.Steal, Pressure: h.Pressure, Wait: h.Wait, Busy: h.Busy}
			own := g.CPU + max(childrenCPU()-used, 0)/time.Since(began).Seconds()
			c.Own = own / float64(runtime.NumCPU())
			if w.opt.host != nil {
				c = w.opt.host()
			}
			w.ev.saw(Watch{At: w.since(), Covariates: c})
			if s != nil && !done {
				w.holds(ctx, s)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// shortest is the least time that watch looks at.
const shortest = 400 * time.Millisecond

// childrenCPU is the processor time of the processes that this one has started and that run.
func childrenCPU() (sum float64) {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return 0
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			if d, err := sys.CPUTimeOf(pid); err == nil {
				sum += d.Seconds()
			}
		}
	}
	return sum
}

// holds adds what a node has in use to the series.
func (w *world) holds(ctx context.Context, s *process.Server) {
	at := w.since()
	if v, err := s.RSS(); err == nil {
		w.ev.point("rss", at, v)
	}
	if n, err := descriptors(s.PID()); err == nil {
		w.ev.point("descriptors", at, float64(n))
	}
	if n, err := metric(ctx, s, "go_goroutines "); err == nil {
		w.ev.point("goroutines", at, n)
	}
}

// descriptors is how many a process has open.
func descriptors(pid int) (int, error) {
	d, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return len(names), err
}

// steady are the criteria of what watch notes of a node.
func steady() []criterion {
	return []criterion{
		{name: "rss", what: "resident memory", kind: flat, limit: 0.05, slack: 8 << 20, unit: bytesUnit},
		{name: "goroutines", what: "goroutines", kind: flat, limit: 0.02, slack: 5},
		{name: "descriptors", what: "descriptors", kind: flat, limit: 0.01, slack: 2},
	}
}

// get reads a page of an HTTP server.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return b, err
}

// metric is the sum of a node's series of a name whose line begins so, with its labels.
func metric(ctx context.Context, s *process.Server, prefix string) (sum float64, err error) {
	b, err := get(ctx, s.Admin+"/metrics")
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			var v float64
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err == nil {
				sum += v
			}
		}
	}
	return sum, nil
}

// search finds the highest rate that carries says yes to: it grows by half and more until
// one fails twice, since once may be the machine's, and then halves the difference until it
// is a tenth.
func search(from float64, carries func(rate float64) (bool, error)) (float64, error) {
	low, high := 0.0, 0.0
	for rate := from; ; {
		ok, err := carries(rate)
		if err == nil && !ok {
			ok, err = carries(rate)
		}
		switch {
		case err != nil:
			return 0, err
		case ok:
			low = rate
		default:
			high = rate
		}
		switch {
		case high == 0:
			rate = 1.6 * low
		case low == 0 && high < 1:
			return 0, errors.New("not even one a second is carried")
		case high <= 1.1*low:
			return low, nil
		default:
			rate = (low + high) / 2
		}
	}
}

// targetRate is the rate that a target names: what the operator says, or 0.8 of the knee.
// The reason of a machine on which no knee can be found is returned as an error.
func (w *world) targetRate(ctx context.Context, s *process.Server, spec loadgen.Spec) (float64, error) {
	switch {
	case w.opt.Rate > 0:
		w.known.rate, w.known.from = w.opt.Rate, "as --rate says"
	case w.known.rate == 0:
		if err := w.findKnee(ctx, s, spec); err != nil {
			return 0, err
		}
	}
	w.ev.note("target rate %s: %s", perSecond.Format(w.known.rate), w.known.from)
	return w.known.rate, nil
}

func (w *world) findKnee(ctx context.Context, s *process.Server, spec loadgen.Spec) error {
	w.progress("searching the knee, at most %v", w.plan.knee)
	g, err := loadgen.New(spec, nil)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }() // its connections end either way
	if err := g.Connect(ctx); err != nil {
		return err
	}
	load, err := capacity.NewGenerated(g, spec)
	if err != nil {
		return err
	}
	var target capacity.Target = load
	if s != nil {
		target = capacity.WithRuntime(target, capacity.Process(s.PID()))
	}
	mode := capacity.Quick
	if w.plan.knee > 5*time.Minute {
		mode = capacity.Standard
	}
	// Bounded: a machine without a clear knee still gives a rate to hold; what is measured
	// at it is decided by the machine's noise then.
	r, err := capacity.Find(ctx, target, capacity.Options{Mode: mode, MaxDuration: w.plan.knee, Bounded: true})
	if err != nil {
		return err
	}
	if err := w.keep("knee.json", r); err != nil {
		return err
	}
	rate, from := r.Knee.Rate.Point, "0.8 of the knee"
	if !r.Knee.Known || !finite(rate) {
		rate, from = r.Knee.Between[0], "0.8 of the least that the knee can be ("+strings.Join(r.Reasons, "; ")+")"
	}
	if !finite(rate) {
		rate, from = r.Max.Rate.Lo, "0.8 of the least that is completed under overload; there is no knee: "+strings.Join(r.Reasons, "; ")
	}
	if !finite(rate) {
		return &notRunError{"no knee was found to hold a share of (" + strings.Join(r.Reasons, "; ") + "): say a rate with --rate"}
	}
	w.known.rate, w.known.from = 0.8*rate, from
	return nil
}

func finite(v float64) bool { return v > 0 && !math.IsInf(v, 0) && !math.IsNaN(v) }

// A notRunError is a reason for which an indicator was not measured.
type notRunError struct{ why string }

func (e *notRunError) Error() string { return e.why }
