package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// What the server must be able to write besides messages: below either of these the
// data directory counts as full, whatever min_free is.
const (
	leastBytes  = 1 << 20
	leastInodes = 16
)

// roomLogEvery bounds how often it is logged that publishing is refused.
const roomLogEvery = 10 * time.Second

// diskSpace is what a file system has left.
type diskSpace struct {
	free, total int64 // bytes
	full        bool  // no new file can be written
	readOnly    bool  // the file system is read-only, which makes it full as well
}

// ErrReadOnlyDisk is for a data directory on a file system that is read-only: it is mounted so,
// or the kernel refuses writes after an error of the disk. It is a hub.ErrStorageFull.
var ErrReadOnlyDisk = readOnlyDisk{}

type readOnlyDisk struct{}

// Error implements error.
func (readOnlyDisk) Error() string { return "storage read-only" }

// Is makes it a hub.ErrStorageFull.
func (readOnlyDisk) Is(target error) bool { return target == hub.ErrStorageFull }

// mountedReadOnly is ST_RDONLY of statfs(2).
const mountedReadOnly = 1

func spaceOf(dir string) (diskSpace, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return diskSpace{}, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	block := int64(s.Bsize) //nolint:unconvert // it has other types on other systems
	d := diskSpace{free: int64(s.Bavail) * block, total: int64(s.Blocks) * block}
	// Some file systems have no fixed number of inodes, and report 0 of 0.
	d.full = d.free < leastBytes || s.Files > 0 && s.Ffree < leastInodes
	if d.readOnly = s.Flags&mountedReadOnly != 0; d.readOnly {
		d.full = true
	}
	return d, nil
}

// noSpace reports whether err is a disk or a quota that is used up.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// notWritable reports whether err is a disk that is used up or read-only.
func notWritable(err error) bool { return noSpace(err) || errors.Is(err, syscall.EROFS) }

func keptFree(d diskSpace, minFree int64) int64 {
	if minFree == 0 {
		return min(64<<20, d.total/8)
	}
	return minFree
}

// A room is what may still be written to the embedded server's disk. Publishes
// take from it what they will need; it is measured anew several times a second
// and when it has been used up. The server itself would meet a full disk in the
// middle of a write and then stop the stream until it is started again.
//
// Others write to the disk as well. Once it is full the server may have met that, so
// that publishing is refused until it has been started again: see Broker.reopen.
type room struct {
	dir     string
	minFree int64
	left    atomic.Int64
	disk    atomic.Int64  // bytes free on the disk
	bare    atomic.Bool   // no new file can be written
	frozen  atomic.Bool   // the file system is read-only
	shut    atomic.Bool   // it was bare, and reopen has not been done
	kick    chan struct{} // holds a token when left was used up
	// unwritable is why no file could be written when that was tried last; nil while one can.
	unwritable atomic.Pointer[error]

	// Owned by keep, after Start.
	doubted   bool      // something could not be written: see probe
	probed    time.Time // when that was tried last
	refusing  bool      // as it was logged
	logged    time.Time // when refusing became true
	reopening bool
	next      time.Time  // not before it is reopened
	reopened  chan error // what reopen returned
}

func newRoom(cfg Config) (*room, error) {
	r := &room{dir: cfg.Dir, minFree: cfg.MinFree, kick: make(chan struct{}, 1), reopened: make(chan error, 1)}
	return r, r.look(0)
}

// look measures. Pending is what was taken and is not written yet.
func (r *room) look(pending int64) error {
	d, err := spaceOf(r.dir)
	if err != nil {
		return err
	}
	r.probe(&d, time.Now())
	r.disk.Store(d.free)
	r.bare.Store(d.full)
	r.frozen.Store(d.readOnly)
	if d.full {
		r.shut.Store(true)
	}
	r.left.Store(d.free - keptFree(d, r.minFree) - pending)
	return nil
}

// probeEvery is how often it is tried whether a file can be written, while that is in doubt.
const probeEvery = time.Second

// doubt has the next look try whether a file can be written. r may be nil.
func (r *room) doubt() {
	if r != nil {
		r.doubted = true
	}
}

// probe adds to d what statfs does not show, once something could not be written: that the
// kernel refuses writes after an error of the disk, as ext4 does from Linux 6.12 on, or that
// a quota is used up.
func (r *room) probe(d *diskSpace, now time.Time) {
	if d.full || !r.doubted {
		r.unwritable.Store(nil)
		return
	}
	if now.Sub(r.probed) >= probeEvery {
		r.probed = now
		err := tryFile(r.dir)
		if err == nil {
			r.unwritable.Store(nil)
			r.doubted = false
			return
		}
		r.unwritable.Store(&err)
	}
	if err := r.unwritable.Load(); err != nil {
		d.full, d.readOnly = true, errors.Is(*err, syscall.EROFS)
	}
}

// tryFile returns why no file can be written in dir; nil if one can.
func tryFile(dir string) error {
	f, err := os.CreateTemp(dir, "probe.*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("probe\n")
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// reserve reports whether n bytes may be written.
func (r *room) reserve(n int64) bool {
	if r.shut.Load() {
		return false
	}
	if r.left.Add(-n) >= 0 {
		return true
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return false
}

// full reports whether a message of usual size would be refused.
func (r *room) full() bool { return r.shut.Load() || r.left.Load() < 64<<10 }

// refusal is why publishing is refused while full.
func (r *room) refusal() error {
	if r.frozen.Load() {
		return fmt.Errorf("%w: publishing is refused, reading works; the file system of the data directory is read-only", ErrReadOnlyDisk)
	}
	if err := r.unwritable.Load(); err != nil {
		return fmt.Errorf("%w: publishing is refused, reading works; no file can be written in the data directory: %w", hub.ErrStorageFull, *err)
	}
	return fmt.Errorf("%w: publishing is refused, reading works; %d MiB are free in the data directory", hub.ErrStorageFull, r.disk.Load()>>20)
}

// report logs when publishing begins to be refused and when it is over.
func (r *room) report(now time.Time, log *slog.Logger) {
	switch full := r.full(); {
	case full == r.refusing || full && now.Sub(r.logged) < roomLogEvery:
	case full:
		r.refusing, r.logged = true, now
		if r.frozen.Load() {
			log.Error("data directory is on a read-only file system: publishing is refused, reading works", "dir", r.dir,
				"hint", "look at the kernel's log for errors of the disk, repair it and mount it read-write; publishing resumes by itself")
			return
		}
		if err := r.unwritable.Load(); err != nil {
			log.Error("no file can be written in the data directory: publishing is refused, reading works", "dir", r.dir, "err", *err,
				"hint", "look at the kernel's log for errors of the disk, and at quotas; publishing resumes by itself")
			return
		}
		log.Error("data directory is full: publishing is refused, reading works", "dir", r.dir, "free_bytes", r.disk.Load(),
			"hint", "free space there, or lower history_bytes or broker.nats.min_free; publishing resumes by itself")
	default:
		r.refusing = false
		log.Info("data directory has space again: publishing resumes", "dir", r.dir, "free_bytes", r.disk.Load())
	}
}

// readOnly reports whether the disk takes no new file: then nothing is written at all.
// r may be nil: with an external NATS there is no such disk.
func (r *room) readOnly() bool { return r != nil && r.bare.Load() }

// reopen makes publishing work after the disk was full. The server is started again,
// for one that met the full disk in a write does not write any more; then the logs get
// what could not be written before.
func (b *Broker) reopen(ctx context.Context) error {
	if b.cfg.Cluster.Name == "" { // of a cluster the others have a part in it
		if err := b.server.restart(); err != nil {
			return fmt.Errorf("start the embedded NATS server again: %w", err)
		}
	}
	for _, s := range b.all() {
		for err := s.write(ctx); err != nil; err = s.write(ctx) {
			if hopeless(err) || ctx.Err() != nil {
				return fmt.Errorf("namespace %s: %w", s.opts.Load().Title(), err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery):
			}
		}
	}
	return nil
}

const (
	reopenTimeout = time.Minute
	reopenAgain   = 2 * time.Second // after one that failed
)

// keepRoom measures the disk, and has publishing begin again when there is space.
func (b *Broker) keepRoom(now time.Time) {
	r := b.room
	for _, s := range b.all() {
		if s.storage.full.Load() { // the disk was full between two looks, or takes no more
			r.shut.Store(true)
			r.doubt() // a server that is started again without files to write has no logs
		}
	}
	if err := r.look(b.out.pendingBytes()); err != nil {
		b.log.Error("disk cannot be looked at", "err", err)
		return
	}
	r.report(now, b.log)
	if !r.shut.Load() || r.reopening || r.disk.Load() < 2*leastBytes || r.bare.Load() || now.Before(r.next) {
		return
	}
	r.reopening, r.next = true, now.Add(reopenAgain)
	b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, reopenTimeout)
		defer cancel()
		r.reopened <- b.reopen(ctx)
	})
}

// reopenedWith is called with what reopen returned.
func (b *Broker) reopenedWith(err error) {
	r := b.room
	r.reopening = false
	if err == nil {
		err = b.mark(false)
	}
	if err != nil {
		r.doubt()
		if b.ctx.Err() == nil {
			b.log.Warn("publishing cannot resume yet", "err", err)
		}
		return
	}
	r.shut.Store(r.bare.Load())
	for _, s := range b.all() {
		s.nudge()
	}
}

// An unwritten is what a log has besides what its stream says, while the disk is full:
// an epoch that could not be written. Publishing is refused until it is.
type unwritten struct {
	epoch string // "" for the stream's own
	base  uint64
}

// over returns in, err as they are with u.
func (u *unwritten) over(s *storedLog, in info, err error) (info, error) {
	switch {
	case u.epoch == "":
		return in, err
	case isCode(err, codeStreamNotFound):
		return info{epoch: u.epoch, first: 1, least: s.opts.Load().HistorySize, config: s.config(u.epoch, 0, s.opts.Load().HistorySize, false)}, nil
	case err == nil:
		in.epoch, in.base = u.epoch, u.base
	}
	return in, err
}

// write writes what could not be written while the disk was full.
func (s *stream) write(ctx context.Context) error {
	if !s.durable() {
		return nil
	}
	if u := s.unwritten.Load(); u != nil && u.epoch != "" {
		in, err := s.lookStored(ctx)
		switch {
		case isCode(err, codeStreamNotFound):
			err = s.put(ctx, "CREATE", s.config(u.epoch, 0, s.opts.Load().HistorySize, false))
		case err == nil && in.epoch != u.epoch:
			err = s.put(ctx, "UPDATE", s.config(u.epoch, u.base, in.least, in.gone))
		}
		if err != nil {
			return err
		}
	}
	s.unwritten.Store(nil)
	_, err := s.ensure(ctx)
	return err
}
