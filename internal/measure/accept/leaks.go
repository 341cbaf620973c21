package accept

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
)

func leaks() Indicator {
	return Indicator{
		Name: "leaks", Title: "Leak hunt",
		Definition: "Goroutines, live memory by where it was allocated, and descriptors, after each of several rounds of load that end with all clients gone.",
		Target:     "a planted leak of goroutines, of memory and of descriptors is each found with the line that leaks; none in Weir",
		Method:     "Profiles of the process after each round and a collection. What has grown in every round, and by more than a threshold in all, is a leak; its line is the first of the stack that is not the standard library's. The planted leaks are in processes of their own, started by the same binary.",
		criteria: []criterion{
			{name: "missed", what: "planted leaks that were not found with their line", kind: none},
			{name: "leaks", what: "leaks in Weir", kind: none},
			{name: "rounds", what: "rounds of load", kind: some},
		},
		plots:   []plot{{"Weir after each round", []string{"goroutines", "descriptors"}, 0}},
		measure: measureLeaks,
	}
}

// A profile is what a process holds at an instant, by the lines that hold it.
type profile struct {
	Goroutines  map[string]float64 `json:"goroutines"`
	Bytes       map[string]float64 `json:"bytes"`
	Files       map[string]float64 `json:"files"` // allocations of open files
	Descriptors float64            `json:"descriptors"`
}

// A leak is what grew.
type leak struct {
	Kind   string  `json:"kind"` // goroutine, memory or descriptor
	Line   string  `json:"line"` // file:line of what leaks; of descriptors "" where the profile is too coarse
	Growth float64 `json:"growth"`
}

// What has to grow in all, at least.
const (
	leastGoroutines  = 10
	leastBytes       = 256 << 10
	leastDescriptors = 10
)

// hunted are the profiles of a process, of which base is the URL of its profiles.
func profileOf(ctx context.Context, base string, pid int) (p profile, err error) {
	if _, err = get(ctx, base+"/debug/pprof/heap?gc=1"); err != nil { // finalizers run after the first
		return p, err
	}
	heap, err := get(ctx, base+"/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return p, err
	}
	goroutines, err := get(ctx, base+"/debug/pprof/goroutine?debug=1")
	if err != nil {
		return p, err
	}
	n, err := descriptors(pid)
	p.Descriptors = float64(n)
	p.Goroutines, _ = sites(string(goroutines), func(string) bool { return true })
	_, p.Bytes = sites(string(heap), func(string) bool { return true })
	p.Files, _ = sites(string(heap), func(stack string) bool {
		return strings.Contains(stack, "os.newFile") || strings.Contains(stack, "net.newFD")
	})
	return p, err
}

// sites adds up a profile in text by the first line of each stack that is not the standard
// library's: objects (or goroutines), and bytes where there are any.
func sites(text string, wanted func(stack string) bool) (objects, bytes map[string]float64) {
	objects, bytes = map[string]float64{}, map[string]float64{}
	for block := range strings.SplitSeq(text, "\n\n") {
		// A stack follows the line "N @ 0x…" or "N: bytes [M: bytes] @ 0x…".
		var n, b float64
		var stack strings.Builder
		place := ""
		flush := func() {
			if place != "" && wanted(stack.String()) {
				objects[place] += n
				bytes[place] += b
			}
			place = ""
			stack.Reset()
		}
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			frame := strings.Split(line, "\t")
			switch {
			case strings.HasPrefix(line, "#\t") && len(frame) >= 4:
				name, where := strings.TrimSpace(frame[2]), frame[len(frame)-1]
				stack.WriteString(name + "\n")
				if place == "" && ours(name) {
					place = where
				}
			case strings.Contains(line, " @ 0x"):
				flush()
				head, _, _ := strings.Cut(line, " @ ")
				count, rest, _ := strings.Cut(head, ":")
				n, _ = strconv.ParseFloat(strings.TrimSpace(count), 64)
				inUse, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				b, _ = strconv.ParseFloat(inUse, 64)
			}
		}
		flush()
	}
	return objects, bytes
}

// ours reports whether a function is not the standard library's, whose import paths have no
// dot before the first slash.
func ours(function string) bool {
	first, rest, found := strings.Cut(function, "/")
	return found && strings.Contains(first, ".") && rest != "" || strings.HasPrefix(function, "main.")
}

// grown is what grew in every round.
func grown(rounds []profile) (found []leak) {
	if len(rounds) < 3 {
		return nil
	}
	each := func(kind string, least float64, of func(p *profile) map[string]float64) {
		last := of(&rounds[len(rounds)-1])
		for _, line := range slices.Sorted(maps.Keys(last)) {
			if by := rise(rounds, func(p *profile) float64 { return of(p)[line] }); by >= least {
				found = append(found, leak{kind, line, by})
			}
		}
	}
	each("goroutine", leastGoroutines, func(p *profile) map[string]float64 { return p.Goroutines })
	each("memory", leastBytes, func(p *profile) map[string]float64 { return p.Bytes })
	if by := rise(rounds, func(p *profile) float64 { return p.Descriptors }); by >= leastDescriptors {
		before := len(found)
		each("descriptor", leastDescriptors, func(p *profile) map[string]float64 { return p.Files })
		if len(found) == before {
			found = append(found, leak{"descriptor", "", by})
		}
	}
	return found
}

// rise is by how much a value grew in all, 0 unless it grew in each round.
func rise(rounds []profile, value func(*profile) float64) float64 {
	for i := 1; i < len(rounds); i++ {
		if value(&rounds[i]) <= value(&rounds[i-1]) {
			return 0
		}
	}
	return value(&rounds[len(rounds)-1]) - value(&rounds[0])
}

const (
	huntRounds  = 4
	huntClients = 200
)

// A leakRun is one measurement of leaks.
type leakRun struct{ *world }

func measureLeaks(ctx context.Context, of *world) error {
	w := leakRun{of}
	for _, kind := range []string{"goroutine", "memory", "descriptor"} {
		found, want, err := w.planted(ctx, kind)
		if err != nil {
			return fmt.Errorf("planted %s leak: %w", kind, err)
		}
		missed := uint64(1)
		if slices.ContainsFunc(found, func(l leak) bool { return l.Kind == kind && l.Line == want }) {
			missed = 0
		}
		w.ev.count("missed", missed, 1)
		w.progress("planted %s leak at %s: found %v", kind, want, missed == 0)
		if err := w.keep("planted-"+kind+".json", map[string]any{"planted": want, "found": found}); err != nil {
			return err
		}
	}
	s, err := w.gateway(ctx, plainConfig)
	if err != nil {
		return err
	}
	defer s.Stop()
	rounds, err := w.hunt(ctx, s.Admin, s.PID(), func(ctx context.Context) error { return w.clientsComeAndGo(ctx, s) })
	if err != nil {
		return err
	}
	found := grown(rounds)
	w.ev.count("leaks", 0, huntRounds*huntClients)
	for _, l := range found {
		w.ev.count("leaks", 1, 0, fmt.Sprintf("%s at %s, %+.0f", l.Kind, l.Line, l.Growth))
	}
	return w.keep("weir.json", map[string]any{"rounds": rounds, "found": found})
}

// hunt takes the profiles of a process after each round.
func (w leakRun) hunt(ctx context.Context, base string, pid int, round func(context.Context) error) ([]profile, error) {
	var rounds []profile
	for range huntRounds {
		if err := round(ctx); err != nil {
			return nil, err
		}
		p, err := profileOf(ctx, base, pid)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, p)
		w.ev.count("rounds", 1, 1)
		var n float64
		for _, k := range p.Goroutines {
			n += k
		}
		w.ev.point("goroutines", w.since(), n)
		w.ev.point("descriptors", w.since(), p.Descriptors)
	}
	return rounds, nil
}

// clientsComeAndGo is a round of load on Weir, after which no client is left.
func (w leakRun) clientsComeAndGo(ctx context.Context, s *process.Server) error {
	for _, target := range []string{"http://" + s.Addr + "/sse?channel=a-{channel}", "ws://" + s.Addr + "/ws?channel=a-{channel}"} {
		spec := fanSpec("http://" + s.Addr)
		spec.Target, spec.Conns, spec.Rate, spec.Warmup, spec.Duration = target, huntClients/2, 200, 100*time.Millisecond, 400*time.Millisecond
		g, err := loadgen.New(spec, nil)
		if err != nil {
			return err
		}
		_, err = g.Run(ctx)
		if err = errors.Join(err, g.Close()); err != nil {
			return err
		}
	}
	// The clients' ends are noticed a little later.
	for range 200 {
		n, err := metric(ctx, s, "weir_connections{")
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if !sleep(ctx, 25*time.Millisecond) {
			break
		}
	}
	return ctx.Err()
}

// sleep waits, and reports whether ctx was not done meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// planted hunts in a process that leaks, and returns what was found and the line that leaks.
func (w leakRun) planted(ctx context.Context, kind string) (found []leak, line string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := w.opt.Program.Command(ctx, w.opt.Stderr, nil, "accept", "plant", kind)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	}()
	var p plantLine
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&p); err != nil {
		return nil, "", fmt.Errorf("it said nothing: %w", err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the process
	rounds, err := w.hunt(ctx, p.URL, cmd.Process.Pid, func(ctx context.Context) error {
		_, err := get(ctx, p.URL+"/leak?n=50")
		return err
	})
	return grown(rounds), p.Line, err
}
