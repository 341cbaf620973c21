package tune

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// DefaultJournal is where Apply keeps the previous values.
const DefaultJournal = "/var/lib/weir/tune/journal.json"

// A Journal is a file with the values from before Apply. One goroutine at a time uses it;
// other processes are kept out by a lock.
type Journal struct {
	path   string
	locked *os.File

	Version int `json:"version"`
	// Namespace is the network namespace in which the values were read, Boot the boot of
	// the kernel: of another namespace they must not be written into this one.
	Namespace string  `json:"network_namespace"`
	Boot      string  `json:"boot_id"`
	Entries   []Entry `json:"entries"`
}

// An Entry is one value from before.
type Entry struct {
	Target string `json:"target"`
	Before string `json:"before"`
	// After is what was there when Apply had ended; Done is false if it had not.
	After string `json:"after"`
	Done  bool   `json:"done"`
}

// maxJournal bounds the file in bytes: a hundred entries are a tenth of it.
const maxJournal = 1 << 20

// OpenJournal is the journal in path; it is read and written by Apply and Undo.
func OpenJournal(path string) *Journal { return &Journal{path: path} }

// Has reports whether there is something to undo.
func (j *Journal) Has() bool {
	_, err := os.Stat(j.path)
	return err == nil
}

// keep adds a value unless the journal has an earlier one.
func (j *Journal) keep(target, value string) {
	for _, e := range j.Entries {
		if e.Target == target {
			return
		}
	}
	j.Entries = append(j.Entries, Entry{Target: target, Before: value})
}

func (j *Journal) read() error {
	j.Version, j.Entries = 1, nil
	j.Namespace, j.Boot = whereabouts()
	b, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if len(b) > maxJournal {
		return fmt.Errorf("journal: %s has %d bytes: want at most %d", j.path, len(b), maxJournal)
	}
	var old Journal
	if err := json.Unmarshal(b, &old); err != nil {
		return fmt.Errorf("journal: %s is not a journal: %w", j.path, err)
	}
	if old.Version != 1 {
		return fmt.Errorf("journal: %s has version %d: this program knows 1", j.path, old.Version)
	}
	if old.Boot != j.Boot {
		return nil // the kernel has its own values again: what was applied ended with that boot
	}
	if old.Namespace != j.Namespace {
		return fmt.Errorf("journal: %s was written in another network namespace (%s, here %s): use a journal of its own with --journal", j.path, old.Namespace, j.Namespace)
	}
	j.Entries = old.Entries
	return nil
}

func whereabouts() (namespace, boot string) {
	namespace, _ = os.Readlink("/proc/self/ns/net")
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return namespace, strings.TrimSpace(string(b))
}

// write replaces the file as a whole, and returns when it is on the disk.
func (j *Journal) write() error {
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(j.path)
	f, err := os.CreateTemp(dir, ".journal-*")
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name by then, unless something failed
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := os.Rename(f.Name(), j.path); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return syncDir(dir)
}

func (j *Journal) remove() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	return syncDir(filepath.Dir(j.path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// lock keeps other processes out until unlock, or the end of this one.
func (j *Journal) lock() error {
	if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	f, err := os.OpenFile(j.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("journal: another weir tune uses %s: %w", j.path, err)
	}
	j.locked = f
	return nil
}

func (j *Journal) unlock() {
	j.locked.Close()
	j.locked = nil
}
