package crosscheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// A reading is what a tool says of one run.
type reading struct {
	rate float64       // answers per second
	mean time.Duration // of the time from a request to its answer
	p50  time.Duration // 0: the tool does not say
}

// runFor is how long each tool runs at a time.
const runFor = 1500 * time.Millisecond

// run runs a tool and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &out)
	}
	return out.String()
}

// field returns what follows a mark in text.
func field(text, pattern string) (string, error) {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("no %q in what was printed:\n%s", pattern, text)
	}
	return m[1], nil
}

// parseWrk reads what wrk --latency prints.
func parseWrk(text string) (r reading, err error) {
	mean, err1 := field(text, `(?m)^\s+Latency\s+(\S+)`)
	p50, err2 := field(text, `(?m)^\s+50%\s+(\S+)`)
	rate, err3 := field(text, `(?m)^Requests/sec:\s+(\S+)`)
	if err := errors.Join(err1, err2, err3); err != nil {
		return r, err
	}
	if strings.Contains(text, "Non-2xx") || strings.Contains(text, "Socket errors") {
		return r, fmt.Errorf("errors:\n%s", text)
	}
	return read(rate, mean, p50)
}

// parseH2load reads what h2load prints. It names no median; see medianOfLog.
func parseH2load(text string) (r reading, err error) {
	rate, err1 := field(text, `finished in \S+, (\S+) req/s`)
	mean, err2 := field(text, `time for request:\s+\S+\s+\S+\s+(\S+)`)
	failed, err3 := field(text, `(\d+) failed`)
	if err := errors.Join(err1, err2, err3); err != nil {
		return r, err
	}
	if failed != "0" {
		return r, fmt.Errorf("%s requests failed:\n%s", failed, text)
	}
	return read(rate, mean, "")
}

// medianOfLog reads h2load's log: a line per request of when it began, its status
// and how long it took, in microseconds.
func medianOfLog(name string) (time.Duration, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var took []int
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "200" {
			return 0, fmt.Errorf("in the log: %q", line)
		}
		us, err := strconv.Atoi(f[2])
		if err != nil {
			return 0, err
		}
		took = append(took, us)
	}
	if len(took) == 0 {
		return 0, errors.New("the log is empty")
	}
	slices.Sort(took)
	return time.Duration(took[len(took)/2]) * time.Microsecond, nil
}

func read(rate, mean, p50 string) (r reading, err error) {
	if r.rate, err = strconv.ParseFloat(rate, 64); err != nil {
		return r, err
	}
	if r.mean, err = time.ParseDuration(mean); err != nil {
		return r, err
	}
	if p50 != "" {
		r.p50, err = time.ParseDuration(p50)
	}
	return r, err
}

// measure is a run of ours.
func measure(t *testing.T, g *loadgen.Generator, load loadgen.Load) reading {
	t.Helper()
	w, err := g.Measure(context.Background(), load, runFor)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Errors) > 0 || w.Dropped > 0 || w.Service == nil {
		t.Fatalf("errors %v, dropped %d", w.Errors, w.Dropped)
	}
	return reading{
		rate: float64(w.Completed) / w.Length.Seconds(),
		mean: time.Duration(w.Service.Mean() * float64(time.Microsecond)),
		p50:  time.Duration(w.Service.ValueAtPercentile(50)) * time.Microsecond,
	}
}

func TestPrintedResultsAreRead(t *testing.T) {
	const wrk = `Running 2s test @ http://127.0.0.1:1/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.15ms  203.00us   6.29ms   79.99%
    Req/Sec     0.97k    24.39     1.03k    75.00%
  Latency Distribution
     50%    4.12ms
     75%    4.25ms
  1931 requests in 2.00s, 226.29KB read
Requests/sec:    964.87
Transfer/sec:    113.07KB
`
	if r, err := parseWrk(wrk); err != nil || r != (reading{964.87, 4150 * time.Microsecond, 4120 * time.Microsecond}) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parseWrk(wrk + "  Non-2xx or 3xx responses: 5\n"); err == nil {
		t.Error("errors were passed over")
	}
	const h2load = `finished in 1.50s, 998.67 req/s, 41.34KB/s
requests: 1498 total, 1498 started, 1498 done, 1498 succeeded, 0 failed, 0 errored, 0 timeout
                     min         max         mean         sd        +/- sd
time for request:     4.03ms      6.15ms      4.21ms       181us    88.00%
`
	if r, err := parseH2load(h2load); err != nil || r != (reading{998.67, 4210 * time.Microsecond, 0}) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parseH2load("nothing"); err == nil {
		t.Error("nothing was read as something")
	}
}
