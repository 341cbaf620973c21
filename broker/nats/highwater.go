package nats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A highWater remembers, beside the embedded server's files but synced about
// once a second, how far each log had come. JetStream syncs every two minutes:
// after a power failure its log may end before messages that were answered and
// seen. Then the next messages would take offsets that were given before, and a
// resuming client would be handed a false continuation. A log that ends below
// its mark, or that lived through an unclean end of the machine without being
// synced, gets a new epoch, so that clients are notified of the gap.
type highWater struct {
	path  string
	boot  string
	mount string
	last  marks // what is on disk
	// start is what was there when this process began. A log that is not served before, for
	// its namespace is added later, is compared with that.
	start marks
}

type marks struct {
	// Boot is the machine's boot id while the file was written.
	Boot string `json:"boot"`
	// Mount is the mount of the directory's file system then, as mountOf returns it.
	Mount string `json:"mount,omitempty"`
	// Clean says that the server was shut down and its files were synced.
	Clean bool `json:"clean"`
	// Logs by namespace.
	Logs map[string]mark `json:"logs"`
}

type mark struct {
	Epoch string `json:"epoch"`
	Last  uint64 `json:"last"`
	// Count is the log when it was last counted, shortly before; zero for never.
	Count count `json:"count,omitzero"`
}

// A count is what was between the ends of a log, with the check of its last message.
type count struct {
	First    uint64    `json:"first"`
	Last     uint64    `json:"last"`
	Messages uint64    `json:"messages"`
	Check    hub.Check `json:"check"`
	// When the first and the last were stored, in Unix milliseconds.
	FirstAt int64 `json:"first_at"`
	LastAt  int64 `json:"last_at"`
}

// openHighWater reads dir's file. One that cannot be read counts as an unclean
// end of another boot: the logs then get new epochs, which is always safe.
func openHighWater(dir string) (*highWater, error) {
	h := &highWater{path: filepath.Join(dir, "highwater.json")}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte("unknown")
	}
	h.boot, h.mount = strings.TrimSpace(string(boot)), mountOf(dir)
	b, err := os.ReadFile(h.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		h.last = marks{Boot: "", Clean: false}
	case err != nil:
		return nil, fmt.Errorf("read the high-water marks: %w", err)
	default:
		if json.Unmarshal(b, &h.last) != nil {
			h.last = marks{}
		}
	}
	h.start = h.last
	return h, nil
}

// safe reports whether what was written to the files is there: they were synced, or neither
// was the machine started anew nor the file system mounted anew since. A file system that had an
// error is unmounted without what was not synced.
func (h *highWater) safe(synced bool) bool {
	same := h.start.Boot == h.boot && (h.start.Mount == h.mount || h.start.Mount == "")
	return synced || h.start.Clean || same
}

// mountOf identifies the mount of the file system that has dir among all of the
// same boot: by the number of the directory that the kernel makes for each in sysfs. It is
// empty for file systems without a directory there that bears a block device's name: ext4, xfs and f2fs have one.
func mountOf(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	dev := uint64(st.Dev) //nolint:unconvert // another type on other systems; in the encoding of glibc
	major, minor := dev>>8&0xfff|dev>>32&^0xfff, dev&0xff|dev>>12&^0xff
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor))
	if err != nil {
		return ""
	}
	of, err := filepath.Glob(filepath.Join("/sys/fs/*", filepath.Base(device)))
	if err != nil || len(of) != 1 {
		return ""
	}
	if info, err = os.Stat(of[0]); err != nil {
		return ""
	}
	if st, ok = info.Sys().(*syscall.Stat_t); !ok {
		return ""
	}
	return fmt.Sprintf("%s %d", of[0], st.Ino)
}

// write replaces the file, synced, if logs or clean differ from what it says.
func (h *highWater) write(logs map[string]mark, clean bool) error {
	if h.last.Clean == clean && h.last.Boot == h.boot && h.last.Mount == h.mount && len(h.last.Logs) == len(logs) {
		same := true
		for ns, m := range logs {
			same = same && h.last.Logs[ns] == m
		}
		if same {
			return nil
		}
	}
	next := marks{Boot: h.boot, Mount: h.mount, Clean: clean, Logs: logs}
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := replaceFile(h.path, b); err != nil {
		return fmt.Errorf("write the high-water marks: %w", err)
	}
	h.last = next
	return nil
}

// replaceFile puts b in place of name so that a reader finds the old or the new
// content whole, also after a power failure.
func replaceFile(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
