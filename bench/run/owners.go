package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An ownership reports who holds the memory of idle connections, in bytes each.
type ownership struct {
	Connections int     `json:"connections"`
	Heap        []owned `json:"heap"`    // live, by the function that allocated it
	Classes     []owned `json:"classes"` // of the process
}

type owned struct {
	Owner string  `json:"owner"`
	Bytes float64 `json:"bytes_per_connection"`
}

// module starts the functions that are ours, in heap profiles.
const module = "github.com/weir-gateway/weir/"

// A snapshot is what the admin listener and the kernel say of a process.
type snapshot struct {
	heap    map[string]float64 // live bytes by owner
	metrics map[string]float64
	rss     float64
}

// owners measures in a run of its own: every allocation is recorded, which costs
// memory that idle connections do not.
func (b *bench) owners(ctx context.Context, sc *scenario) (*ownership, error) {
	s, err := b.start(ctx, b.weir, sc, "GODEBUG=memprofilerate=1")
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if _, err := s.snapshot(ctx); err != nil { // what looking itself leaves behind is there before
		return nil, err
	}
	before, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	speak, err := b.weir.load(sc, s.place, true)
	if err != nil {
		return nil, err
	}
	loading, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := b.apply(loading, s, "weir "+sc.Name+", by owner", append(sc.options(30, 0, true, true), speak...))
		ended <- err
	}()
	after, err := s.whenConnected(ctx, sc.n, ended)
	cancel()
	if err != nil {
		return nil, err
	}
	if err := <-ended; ctx.Err() != nil { // otherwise it was ended by us
		return nil, errors.Join(ctx.Err(), err)
	}
	return compareOwners(before, after, sc.n), nil
}

func (s *server) whenConnected(ctx context.Context, n int, ended <-chan error) (snapshot, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return snapshot{}, errors.Join(errors.New("the load ended before all were connected"), err)
		case <-tick.C:
		}
		m, err := s.metrics(ctx)
		if err != nil {
			return snapshot{}, err
		}
		if m[`weir_connections{transport="sse"}`]+m[`weir_connections{transport="websocket"}`] >= float64(n) {
			return s.snapshot(ctx)
		}
	}
}

func (s *server) admin(ctx context.Context, path string) ([]byte, error) {
	return get(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", s.place.admin, path))
}

func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := s.admin(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(text), nil
}

func (s *server) snapshot(ctx context.Context) (snapshot, error) {
	var snap snapshot
	text, err := s.admin(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return snap, err
	}
	if snap.heap, err = parseHeap(text); err != nil {
		return snap, err
	}
	if snap.metrics, err = s.metrics(ctx); err != nil {
		return snap, err
	}
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.cmd.Process.Pid))
	if err != nil {
		return snap, err
	}
	if m := regexp.MustCompile(`(?m)^Rss:\s+(\d+) kB`).FindSubmatch(text); m != nil {
		kb, _ := strconv.ParseFloat(string(m[1]), 64)
		snap.rss = kb * 1024
	}
	return snap, nil
}

// parseMetrics reads the Prometheus text format: series → value.
func parseMetrics(text []byte) map[string]float64 {
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m
}

var (
	record = regexp.MustCompile(`^(\d+): (\d+) \[\d+: \d+\] @`)
	frame  = regexp.MustCompile(`^#\t0x[0-9a-f]+\t(\S+)\+0x[0-9a-f]+\s`)
)

// parseHeap reads a heap profile in the text form of runtime/pprof (debug=1) and
// adds up the live bytes by owner: the first of our functions above the
// allocation, or the allocating function where there is none of ours.
func parseHeap(text []byte) (map[string]float64, error) {
	if !bytes.HasPrefix(text, []byte("heap profile:")) {
		return nil, errors.New("the heap profile is not in text form")
	}
	sum := map[string]float64{}
	var live float64
	var first, ours string
	flush := func() {
		if owner := cmp.Or(ours, first); live > 0 && owner != "" {
			sum[owner] += live
		}
		live, first, ours = 0, "", ""
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := record.FindStringSubmatch(lines.Text()); m != nil {
			flush()
			live, _ = strconv.ParseFloat(m[2], 64)
		} else if m := frame.FindStringSubmatch(lines.Text()); m != nil {
			first = cmp.Or(first, m[1])
			if name, ok := strings.CutPrefix(m[1], module); ok && ours == "" {
				ours = name
			}
		} else if lines.Text() == "" {
			flush()
		}
	}
	flush()
	return sum, lines.Err()
}

// shownOwners is how many owners stand by themselves in the table.
const shownOwners = 12

func compareOwners(before, after snapshot, n int) *ownership {
	per := func(bytes float64) float64 { return bytes / float64(n) }
	o := &ownership{Connections: n}
	var rest float64
	for owner, bytes := range after.heap {
		o.Heap = append(o.Heap, owned{owner, per(bytes - before.heap[owner])})
	}
	slices.SortFunc(o.Heap, func(a, b owned) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Owner, b.Owner))
	})
	for len(o.Heap) > shownOwners || len(o.Heap) > 0 && o.Heap[len(o.Heap)-1].Bytes < 0.5 {
		rest += o.Heap[len(o.Heap)-1].Bytes
		o.Heap = o.Heap[:len(o.Heap)-1]
	}
	o.Heap = append(o.Heap, owned{"all others", rest})
	grown := func(name string) float64 {
		name = "go_memstats_" + name + "_bytes"
		return per(after.metrics[name] - before.metrics[name])
	}
	var live float64
	for _, h := range o.Heap {
		live += h.Bytes
	}
	inuse, stacks := grown("heap_inuse"), grown("stack_inuse")
	kept := grown("heap_idle") - grown("heap_released")
	inner := grown("mspan_sys") + grown("mcache_sys") + grown("gc_sys") + grown("other_sys") + grown("buck_hash_sys")
	rss := per(after.rss - before.rss)
	o.Classes = []owned{{"heap, live", live}, {"heap, garbage and free within spans", inuse - live}, {"heap, free and kept", kept}, {"goroutine stacks", stacks},
		{"the runtime's own (its record of every allocation included)", inner}, {"resident beyond these", rss - inuse - kept - stacks - inner}, {"resident, sum", rss}}
	return o
}
