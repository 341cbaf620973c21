package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// written is a log with n actions and their answers, and its file.
func written(t *testing.T, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		k, err := l.Begin("POST /api/reload", "127.0.0.1", "ann")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Answer(k, 200); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTamperingIsFound(t *testing.T) {
	name := written(t, 3)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if n, head, err := Verify(bytes.NewReader(whole), nil); n != 6 || len(head) != 64 || err != nil {
		t.Fatalf("untouched: %d records, head %q, %v", n, head, err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	f := func(what string, changed ...string) {
		t.Helper()
		if _, _, err := Verify(strings.NewReader(strings.Join(changed, "")), nil); err == nil {
			t.Errorf("%s is not found", what)
		}
	}
	f("a change", lines[0], strings.Replace(lines[1], "200", "403", 1), lines[2])
	f("a missing line", lines[0], lines[2])
	f("a missing first line", lines[1], lines[2])
	f("lines in another order", lines[0], lines[2], lines[1])
	f("a line twice", lines[0], lines[0])
	f("white space", lines[0], " "+lines[1])
	f("half a line", lines[0], lines[1][:20])
}

func TestABrokenChainIsNotContinued(t *testing.T) {
	name := written(t, 2)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Replace(b, []byte("ann"), []byte("eve"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(name, nil); err == nil || !strings.Contains(err.Error(), "record 0") {
		t.Errorf("opened: %v", err)
	}
}

func TestAnIncompleteLastLineIsRemoved(t *testing.T) {
	name := written(t, 1)
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(`{"n":3,"ti`)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := Open(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n, err := l.Begin("POST /api/bundles", "", ""); n != 3 || err != nil {
		t.Errorf("number %d, %v", n, err)
	}
}

// Two processes have the file open during an upgrade.
func TestTwoWritersMakeOneChain(t *testing.T) {
	name := written(t, 1)
	var all sync.WaitGroup
	for range 2 {
		l, err := Open(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for range 20 {
				if _, err := l.Begin("POST /api/publish", "", ""); err != nil {
					t.Error(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := Verify(bytes.NewReader(b), nil); n != 42 || err != nil {
		t.Errorf("%d records, %v", n, err)
	}
}

func TestARecordThatIsNotOnTheDiskIsAnError(t *testing.T) {
	full := errors.New("no space")
	fail := false
	name := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(name, func(f *os.File) error {
		if fail {
			return full
		}
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fail = true
	if _, err := l.Begin("POST /api/reload", "", ""); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	fail = false
	if n, err := l.Begin("POST /api/reload", "", ""); n != 1 || err != nil {
		t.Errorf("number %d, %v", n, err)
	}
}
