package accept

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Options of a run. Dir and Program are required.
type Options struct {
	// Plan is "quick" or "full"; empty means quick.
	Plan string
	// Dir is where the evidence and the report go. It is made, and has to be empty.
	Dir string
	// Program is what starts Weir: the file and its argv[0].
	Program process.Program
	// Target is the URL of another service, to be measured instead of a Weir that
	// is started; empty: none. Then only indicators that HTTP reaches run.
	Target string
	// Rate is the target rate per second; 0 means 0.8 of the knee, which is searched.
	Rate float64
	// Conns is how many the mixed connections are, and the clients of shipments, For how long they and the
	// sustained load are held, in place of the plan's; 0 means the plan's.
	Conns int
	For   time.Duration
	// Attempts is how often an indicator that the machine disturbed is measured at most; 0 means as often as
	// the plan.
	Attempts int
	// Chaos is a file with the table that the chaos suite writes; empty: none.
	Chaos string
	// Version names the build in the report.
	Version string
	// Processes makes a load in n processes; nil means that all is made in this one. It calls connected, which
	// may be nil, when all connections are open, and the load begins when that returns.
	Processes func(ctx context.Context, s loadgen.Spec, n int, connected func(context.Context) error) (*loadgen.Result, error)
	// Progress is called with what happens, by several goroutines; nil means not at all.
	Progress func(indicator, text string)
	// Stderr is where the started processes write errors, one write at a time; nil means nowhere.
	Stderr io.Writer

	// For tests: the plan in place of Plan's, the machine in place of what is seen, the time
	// between two looks at it, what is between the load and the gateway, settings of gateways,
	// and how far wrong clocks are off.
	scale func(*plan)
	host  func() stat.Covariates
	every time.Duration
	plant func(address string) (string, error)
	set   []string
	skew  time.Duration
}

func (o *Options) withDefaults() {
	if o.Plan == "" {
		o.Plan = "quick"
	}
	switch o.Stderr.(type) {
	case nil:
		o.Stderr = io.Discard
	case *os.File: // the processes get it as it is
	default:
		o.Stderr = &oneAtATime{out: o.Stderr}
	}
	if o.every == 0 {
		o.every = time.Second
	}
}

// oneAtATime is a writer for several goroutines.
type oneAtATime struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *oneAtATime) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(b)
}

// A Report is a whole run.
type Report struct {
	Version  int             `json:"version"`
	Plan     string          `json:"plan"`
	Started  time.Time       `json:"started"`
	Seconds  float64         `json:"seconds"`
	Target   string          `json:"target,omitempty"`
	Machine  loadgen.Machine `json:"machine"`
	CPUs     string          `json:"cpus_allowed"` // as the kernel writes a list of them
	Verdict  Verdict         `json:"verdict"`
	Partial  bool            `json:"partial,omitempty"` // it was stopped
	Findings []Finding       `json:"findings"`

	// Head is the last link of the hash chain, which identifies all files.
	Head string `json:"-"`
}

// Run measures the indicators one after the other and writes the report. A done ctx ends it
// early: what was measured is reported then, without an error.
func Run(ctx context.Context, list []Indicator, o Options) (*Report, error) {
	o.withDefaults()
	p, err := planOf(o.Plan)
	if err != nil {
		return nil, err
	}
	if o.scale != nil {
		o.scale(&p)
	}
	if err := errors.Join(p.set(o.Conns, o.For), p.again(o.Attempts)); err != nil {
		return nil, err
	}
	if err := emptyDir(o.Dir); err != nil {
		return nil, err
	}
	r := &Report{Version: version, Plan: p.name, Started: time.Now(), Target: o.Target, Machine: loadgen.LocalMachine(), CPUs: allowedCPUs(), Findings: []Finding{}}
	r.Machine.Weir = o.Version
	s := &session{opt: &o, plan: p, chain: &chain{dir: o.Dir}, known: &knowledge{}}
	s.qualify(ctx)
	evidence := map[string]*Evidence{}
	for i := range list {
		if ctx.Err() != nil {
			r.Partial = true
			break
		}
		if o.Progress != nil {
			o.Progress(list[i].Name, fmt.Sprintf("indicator %d of %d", i+1, len(list)))
		}
		e, err := s.measure(ctx, &list[i])
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil && e.NotRun != "" {
			r.Partial = true
			break
		}
		f := list[i].evaluate(e)
		f.Evidence = evidenceFile(&list[i], e.Attempt)
		r.Findings = append(r.Findings, f)
		r.Verdict = worse(r.Verdict, f.Verdict)
		evidence[f.Indicator] = e
		if o.Progress != nil {
			o.Progress(f.Indicator, string(f.Verdict)+" "+firstOf(f.Why))
		}
	}
	if r.Partial {
		r.Verdict = worse(r.Verdict, capacity.Inconclusive)
	}
	r.Seconds = time.Since(r.Started).Seconds()
	if err := s.write(r, evidence); err != nil {
		return nil, err
	}
	r.Head = s.chain.head
	return r, nil
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// emptyDir makes dir, which must not have files yet: a run's chain is of all of them.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf("%s has files already: the evidence of a run needs a directory of its own", dir)
	}
	return err
}

// A session is a run under way.
type session struct {
	opt   *Options
	plan  plan
	chain *chain
	known *knowledge
	quiet stat.Covariates
	cv    float64
}

// qualify looks at the machine before anything runs on it.
func (s *session) qualify(ctx context.Context) {
	if s.opt.host != nil {
		s.quiet = s.opt.host()
		return
	}
	since := loadgen.StartHostSample()
	select {
	case <-ctx.Done():
	case <-time.After(2 * time.Second):
	}
	h, _ := since()
	s.quiet = stat.Covariates{Steal: h.Steal, Pressure: h.Pressure, Wait: h.Wait, Busy: h.Busy}
	if m := stat.MomentsOf(capacity.TimeFixedWork(ctx, 10)); m.N > 1 && m.Mean > 0 {
		s.cv = m.Std() / m.Mean
	}
}

// measure measures an indicator, again while the machine disturbs it and the plan allows,
// and writes the evidence of each attempt. An error means that it cannot be written.
func (s *session) measure(ctx context.Context, ind *Indicator) (*Evidence, error) {
	for attempt := 1; ; attempt++ {
		e := s.attempt(ctx, ind, attempt)
		b, err := json.Marshal(e)
		if err == nil {
			err = s.chain.add(evidenceFile(ind, attempt), append(b, '\n'))
		}
		if err != nil {
			return nil, fmt.Errorf("evidence of %s: %w", ind.Name, err)
		}
		if attempt >= s.plan.attempts || ctx.Err() != nil || e.NotRun != "" || len(e.noise()) == 0 || ind.evaluate(e).Verdict != capacity.Inconclusive {
			return e, nil
		}
		if s.opt.Progress != nil {
			s.opt.Progress(ind.Name, "again: "+firstOf(e.noise()))
		}
	}
}

func evidenceFile(ind *Indicator, attempt int) string {
	return path.Join("evidence", ind.Name, fmt.Sprintf("%d.json", attempt))
}

func (s *session) attempt(ctx context.Context, ind *Indicator, attempt int) *Evidence {
	e := &Evidence{Version: version, Indicator: ind.Name, Plan: s.plan.name, Started: time.Now(), Attempt: attempt, Quiet: s.quiet, HostCV: s.cv}
	if s.opt.Target != "" && !ind.Remote {
		e.NotRun = "it needs a Weir of its own: only HTTP reaches --target"
		return e
	}
	dir, err := os.MkdirTemp("", "weir-accept-")
	if err != nil {
		e.NotRun = err.Error()
		return e
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w := &world{opt: s.opt, plan: s.plan, chain: s.chain, known: s.known, ev: e, started: time.Now(), dir: dir, ind: ind.Name}
	w.progress("%s", ind.Title)
	err = ind.measure(ctx, w)
	e.Seconds = time.Since(w.started).Seconds()
	var not *notRunError
	switch {
	case err == nil:
	case errors.As(err, &not):
		e.NotRun = not.why
	default:
		e.NotRun = err.Error()
	}
	return e
}

// write writes the report in its three forms.
func (s *session) write(r *Report, evidence map[string]*Evidence) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	var md, html bytes.Buffer
	if err := errors.Join(r.Markdown(&md), r.page(evidence).HTML(&html)); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{reportFile, append(b, '\n')}, {"report.md", md.Bytes()}, {"report.html", html.Bytes()}} {
		if err := s.chain.add(f.name, f.text); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(s.opt.Dir, f.name), err)
		}
	}
	return nil
}

const reportFile = "report.json"

// allowedCPUs are the processors that this process and its children may use.
func allowedCPUs() string {
	b, err := os.ReadFile("/proc/self/status")
	if err == nil {
		if _, rest, ok := bytes.Cut(b, []byte("Cpus_allowed_list:")); ok {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			return string(bytes.TrimSpace(line))
		}
	}
	return fmt.Sprintf("all %d", runtime.NumCPU())
}
