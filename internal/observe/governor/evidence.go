package governor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// What evidence may answer.
var (
	ErrNoBundle    = errors.New("no such bundle")
	ErrCapturing   = errors.New("a bundle is being written")
	ErrNoDirectory = errors.New("evidence has no directory: set governor.evidence.dir")
)

// A Bundle is evidence on disk: a tar.gz of what the process was doing.
type Bundle struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	Bytes  int64     `json:"bytes"`
}

const (
	recorderAge   = 5 * time.Second
	recorderBytes = 8 << 20
	// armedAtMost is how long it stays armed without a change of state: an alert that
	// lasts for hours is not worth what the recorder takes.
	armedAtMost = 10 * time.Minute
	// blockRate is how long a goroutine must block to be surely in the block profile, and
	// mutexShare is one in how many contentions is in the mutex profile, while armed.
	blockRate  = time.Millisecond
	mutexShare = 100

	bundlePrefix = "weir-"
	bundleSuffix = ".tar.gz"
	bundleTime   = "20060102T150405.000Z"
)

// A recorder arms, captures and keeps evidence. The sampler only leaves word with it;
// its own goroutine does what takes time.
type recorder struct {
	// Fixed when made.
	cfg      EvidenceConfig
	log      *slog.Logger
	contents func() []part // beside the profiles
	commands chan func(context.Context)
	bound    int // of one file of a bundle, in bytes

	// op is held by anyone who arms, disarms or captures.
	op     sync.Mutex
	flight *trace.FlightRecorder
	mutex  int // the fraction before

	mu       sync.Mutex
	running  bool
	armed    bool
	tireAt   time.Time
	writing  string
	problem  string
	bundles  []Bundle // newest first; never changed in place
	lastAuto time.Time
}

func newRecorder(cfg EvidenceConfig, log *slog.Logger, contents func() []part) *recorder {
	r := &recorder{cfg: cfg, log: log, contents: contents, commands: make(chan func(context.Context), 8), bound: maxPart, bundles: []Bundle{}}
	if cfg.Dir == "" {
		r.problem = ErrNoDirectory.Error()
		return r
	}
	r.prepare()
	r.bundles = listBundles(cfg.Dir)
	for _, b := range r.bundles {
		if strings.HasSuffix(b.ID, "-inflection") && b.Time.After(r.lastAuto) {
			r.lastAuto = b.Time // a process that starts again and again must not fill the disk
		}
	}
	return r
}

// prepare makes the directory and says in words when it cannot be used.
func (r *recorder) prepare() bool {
	err := os.MkdirAll(r.cfg.Dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(r.cfg.Dir, "."+bundlePrefix+"probe-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = ""
	if err != nil {
		r.problem = fmt.Sprintf("the evidence directory cannot be written, so there will be no bundles: %v", err)
	}
	return err == nil
}

// run does what was requested until ctx is done.
func (r *recorder) run(ctx context.Context) {
	r.mu.Lock()
	r.running = true
	r.mu.Unlock()
	defer func() {
		r.disarm()
		r.mu.Lock()
		r.running = false
		r.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-r.commands:
			f(ctx)
		}
	}
}

func (r *recorder) goroutines() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		return 1
	}
	return 0
}

// post leaves word for run. A queue that is full drops it: the next change of state
// posts again.
func (r *recorder) post(f func(context.Context)) {
	select {
	case r.commands <- f:
	default:
		r.log.Warn("evidence is busy; a change of state was not followed")
	}
}

// follow takes a change of state: alert arms, inflection captures, steady disarms. It
// returns the id of the bundle that will be written, if one will. It does not block.
func (r *recorder) follow(now time.Time, to stat.State, causes []Cause) string {
	if to == stat.Steady {
		r.post(func(context.Context) { r.disarm() })
		return ""
	}
	if r.cfg.Dir == "" {
		return "" // the recording has no reader
	}
	r.post(func(context.Context) { r.arm() })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tireAt = now.Add(armedAtMost)
	if to != stat.Inflection {
		return ""
	}
	if r.writing != "" || !r.lastAuto.IsZero() && now.Sub(r.lastAuto) < time.Duration(r.cfg.Every) {
		return ""
	}
	id := r.id(now, "inflection")
	r.lastAuto, r.writing = now, id
	reason := "inflection: " + strings.Join(texts(causes), ", ")
	r.post(func(ctx context.Context) {
		if b, err := r.capture(ctx, id, now, reason); err != nil {
			r.log.Warn("no evidence bundle", "err", err)
		} else {
			r.log.Info("evidence bundle", "id", b.ID, "bytes", b.Bytes, "reason", b.Reason)
		}
	})
	return id
}

// tire disarms what has been armed for too long. It does not block.
func (r *recorder) tire(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.armed && !r.tireAt.IsZero() && now.After(r.tireAt) && r.writing == "" {
		r.tireAt = time.Time{}
		r.post(func(context.Context) { r.disarm() })
	}
}

// id is a new bundle's. Caller holds mu.
func (r *recorder) id(now time.Time, kind string) string {
	for {
		id := bundlePrefix + now.UTC().Format(bundleTime) + "-" + kind
		if !slices.ContainsFunc(r.bundles, func(b Bundle) bool { return b.ID == id }) {
			return id
		}
		now = now.Add(time.Millisecond)
	}
}

// arm starts the flight recorder and the profiles that cost something.
func (r *recorder) arm() {
	r.op.Lock()
	defer r.op.Unlock()
	r.armLocked()
}

func (r *recorder) armLocked() {
	r.mu.Lock()
	was := r.armed
	r.armed = true
	r.mu.Unlock()
	if was {
		return
	}
	if r.cfg.FlightRecorder.On() {
		r.flight = trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: recorderAge, MaxBytes: recorderBytes})
		if err := r.flight.Start(); err != nil { // another has it
			r.log.Warn("no flight recorder", "err", err)
			r.flight = nil
		}
	}
	runtime.SetBlockProfileRate(int(blockRate))
	r.mutex = runtime.SetMutexProfileFraction(mutexShare)
}

func (r *recorder) disarm() {
	r.op.Lock()
	defer r.op.Unlock()
	r.disarmLocked()
}

func (r *recorder) disarmLocked() {
	r.mu.Lock()
	was := r.armed
	r.armed = false
	r.mu.Unlock()
	if !was {
		return
	}
	if r.flight != nil {
		r.flight.Stop()
		r.flight = nil
	}
	runtime.SetBlockProfileRate(0)
	runtime.SetMutexProfileFraction(r.mutex)
}

// request is a capture by hand.
func (r *recorder) request(ctx context.Context, now time.Time, reason string) (Bundle, error) {
	if r.cfg.Dir == "" {
		return Bundle{}, ErrNoDirectory
	}
	r.mu.Lock()
	if r.writing != "" {
		r.mu.Unlock()
		return Bundle{}, ErrCapturing
	}
	id := r.id(now, "request")
	r.writing = id
	r.mu.Unlock()
	return r.capture(ctx, id, now, reason)
}

// capture writes bundle id, which writing names already.
func (r *recorder) capture(ctx context.Context, id string, now time.Time, reason string) (Bundle, error) {
	reason = redact.Text(reason)
	r.op.Lock()
	defer r.op.Unlock()
	defer func() {
		r.mu.Lock()
		r.writing = ""
		r.mu.Unlock()
	}()
	if !r.prepare() {
		return Bundle{}, errors.New(r.view().Problem)
	}
	r.mu.Lock()
	armed := r.armed
	r.mu.Unlock()
	r.armLocked()
	if !armed {
		defer r.disarmLocked()
	}
	b, err := r.write(ctx, id, now, reason, armed)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.problem = fmt.Sprintf("the last bundle was not written: %v", err)
		return Bundle{}, err
	}
	r.bundles = slices.Insert(slices.Clone(r.bundles), 0, b)
	return b, r.prune(b)
}

// prune drops the oldest bundles until the rest fits. Caller holds mu.
func (r *recorder) prune(newest Bundle) error {
	var total int64
	keep := r.bundles[:0:0]
	for i, b := range r.bundles {
		if total += b.Bytes; i < r.cfg.Keep && total <= r.cfg.MaxBytes {
			keep = append(keep, b)
			continue
		}
		if err := os.Remove(r.path(b.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			r.log.Warn("remove an old bundle", "err", err)
		}
		total -= b.Bytes
	}
	r.bundles = keep
	if !slices.Contains(keep, newest) {
		r.problem = fmt.Sprintf("a bundle of %d bytes is more than evidence.max_bytes, %d, and was removed", newest.Bytes, r.cfg.MaxBytes)
		return errors.New(r.problem)
	}
	return nil
}

func (r *recorder) path(id string) string { return filepath.Join(r.cfg.Dir, id+bundleSuffix) }

func (r *recorder) view() Evidence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Evidence{Armed: r.armed, Writing: r.writing, Problem: r.problem, Bundles: r.bundles}
}

// open reads a bundle that is listed; nothing else in the directory, and nothing outside.
func (r *recorder) open(id string) (io.ReadCloser, error) {
	if !slices.ContainsFunc(r.view().Bundles, func(b Bundle) bool { return b.ID == id }) {
		return nil, fmt.Errorf("%w: %q", ErrNoBundle, id)
	}
	f, err := os.Open(r.path(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q was removed", ErrNoBundle, id)
	}
	if err != nil {
		return nil, fmt.Errorf("open bundle: %w", err)
	}
	return f, nil
}
