package capacity

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// A Source shows the inside of a target. Sample is called a few times in each
// window, never by two goroutines at once.
type Source interface {
	Sample(ctx context.Context) (Sample, error)
}

// A Sample is a target's runtime at an instant. What is not known is zero.
type Sample struct {
	Goroutines, Runnable, Threads float64
	GOMAXPROCS                    int
	RSS                           uint64
	// Since the target's start: processor seconds used, and the seconds of its
	// runtime's account that the collector used of all.
	CPU, GC, GCOf float64
	// GCFraction is what the target says itself when there is no account.
	GCFraction float64
	// Sched counts scheduler latencies at or below a bound in seconds, since the start.
	Sched map[float64]float64
	// Remote: it runs on another machine.
	Remote bool
}

// merge fills what s lacks from o.
func (s Sample) merge(o Sample) Sample {
	s.Goroutines = cmp.Or(s.Goroutines, o.Goroutines)
	s.Runnable = cmp.Or(s.Runnable, o.Runnable)
	s.Threads = cmp.Or(s.Threads, o.Threads)
	s.GOMAXPROCS = cmp.Or(s.GOMAXPROCS, o.GOMAXPROCS)
	s.RSS = cmp.Or(s.RSS, o.RSS)
	s.CPU = cmp.Or(s.CPU, o.CPU)
	s.GC, s.GCOf = cmp.Or(s.GC, o.GC), cmp.Or(s.GCOf, o.GCOf)
	s.GCFraction = cmp.Or(s.GCFraction, o.GCFraction)
	if s.Sched == nil {
		s.Sched = o.Sched
	}
	s.Remote = s.Remote || o.Remote
	return s
}

// Sources queries several; the first that knows a value wins, and only when none
// answers is there an error.
type Sources []Source

// Sample implements Source.
func (ss Sources) Sample(ctx context.Context) (Sample, error) {
	var out Sample
	var errs []error
	for _, one := range ss {
		s, err := one.Sample(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = out.merge(s)
	}
	if len(errs) == len(ss) {
		return out, errors.Join(errs...)
	}
	return out, nil
}

// Process is a process of this machine, by its id: processor time, memory, threads.
type Process int

// Sample implements Source.
func (p Process) Sample(context.Context) (Sample, error) {
	cpu, err := sys.CPUTimeOf(int(p))
	if err != nil {
		return Sample{}, fmt.Errorf("processor time of process %d: %w", int(p), err)
	}
	s := Sample{CPU: cpu.Seconds()}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", int(p)))
	if err != nil {
		return Sample{}, fmt.Errorf("state of process %d: %w", int(p), err)
	}
	s.Threads, s.RSS = parseProcStat(string(b))
	return s, nil
}

// parseProcStat reads the threads and the resident bytes from /proc/PID/stat (proc(5)).
// The name in it may hold anything, parentheses too, so fields count from the last.
func parseProcStat(text string) (threads float64, rss uint64) {
	_, rest, ok := cutLast(text, ")")
	if !ok {
		return 0, 0
	}
	f := strings.Fields(rest)
	if len(f) < 22 { // state is field 3 and here 0; threads 20, rss 24
		return 0, 0
	}
	threads, _ = strconv.ParseFloat(f[17], 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return threads, uint64(max(pages, 0)) * uint64(os.Getpagesize())
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// maxScrape bounds what is read of a metrics page.
const maxScrape = 16 << 20

// scrape is a GET of a page.
func scrape(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("metrics address %q: %w", address, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the target's metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the target's metrics: %s answers %s", address, resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxScrape))
	if err != nil {
		return nil, fmt.Errorf("read the target's metrics: %w", err)
	}
	return b, nil
}

// remote reports whether an address names another machine.
func remote(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

// Scraped is a page of Go expvar (…/debug/vars) or of Prometheus metrics in text;
// which of the two, its first byte says.
type Scraped struct {
	URL string
	// Client; nil means one with a timeout of two seconds.
	Client *http.Client
}

// Sample implements Source.
func (m Scraped) Sample(ctx context.Context) (Sample, error) {
	client := m.Client
	if client == nil {
		client = &http.Client{Timeout: 2 * time.Second}
	}
	b, err := scrape(ctx, client, m.URL)
	if err != nil {
		return Sample{}, err
	}
	var s Sample
	if strings.HasPrefix(strings.TrimSpace(string(b[:min(len(b), 64)])), "{") {
		s, err = parseExpvar(b)
	} else {
		s = parseMetrics(b)
	}
	s.Remote = remote(m.URL)
	return s, err
}

// parseExpvar reads what Go programs publish: memstats always, goroutines under
// the names in use.
func parseExpvar(b []byte) (Sample, error) {
	var vars map[string]json.RawMessage
	if err := json.Unmarshal(b, &vars); err != nil {
		return Sample{}, fmt.Errorf("read the target's expvar: %w", err)
	}
	var s Sample
	number := func(names ...string) float64 {
		for _, n := range names {
			var v float64
			if raw, ok := vars[n]; ok && json.Unmarshal(raw, &v) == nil {
				return v
			}
		}
		return 0
	}
	s.Goroutines = number("goroutines", "Goroutines", "num_goroutine", "NumGoroutine", "runtime.goroutines")
	s.GOMAXPROCS = int(number("gomaxprocs", "GOMAXPROCS"))
	var mem struct{ GCCPUFraction float64 }
	if raw, ok := vars["memstats"]; ok && json.Unmarshal(raw, &mem) == nil {
		s.GCFraction = mem.GCCPUFraction
	}
	return s, nil
}

// parseMetrics reads the names that Prometheus's Go client gives the runtime's and
// the process's metrics. Lines of other names, and what is not a number, are passed over.
func parseMetrics(b []byte) Sample {
	var s Sample
	lines := bufio.NewScanner(strings.NewReader(string(b)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, labels, v, ok := metricLine(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case "go_goroutines":
			s.Goroutines = v
		case "go_sched_goroutines_runnable_goroutines":
			s.Runnable = v
		case "go_threads":
			s.Threads = v
		case "go_sched_gomaxprocs_threads":
			s.GOMAXPROCS = int(min(v, 1<<20))
		case "process_resident_memory_bytes":
			s.RSS = uint64(max(v, 0))
		case "process_cpu_seconds_total":
			s.CPU = v
		case "go_memstats_gc_cpu_fraction", "weir_gc_cpu_ratio":
			s.GCFraction = v
		case "go_cpu_classes_gc_total_cpu_seconds_total":
			s.GC = v
		case "go_cpu_classes_total_cpu_seconds_total":
			s.GCOf = v
		case "go_sched_latencies_seconds_bucket":
			if le, err := strconv.ParseFloat(label(labels, "le"), 64); err == nil && !math.IsNaN(le) {
				if s.Sched == nil {
					s.Sched = map[float64]float64{}
				}
				s.Sched[le] = v
			}
		}
	}
	return s
}

// metricLine splits `name{labels} value [time]`. Negative and unnumbered values are
// none that we read.
func metricLine(line string) (name, labels string, v float64, ok bool) {
	if line == "" || line[0] == '#' {
		return "", "", 0, false
	}
	rest := line
	if i := strings.IndexAny(line, "{ \t"); i >= 0 {
		name, rest = line[:i], line[i:]
	}
	if strings.HasPrefix(rest, "{") {
		if labels, rest, ok = cutLast(rest[1:], "}"); !ok {
			return "", "", 0, false
		}
	}
	f := strings.Fields(rest)
	if len(f) == 0 {
		return "", "", 0, false
	}
	v, err := strconv.ParseFloat(f[0], 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 1) {
		return "", "", 0, false
	}
	return name, labels, v, true
}

func label(labels, name string) string {
	for part := range strings.SplitSeq(labels, ",") {
		if k, v, ok := strings.Cut(strings.TrimSpace(part), "="); ok && k == name {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// WithRuntime is target with the inside that source shows added to its Observations.
// A source that does not answer adds nothing.
func WithRuntime(target Target, source Source) Target {
	return exposed{target, source}
}

type exposed struct {
	Target
	source Source
}

// sampleEvery is the time between two looks at a target's gauges.
const sampleEvery = 500 * time.Millisecond

// Measure implements Target.
func (e exposed) Measure(ctx context.Context, load Load, d time.Duration) (Observation, error) {
	first, err := e.source.Sample(ctx)
	if err != nil {
		return e.Target.Measure(ctx, load, d)
	}
	stop, sampled := make(chan struct{}), make(chan []Sample)
	go func() {
		var ss []Sample
		tick := time.NewTicker(min(sampleEvery, max(d/3, time.Millisecond)))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s, err := e.source.Sample(ctx); err == nil {
					ss = append(ss, s)
				}
			case <-stop:
				sampled <- ss
				return
			}
		}
	}()
	o, err := e.Target.Measure(ctx, load, d)
	close(stop)
	ss := <-sampled
	if err != nil {
		return o, err
	}
	if last, err := e.source.Sample(ctx); err == nil {
		o.Runtime = between(first, last, ss)
	}
	return o, nil
}

// between is a window's Runtime: gauges are the median of the samples in it,
// counters the difference of its ends.
func between(first, last Sample, inside []Sample) *Runtime {
	if len(inside) == 0 {
		inside = []Sample{last}
	}
	gauge := func(f func(Sample) float64) float64 { return stat.MedianOf(inside, f) }
	r := &Runtime{
		Goroutines: gauge(func(s Sample) float64 { return s.Goroutines }),
		Runnable:   gauge(func(s Sample) float64 { return s.Runnable }),
		Threads:    gauge(func(s Sample) float64 { return s.Threads }),
		GOMAXPROCS: last.GOMAXPROCS,
		RSS:        last.RSS,
		CPUSeconds: max(last.CPU-first.CPU, 0),
		GCFraction: last.GCFraction,
		SchedP99:   schedQuantile(first.Sched, last.Sched, 0.99),
		Remote:     last.Remote,
	}
	// The account moves only with a collection: without one in the window it says nothing.
	if d := last.GCOf - first.GCOf; d > 0 {
		r.GCFraction = min(max((last.GC-first.GC)/d, 0), 1)
	}
	return r
}

// schedQuantile is the least bound that holds the share q of the latencies between
// two samples of cumulative buckets; 0 when there are none.
func schedQuantile(first, last map[float64]float64, q float64) float64 {
	bounds := slices.Sorted(maps.Keys(last))
	if len(bounds) == 0 {
		return 0
	}
	grown := func(b float64) float64 { return last[b] - first[b] }
	total := grown(bounds[len(bounds)-1])
	if total <= 0 {
		return 0
	}
	for i, b := range bounds {
		if grown(b) >= q*total {
			if math.IsInf(b, 1) && i > 0 {
				return bounds[i-1]
			}
			return b
		}
	}
	return 0
}
