package governor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A part is one file of a bundle.
type part struct {
	name  string
	what  string // one line of the README
	write func(ctx context.Context, w io.Writer) error
}

// maxPart bounds one file of a bundle.
const maxPart = 64 << 20

var errPartTooBig = errors.New("the file grew past its bound and was cut")

// write makes every part, each in a file so that memory stays what it is, and packs
// them. What cannot be had is said in the README; the rest is written all the same.
func (r *recorder) write(ctx context.Context, id string, now time.Time, reason string, armed bool) (Bundle, error) {
	dir, err := os.MkdirTemp(r.cfg.Dir, "."+bundlePrefix+"parts-*")
	if err != nil {
		return Bundle{}, fmt.Errorf("make a bundle: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is removed at the next start
	var notes []string
	names := []string{"README.txt"}
	for _, p := range r.parts(armed) {
		if ctx.Err() != nil {
			return Bundle{}, fmt.Errorf("make a bundle: %w", ctx.Err())
		}
		err := writePart(ctx, filepath.Join(dir, p.name), r.bound, p.write)
		if err != nil {
			notes = append(notes, fmt.Sprintf("  %-18s %s\n%20s (not complete: %v)", p.name, p.what, "", err))
		} else {
			notes = append(notes, fmt.Sprintf("  %-18s %s", p.name, p.what))
		}
		names = append(names, p.name)
	}
	err = os.WriteFile(filepath.Join(dir, names[0]), []byte(readme(now, reason, armed, notes)), 0o600)
	if err != nil {
		return Bundle{}, fmt.Errorf("make a bundle: %w", err)
	}
	temp := filepath.Join(r.cfg.Dir, "."+id+".tmp")
	defer func() { _ = os.Remove(temp) }() // gone already when it was kept
	if err := pack(temp, id, reason, now, dir, names); err != nil {
		return Bundle{}, fmt.Errorf("pack a bundle: %w", err)
	}
	if err := os.Rename(temp, r.path(id)); err != nil {
		return Bundle{}, fmt.Errorf("keep a bundle: %w", err)
	}
	info, err := os.Stat(r.path(id))
	if err != nil {
		return Bundle{}, fmt.Errorf("keep a bundle: %w", err)
	}
	return Bundle{ID: id, Time: now.UTC().Truncate(time.Millisecond), Reason: latin(reason), Bytes: info.Size()}, nil
}

// parts are the files in the order in which they are made: what passes first. A
// recorder that was armed holds the seconds before now; one that was not gets the
// seconds of the processor profile.
func (r *recorder) parts(armed bool) []part {
	flight := part{"trace.out", "execution trace of the last seconds: go tool trace trace.out", func(_ context.Context, w io.Writer) error {
		if r.flight == nil {
			return errors.New("the flight recorder is off or used by another")
		}
		_, err := r.flight.WriteTo(w)
		return err
	}}
	cpu := part{"cpu.pprof", "processor profile: go tool pprof cpu.pprof", r.profileCPU}
	lookup := func(name, what string, level int) part {
		file := name + ".pprof"
		if level > 0 {
			file = name + "s.txt"
		}
		return part{file, what, func(_ context.Context, w io.Writer) error { return pprof.Lookup(name).WriteTo(w, level) }}
	}
	list := []part{
		lookup("goroutine", "every goroutine's stack: go tool pprof goroutine.pprof", 0),
		lookup("goroutine", "the same to read, most frequent first", 1),
		lookup("heap", "memory in use and allocated: go tool pprof heap.pprof", 0),
	}
	if armed {
		list = slices.Concat([]part{flight}, list, []part{cpu})
	} else {
		list = append(list, cpu, flight)
	}
	list = append(list,
		lookup("mutex", "who made others wait for locks, since it was armed", 0),
		lookup("block", "where goroutines waited, since it was armed", 0))
	return append(list, r.contents()...)
}

func (r *recorder) profileCPU(ctx context.Context, w io.Writer) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	wait := time.NewTimer(time.Duration(r.cfg.Profile))
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
		return nil
	}
}

func writePart(ctx context.Context, path string, bound int, write func(context.Context, io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(ctx, &boundedWriter{f, bound}), f.Close())
}

type boundedWriter struct {
	w    io.Writer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errPartTooBig
	}
	n, err := b.w.Write(p)
	b.left -= n
	return n, err
}

func pack(path, id, reason string, now time.Time, dir string, names []string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := gzip.NewWriter(f)
	z.Comment, z.ModTime = latin(reason), now
	t := tar.NewWriter(z)
	for _, name := range names {
		if err := packFile(t, filepath.Join(dir, name), id+"/"+name, now); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func packFile(t *tar.Writer, path, name string, now time.Time) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Size: info.Size(), Mode: 0o600, ModTime: now, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.CopyN(t, f, info.Size())
	return err
}

// latin is s as a gzip header takes it (RFC 1952 §2.3.1: Latin-1, no NUL), and not
// too long.
func latin(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case b.Len() >= 400:
			return b.String()
		case r == '−':
			b.WriteByte('-')
		case r == 'µ' || r == '×' || r >= ' ' && r < 0x7f:
			b.WriteRune(r)
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

func readme(now time.Time, reason string, armed bool, notes []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Evidence, %s\nReason: %s\n\n", now.UTC().Format(time.RFC3339), reason)
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Path + " " + info.Main.Version
	}
	fmt.Fprintf(&b, "Program: %s, %s %s/%s, %d processors, GOMAXPROCS %d\n\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		sys.Processors(), runtime.GOMAXPROCS(0))
	b.WriteString("Files, in the order in which they were made:\n\n")
	b.WriteString(strings.Join(notes, "\n"))
	b.WriteString("\n\n")
	if armed {
		b.WriteString("The flight recorder ran before: the trace ends when this bundle was started.\n")
	} else {
		b.WriteString("The flight recorder did not run before: the trace shows the seconds of the processor profile.\n")
	}
	b.WriteString("\nWhere to start: snapshot.json, \"state\": the causes in words; then the file that fits:\n" +
		"  latency or run/P     cpu.pprof, then trace.out (scheduler latency, longest waits)\n" +
		"  goroutines leak      goroutines.txt, the first entries\n" +
		"  loop stuck           snapshot.json, the cause's detail; goroutines.txt, label \"loop\"\n" +
		"  locks                mutex.pprof\n" +
		"  memory, gc           heap.pprof\n" +
		"  readers stopped      consumers.json\n" +
		"  disk, system calls   weir observe --bundle FILE, which also draws the states of trace.out\n" +
		"  CPU starved          the host: snapshot.json, \"host\"\n")
	return b.String()
}

// listBundles finds what earlier processes wrote, and removes what they left half done.
func listBundles(dir string) []Bundle {
	out := []Bundle{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "."+bundlePrefix) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name())) // left over; it stays when it cannot go
			continue
		}
		id, ok := strings.CutSuffix(e.Name(), bundleSuffix)
		stamp, _, _ := strings.Cut(strings.TrimPrefix(id, bundlePrefix), "-")
		at, err := time.Parse(bundleTime, stamp)
		if !ok || !e.Type().IsRegular() || !strings.HasPrefix(id, bundlePrefix) || err != nil {
			continue
		}
		b := Bundle{ID: id, Time: at}
		if info, err := e.Info(); err == nil {
			b.Bytes = info.Size()
		}
		if f, err := os.Open(filepath.Join(dir, e.Name())); err == nil {
			if z, err := gzip.NewReader(f); err == nil {
				b.Reason = z.Comment
			}
			f.Close()
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b Bundle) int { return b.Time.Compare(a.Time) })
	return out
}
