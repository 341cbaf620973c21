package acme

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// ErrLocked reports that another node holds a lock.
var ErrLocked = errors.New("locked by another node")

// A Store keeps account, certificates, failures and pending challenges. Keys are letters,
// digits, "-", "_", "." and "/". Any goroutine may call it.
type Store interface {
	// Load returns the value of key; errors.Is(err, fs.ErrNotExist) if there is none.
	Load(ctx context.Context, key string) ([]byte, error)
	// Save sets the value of key, Delete removes it.
	Save(ctx context.Context, key string, value []byte) error
	Delete(ctx context.Context, key string) error
	// Lock acquires the lock called key, or returns ErrLocked at once. held is done when
	// the lock is lost, at the latest with ctx; the caller calls unlock when it has
	// finished.
	Lock(ctx context.Context, key string) (held context.Context, unlock func(), err error)
	// Changed receives after another node has saved something; values may be merged.
	// nil: only this process saves.
	Changed() <-chan struct{}
}

// dirStore is a Store in a directory, for one process.
type dirStore struct {
	dir string

	mu     sync.Mutex
	locked map[string]bool
}

func newDirStore(dir string) *dirStore { return &dirStore{dir: dir, locked: map[string]bool{}} }

func (s *dirStore) path(key string) string { return filepath.Join(s.dir, filepath.FromSlash(key)) }

// Load implements Store.
func (s *dirStore) Load(_ context.Context, key string) ([]byte, error) {
	return os.ReadFile(s.path(key))
}

// Save implements Store. The value is written to another file first, so that a crash leaves the
// old or the new one.
func (s *dirStore) Save(_ context.Context, key string, value []byte) error {
	path := s.path(key)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(value)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Delete implements Store.
func (s *dirStore) Delete(_ context.Context, key string) error {
	if err := os.Remove(s.path(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Lock implements Store.
func (s *dirStore) Lock(ctx context.Context, key string) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked[key] {
		return nil, nil, ErrLocked
	}
	s.locked[key] = true
	held, cancel := context.WithCancel(ctx)
	return held, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.locked, key)
	}, nil
}

// Changed implements Store.
func (*dirStore) Changed() <-chan struct{} { return nil }

// stores are where what belongs to one CA is kept.
type stores struct {
	prefix string // of all keys
	local  *dirStore
	shared atomic.Pointer[Store] // nil: no other nodes
}

// current is the store that decides: the one that all nodes share, or this node's directory.
func (s *stores) current() Store {
	if shared := s.shared.Load(); shared != nil {
		return *shared
	}
	return s.local
}

// shares reports whether other nodes use the same store.
func (s *stores) shares() bool { return s.shared.Load() != nil }

// keyOf returns the key of what is kept for a name.
func (s *stores) keyOf(kind, name string) string {
	return s.prefix + kind + "/" + strings.ReplaceAll(name, ":", "_")
}
