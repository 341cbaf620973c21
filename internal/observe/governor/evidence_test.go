package governor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func evidenceConfig(dir string) Config {
	return short(func(c *Config) {
		c.Evidence = EvidenceConfig{Dir: dir, Profile: hub.Duration(50 * time.Millisecond)}
	})
}

// unpack reads a bundle: its comment and its files without the leading directory.
func unpack(t *testing.T, r io.Reader, id string) (comment string, files map[string][]byte) {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return z.Comment, files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, id+"/")
		if !ok || h.Mode != 0o600 {
			t.Errorf("%s with mode %o is not below %s", h.Name, h.Mode, id)
		}
		files[name] = b
	}
}

// profileFields walks a pprof file (a gzipped protocol buffer, profile.proto) and counts
// the fields of its top message.
func profileFields(b []byte) (map[uint64]int, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if b, err = io.ReadAll(z); err != nil {
		return nil, err
	}
	varint := func() (v uint64) {
		for shift := 0; len(b) > 0 && shift < 64; shift += 7 {
			c := b[0]
			b = b[1:]
			v |= uint64(c&0x7f) << shift
			if c < 0x80 {
				break
			}
		}
		return v
	}
	out := map[uint64]int{}
	for len(b) > 0 {
		key := varint()
		out[key>>3]++
		switch key & 7 {
		case 0:
			varint()
		case 2:
			n := varint()
			if n > uint64(len(b)) {
				return nil, fmt.Errorf("field %d of %d bytes ends beyond the file", key>>3, n)
			}
			b = b[n:]
		default:
			return nil, fmt.Errorf("field %d has wire type %d", key>>3, key&7)
		}
	}
	return out, nil
}

func TestABundleOpensWithOrdinaryTools(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "missing")
	requested := 0
	src := Sources{Consumers: func(n int) []Consumer {
		requested = n
		return []Consumer{{ID: "17", Peer: "192.0.2.1:9", Messages: 5}}
	}, Observe: func(_ context.Context, window time.Duration, w io.Writer) error {
		_, err := fmt.Fprintf(w, `{"window":%q}`, window)
		return err
	}}
	g := runUntil(t, evidenceConfig(dir), src, "a second", func(v *Snapshot) bool { return v.Seq > 60 })
	b, err := g.Capture(context.Background(), "by hand, 3.2× − ü")
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Bundles(); len(got) != 1 || got[0] != b || b.Reason != "by hand, 3.2× - ?" || b.Bytes == 0 {
		t.Errorf("bundle %+v, listed %+v", b, got)
	}
	r, err := g.Open(b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	comment, files := unpack(t, r, b.ID)
	if comment != b.Reason {
		t.Errorf("the archive's comment is %q, want %q", comment, b.Reason)
	}
	if !bytes.HasPrefix(files["trace.out"], []byte("go 1.")) || !bytes.Contains(files["trace.out"][:16], []byte(" trace\x00")) {
		t.Errorf("trace.out of %d bytes starts with %q", len(files["trace.out"]), files["trace.out"][:min(16, len(files["trace.out"]))])
	}
	for _, name := range []string{"cpu.pprof", "heap.pprof", "goroutine.pprof", "mutex.pprof", "block.pprof"} {
		fields, err := profileFields(files[name])
		if err != nil || fields[1] == 0 || fields[6] == 0 { // sample_type, string_table
			t.Errorf("%s: fields %v, %v", name, fields, err)
		}
		if name == "goroutine.pprof" && fields[2] == 0 {
			t.Errorf("%s has no sample", name)
		}
	}
	if !bytes.Contains(files["goroutines.txt"], []byte("TestABundleOpensWithOrdinaryTools")) {
		t.Error("goroutines.txt does not show this test")
	}
	var v Snapshot
	if err := json.Unmarshal(files["snapshot.json"], &v); err != nil || v.Seq == 0 {
		t.Errorf("snapshot.json: %v, sequence %d", err, v.Seq)
	}
	var maps []HeatMap
	if err := json.Unmarshal(files["heatmaps.json"], &maps); err != nil || len(maps) != heatMaps || len(maps[0].Columns) == 0 {
		t.Errorf("heatmaps.json: %v, %d maps", err, len(maps))
	}
	var consumers []Consumer
	if err := json.Unmarshal(files["consumers.json"], &consumers); err != nil || len(consumers) != 1 || requested == 0 {
		t.Errorf("consumers.json: %v, %+v", err, consumers)
	}
	if got := string(files["observed.json"]); got != `{"window":"50ms"}` {
		t.Errorf("observed.json: %s", got)
	}
	for name := range files {
		if name != "README.txt" && !bytes.Contains(files["README.txt"], []byte(name)) {
			t.Errorf("the README does not say what %s is", name)
		}
	}
	if s := string(files["README.txt"]); !strings.Contains(s, "by hand, 3.2×") || strings.Contains(s, "not complete") {
		t.Errorf("README:\n%s", s)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the directory has %v, %v", left, err)
	}
}

// newTestRecorder writes small bundles.
func newTestRecorder(cfg EvidenceConfig) *recorder {
	c := Config{Evidence: cfg}.WithDefaults().Evidence
	c.Profile, c.FlightRecorder = hub.Duration(time.Millisecond), setting.Off
	return newRecorder(c, slog.New(slog.DiscardHandler), func() []part { return nil })
}

func TestOnlyOneBundleIsWrittenAtATime(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	r := newTestRecorder(EvidenceConfig{Dir: t.TempDir()})
	r.contents = func() []part {
		return []part{{"slow.txt", "slow", func(context.Context, io.Writer) error { close(started); <-release; return nil }}}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := r.request(context.Background(), time.Now(), "first"); err != nil {
			t.Error(err)
		}
	})
	<-started
	if _, err := r.request(context.Background(), time.Now(), "second"); !errors.Is(err, ErrCapturing) {
		t.Errorf("the second says %v, want %v", err, ErrCapturing)
	}
	if id := r.follow(time.Now(), stat.Inflection, nil); id != "" {
		t.Errorf("an inflection meanwhile writes %s", id)
	}
	if v := r.view(); v.Writing == "" || !v.Armed {
		t.Errorf("meanwhile %+v", v)
	}
	close(release)
	wg.Wait()
	if v := r.view(); v.Writing != "" || v.Armed || len(v.Bundles) != 1 {
		t.Errorf("afterwards %+v", v)
	}
}

func TestInflectionsWriteOneBundleInTenMinutes(t *testing.T) {
	dir := t.TempDir()
	r := newTestRecorder(EvidenceConfig{Dir: dir})
	now := time.Unix(2e9, 0)
	f := func(after time.Duration, want bool) {
		t.Helper()
		id := r.follow(now.Add(after), stat.Inflection, []Cause{{Text: "run/P 9.0"}, {Text: "loop 1 busy 99 %"}})
		if (id != "") != want {
			t.Errorf("after %v: bundle %q, want one: %v", after, id, want)
		}
		for len(r.commands) > 0 {
			(<-r.commands)(context.Background())
		}
	}
	f(0, true)
	f(time.Second, false)
	f(9*time.Minute, false)
	f(10*time.Minute, true)
	if b := r.view().Bundles; len(b) != 2 || b[1].Reason != "inflection: run/P 9.0, loop 1 busy 99 %" || !b[0].Time.After(b[1].Time) {
		t.Errorf("bundles %+v", b)
	}
	// Another process in the same directory knows of them.
	again := newTestRecorder(EvidenceConfig{Dir: dir})
	if !slices.EqualFunc(again.view().Bundles, r.view().Bundles, func(a, b Bundle) bool {
		return a.ID == b.ID && a.Time.Equal(b.Time) && a.Reason == b.Reason && a.Bytes == b.Bytes
	}) {
		t.Errorf("after a restart %+v, before %+v", again.view().Bundles, r.view().Bundles)
	}
	if id := again.follow(now.Add(11*time.Minute), stat.Inflection, nil); id != "" {
		t.Errorf("after a restart %s is written", id)
	}
	again.disarm()
	r.disarm()
}

func TestArmingFollowsTheStateAndTires(t *testing.T) {
	if r := newTestRecorder(EvidenceConfig{}); true { // the recording has no reader
		r.follow(time.Unix(2e9, 0), stat.Alert, nil)
		if len(r.commands) > 0 {
			t.Error("armed without a directory for evidence")
		}
	}
	r := newTestRecorder(EvidenceConfig{Dir: t.TempDir()})
	now := time.Unix(2e9, 0)
	do := func() {
		for len(r.commands) > 0 {
			(<-r.commands)(context.Background())
		}
	}
	f := func(what string, armed bool) {
		t.Helper()
		if do(); r.view().Armed != armed {
			t.Errorf("%s: armed %v, want %v", what, !armed, armed)
		}
	}
	r.follow(now, stat.Alert, nil)
	f("alert", true)
	r.tire(now.Add(armedAtMost))
	f("for as long as it may", true)
	r.tire(now.Add(armedAtMost + 1))
	f("too long", false)
	r.lastAuto = now // no bundle now
	r.follow(now, stat.Inflection, nil)
	f("inflection", true)
	r.follow(now, stat.Steady, nil)
	f("steady", false)
}

func TestOldBundlesMakeRoom(t *testing.T) {
	dir := t.TempDir()
	r := newTestRecorder(EvidenceConfig{Dir: dir, Keep: 3})
	now := time.Unix(2e9, 0)
	var ids []string
	for i := range 5 {
		b, err := r.request(context.Background(), now.Add(time.Duration(i)*time.Second), "n")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, b.ID)
	}
	var kept []string
	for _, b := range r.view().Bundles {
		kept = append(kept, b.ID)
	}
	if want := []string{ids[4], ids[3], ids[2]}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	left, _ := filepath.Glob(dir + "/*")
	if len(left) != 3 {
		t.Errorf("on disk: %v", left)
	}
	if _, err := r.open(ids[0]); !errors.Is(err, ErrNoBundle) {
		t.Errorf("the oldest opens: %v", err)
	}
	r.cfg.MaxBytes = r.view().Bundles[0].Bytes + 10
	if _, err := r.request(context.Background(), now.Add(time.Minute), "n"); err != nil && len(r.view().Bundles) > 1 {
		t.Fatal(err)
	}
	var total int64
	for _, b := range r.view().Bundles {
		total += b.Bytes
	}
	if total > r.cfg.MaxBytes {
		t.Errorf("%d bytes are kept, of %d allowed", total, r.cfg.MaxBytes)
	}
}

func TestABundleLargerThanTheBoundIsNotKept(t *testing.T) {
	r := newTestRecorder(EvidenceConfig{Dir: t.TempDir()})
	r.cfg.MaxBytes = 100
	if _, err := r.request(context.Background(), time.Now(), "n"); err == nil || !strings.Contains(err.Error(), "max_bytes") {
		t.Errorf("a bundle larger than the bound: %v", err)
	}
	if v := r.view(); len(v.Bundles) != 0 || v.Problem == "" {
		t.Errorf("%+v", v)
	}
}

func TestADirectoryThatCannotBeWrittenIsSaidInWords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newTestRecorder(EvidenceConfig{Dir: file + "/below"})
	if p := r.view().Problem; !strings.Contains(p, "cannot be written") || !strings.Contains(p, file) {
		t.Errorf("the problem reads %q", p)
	}
	if _, err := r.request(context.Background(), time.Now(), "x"); err == nil || !strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("a capture says %v", err)
	}
	if v := r.view(); v.Armed || v.Writing != "" {
		t.Errorf("it left %+v", v)
	}
	if err := os.Remove(file); err != nil { // fixed: no restart is needed
		t.Fatal(err)
	}
	if _, err := r.request(context.Background(), time.Now(), "x"); err != nil || r.view().Problem != "" {
		t.Errorf("when it is fixed: %v, %q", err, r.view().Problem)
	}
	none := newTestRecorder(EvidenceConfig{})
	if _, err := none.request(context.Background(), time.Now(), "x"); !errors.Is(err, ErrNoDirectory) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestOnlyListedBundlesAreOpened(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.tar.gz"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".weir-parts-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newTestRecorder(EvidenceConfig{Dir: dir})
	for _, id := range []string{"secret", "../secret", "", ".", "weir-", "/etc/passwd", "weir-20261121T191101.000Z-inflection"} {
		if _, err := r.open(id); !errors.Is(err, ErrNoBundle) {
			t.Errorf("open(%q) = %v", id, err)
		}
	}
	if len(r.view().Bundles) != 0 {
		t.Errorf("listed: %+v", r.view().Bundles)
	}
	if _, err := os.Stat(filepath.Join(dir, ".weir-parts-1")); !errors.Is(err, os.ErrNotExist) {
		t.Error("what an earlier process left half done is still there")
	}
}

// What fails is said in the README; the rest is there all the same.
func TestABundleIsWrittenThoughAPartFails(t *testing.T) {
	r := newTestRecorder(EvidenceConfig{Dir: t.TempDir()})
	r.bound = 4 << 20
	r.contents = func() []part {
		return []part{
			{"broken.txt", "what breaks", func(context.Context, io.Writer) error { return errors.New("it broke") }},
			{"big.txt", "what is too big", func(_ context.Context, w io.Writer) error {
				b := make([]byte, 1<<20)
				for {
					if _, err := w.Write(b); err != nil {
						return err
					}
				}
			}},
			{"whole.txt", "what works", func(_ context.Context, w io.Writer) error { _, err := w.Write([]byte("yes")); return err }},
		}
	}
	b, err := r.request(context.Background(), time.Now(), "x")
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.open(b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, files := unpack(t, f, b.ID)
	text := string(files["README.txt"])
	for _, want := range []string{"it broke", errPartTooBig.Error(), "flight recorder is off"} {
		if !strings.Contains(text, want) {
			t.Errorf("the README does not say %q:\n%s", want, text)
		}
	}
	if string(files["whole.txt"]) != "yes" || len(files["big.txt"]) != r.bound {
		t.Errorf("whole.txt %q, big.txt %d bytes", files["whole.txt"], len(files["big.txt"]))
	}
}

func TestACanceledCaptureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r := newTestRecorder(EvidenceConfig{Dir: dir})
	r.cfg.Profile = hub.Duration(time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.request(ctx, time.Now(), "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled capture says %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

// From the state to the bundle: an inflection writes one, and the timeline names it.
func TestAnInflectionLeavesEvidence(t *testing.T) {
	trial.Long(t)
	sc := &script{}
	src := sc.sources()
	src.Broker = func() BrokerSample { return BrokerSample{Waiting: 3, Oldest: time.Minute} }
	cfg := evidenceConfig(t.TempDir())
	cfg.Window = hub.Duration(2200 * time.Millisecond) // a broker is queried once a second
	g := runUntil(t, cfg, src, "a bundle", func(v *Snapshot) bool {
		return v.State.Now == stat.Inflection && len(v.Evidence.Bundles) == 1
	})
	v := g.Snapshot()
	if last := v.Timeline[len(v.Timeline)-1]; last.To != stat.Inflection || last.Evidence != v.Evidence.Bundles[0].ID {
		t.Errorf("the timeline's last is %+v, the bundle %s", last, v.Evidence.Bundles[0].ID)
	}
	if !strings.Contains(v.Evidence.Bundles[0].Reason, "disk: broker silent for 1m0s") {
		t.Errorf("the reason is %q", v.Evidence.Bundles[0].Reason)
	}
	if g.evidence.view().Armed {
		t.Error("it is armed after the governor has ended")
	}
}
