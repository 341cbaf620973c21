// Package audit keeps the admin audit log: who changed what, and what came of it.
//
// Each line of the file is a Record, a JSON object that holds the SHA-256 of the line before
// it, so that a line which was changed, removed, added or moved breaks the chain there. A process that
// can write the file can also write a whole new chain: keep its head, the last sum, elsewhere.
//
// A record is on the disk before its action starts, and its answer before the client has it.
package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Record is one line of the log: an action that starts, or the answer to one.
type Record struct {
	// N counts from 1, without holes.
	N    uint64    `json:"n"`
	Time time.Time `json:"time"`
	// Do is the method and the path of the action, From the address and By the identity of the
	// client as far as it has one. Empty in an answer.
	Do   string `json:"do,omitempty"`
	From string `json:"from,omitempty"`
	By   string `json:"by,omitempty"`
	// Of is the N of the action that this answers, Status the HTTP status. 0 in an action.
	Of     uint64 `json:"of,omitempty"`
	Status int    `json:"status,omitempty"`
	// Before is the Sum of the record before, empty in the first. Sum is the SHA-256, in hex, of
	// the record as it is written, with an empty Sum.
	Before string `json:"before"`
	Sum    string `json:"sum"`
}

// line is r as it is written, with its sum.
func (r Record) line() ([]byte, string, error) {
	r.Sum = ""
	b, err := json.Marshal(r)
	if err != nil {
		return nil, "", err
	}
	h := sha256.Sum256(b)
	r.Sum = hex.EncodeToString(h[:])
	b, err = json.Marshal(r)
	return append(b, '\n'), r.Sum, err
}

// A Log appends to a file. Its methods may be called by any goroutine, and several processes
// may have the same file open, as both do during an upgrade.
type Log struct {
	file *os.File
	sync func(*os.File) error

	mu   sync.Mutex
	n    uint64
	head string
	size int64 // of what was read or written
}

// Open opens the log in a file and makes it if there is none. sync brings the file to the
// disk; nil means fsync. A chain that is broken is an error. An incomplete last line, left by
// a process that was killed while it wrote, is removed: its action had not started.
func Open(name string, sync func(*os.File) error) (*Log, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if sync == nil {
		sync = (*os.File).Sync
	}
	l := &Log{file: f, sync: sync}
	if err := l.locked(l.catchUp); err != nil {
		return nil, errors.Join(fmt.Errorf("audit log %s: %w", name, err), f.Close())
	}
	return l, nil
}

// Begin records that an action starts and returns its number, for Answer. After an error it
// must not be carried out.
func (l *Log) Begin(do, from, by string) (n uint64, err error) {
	return l.append(Record{Do: do, From: from, By: by})
}

// Answer records what came of action n.
func (l *Log) Answer(n uint64, status int) error {
	_, err := l.append(Record{Of: n, Status: status})
	return err
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// locked calls f with the file locked against other processes.
func (l *Log) locked(f func() error) error {
	if err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return errors.Join(f(), syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN))
}

func (l *Log) append(r Record) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.locked(func() error {
		if err := l.catchUp(); err != nil {
			return err
		}
		r.N, r.Before, r.Time = l.n+1, l.head, time.Now().UTC()
		b, sum, err := r.line()
		if err != nil {
			return err
		}
		if _, err := l.file.Write(b); err != nil {
			return errors.Join(err, l.file.Truncate(l.size)) // no half line
		}
		if err := l.sync(l.file); err != nil {
			return errors.Join(err, l.file.Truncate(l.size))
		}
		l.n, l.head, l.size = r.N, sum, l.size+int64(len(b))
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return r.N, nil
}

// catchUp reads what has been written since, by another process too.
func (l *Log) catchUp() error {
	info, err := l.file.Stat()
	if err != nil || info.Size() == l.size {
		return err
	}
	if info.Size() < l.size {
		return errors.New("the file was cut")
	}
	c := chain{n: l.n, head: l.head}
	read, err := c.read(io.NewSectionReader(l.file, l.size, info.Size()-l.size), nil)
	if err != nil {
		return err
	}
	l.n, l.head, l.size = c.n, c.head, l.size+read
	if l.size < info.Size() {
		return l.file.Truncate(l.size)
	}
	return nil
}

// A chain follows records.
type chain struct {
	n    uint64
	head string
}

// read follows whole lines of src and returns their bytes. An incomplete last line is left.
func (c *chain) read(src io.Reader, each func(Record)) (read int64, err error) {
	lines := bufio.NewReader(src)
	for {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return read, nil
		}
		if err != nil {
			return read, err
		}
		var r Record
		if err := json.Unmarshal(text, &r); err != nil {
			return read, fmt.Errorf("the chain breaks after record %d: %w", c.n, err)
		}
		again, sum, err := r.line()
		if err != nil || !bytes.Equal(again, text) || r.N != c.n+1 || r.Before != c.head {
			return read, fmt.Errorf("the chain breaks after record %d: the next one was changed, or others are missing before it", c.n)
		}
		c.n, c.head, read = r.N, sum, read+int64(len(text))
		if each != nil {
			each(r)
		}
	}
}

// Verify follows the chain of a log and returns how many records it has and its head. each, if
// not nil, is called with every record in order. An incomplete last line is an error as well:
// only a process that opens the log removes it.
func Verify(src io.Reader, each func(Record)) (n uint64, head string, err error) {
	var c chain
	counted := &counter{r: src}
	read, err := c.read(counted, each)
	if err == nil && read < counted.n {
		err = fmt.Errorf("an incomplete line follows record %d", c.n)
	}
	return c.n, c.head, err
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
