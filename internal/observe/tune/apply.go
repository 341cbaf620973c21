package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Store keeps the values that steps change.
type Store interface {
	// Load returns what is there.
	Load(target string) (string, error)
	// Save changes it.
	Save(target, value string) error
}

// A System is the store of a machine: files below Root ("" is /), with Rules the NOTRACK rule,
// and with Queues the queues of devices.
type System struct {
	Root          string
	Rules, Queues Store
}

// object returns the store of a target that is not a file; ok is false for files.
func (s System) object(target string) (store Store, ok bool, err error) {
	switch {
	case target == NotrackTarget:
		store = s.Rules
	case strings.HasPrefix(target, QdiscTarget):
		store = s.Queues
	default:
		return nil, false, nil
	}
	if store == nil {
		err = fmt.Errorf("%s: %w", target, ErrUnsupported)
	}
	return store, true, err
}

// Load implements Store. Of a choice such as THP's it returns the chosen word.
func (s System) Load(target string) (string, error) {
	if o, ok, err := s.object(target); err != nil {
		return "", err
	} else if ok {
		return o.Load(target)
	}
	b, err := os.ReadFile(s.file(target))
	return chosen(strings.TrimRight(string(b), "\n")), err
}

func (s System) file(target string) string {
	if s.Root == "" {
		return target
	}
	return filepath.Join(s.Root, target)
}

// Save implements Store.
func (s System) Save(target, value string) error {
	if o, ok, err := s.object(target); err != nil {
		return err
	} else if ok {
		return o.Save(target, value)
	}
	f, err := os.OpenFile(s.file(target), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	// One write, as proc(5) wants it. A line end makes an empty value one that is written.
	if _, err := f.WriteString(value + "\n"); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// A Changed is the outcome of one step, or of one value that was restored.
type Changed struct {
	Target string `json:"target"`
	From   string `json:"from"`
	To     string `json:"to"`
	// Err is empty if To is in effect.
	Err string `json:"error,omitempty"`
}

// ErrIncomplete is returned when some values could not be changed or restored; each says
// why. Test with errors.Is.
var ErrIncomplete = errors.New("not every value could be changed")

// Apply makes the changes of steps. The previous values are in the journal, synced to its
// disk, before the first change. A target that the journal of an earlier Apply has keeps
// the value from before that one, so that Undo restores what was there at first. A step
// that fails does not stop the others.
func Apply(s Store, j *Journal, steps []Step) ([]Changed, error) {
	if err := j.lock(); err != nil {
		return nil, err
	}
	defer j.unlock()
	if err := j.read(); err != nil {
		return nil, err
	}
	var todo []Step
	before := map[string]string{}
	for _, step := range steps {
		now, err := s.Load(step.Target)
		if err != nil {
			return nil, fmt.Errorf("nothing was changed: read %s: %w", step.Target, err)
		}
		if same(now, step.Value) {
			continue
		}
		before[step.Target] = now
		todo = append(todo, step)
		// What changes with it is restored after it: Undo goes backwards.
		for _, also := range step.Also {
			v, err := s.Load(also)
			if err != nil {
				return nil, fmt.Errorf("nothing was changed: read %s: %w", also, err)
			}
			j.keep(also, v)
		}
		j.keep(step.Target, now)
	}
	if len(todo) == 0 {
		return nil, nil
	}
	for i := range j.Entries { // of an earlier one too: nothing is sure until this one has ended
		j.Entries[i].Done = false
	}
	if err := j.write(); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	var changed []Changed
	var failed bool
	for _, step := range todo {
		c := Changed{Target: step.Target, From: before[step.Target], To: step.Value}
		if err := s.Save(step.Target, step.Value); err != nil {
			c.Err, failed = err.Error(), true
		} else if now, err := s.Load(step.Target); err != nil || !same(now, step.Value) {
			c.Err, failed = fmt.Sprintf("the kernel has made it %q", now), true
		}
		changed = append(changed, c)
	}
	for i, e := range j.Entries {
		if now, err := s.Load(e.Target); err == nil {
			j.Entries[i].After, j.Entries[i].Done = now, true
		}
	}
	if err := j.write(); err != nil {
		return changed, err
	}
	if failed {
		return changed, ErrIncomplete
	}
	return changed, nil
}

// Undo restores the values in the journal, the last one first, and removes the journal.
// A value that was changed by something else after Apply had ended is left, and kept in
// the journal, unless force is set. Without a journal it does nothing, and with one of an
// earlier boot it removes that: a boot ends what Apply did.
func Undo(s Store, j *Journal, force bool) ([]Changed, error) {
	if err := j.lock(); err != nil {
		return nil, err
	}
	defer j.unlock()
	if err := j.read(); err != nil {
		return nil, err
	}
	var changed []Changed
	var left []Entry
	for _, e := range slices.Backward(j.Entries) {
		now, err := s.Load(e.Target)
		c := Changed{Target: e.Target, From: now, To: e.Before}
		switch {
		case err != nil:
			c.Err = err.Error()
		case now == e.Before:
			continue
		case e.Done && !force && now != e.After:
			c.Err = fmt.Sprintf("it was set to %q after weir tune apply: left as it is (--force restores it)", now)
		default:
			if err := s.Save(e.Target, e.Before); err != nil {
				c.Err = err.Error()
			} else if got, err := s.Load(e.Target); err != nil || got != e.Before {
				c.Err = fmt.Sprintf("the kernel has made it %q", got)
			}
		}
		if c.Err != "" {
			left = append(left, e)
		}
		changed = append(changed, c)
	}
	if len(left) > 0 {
		slices.Reverse(left)
		j.Entries = left
		return changed, errors.Join(j.write(), ErrIncomplete)
	}
	return changed, j.remove()
}

// same compares values as the kernel does: blanks between numbers do not count.
func same(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) }
