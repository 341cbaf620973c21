package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// KeySets are Authenticators by the name of their key set. They are for tokens of
// protocols: they have no API keys and let no origin in.
type KeySets map[string]*Authenticator

// NewKeySets makes an Authenticator of each set; bounds of tokens are those of cfg. As
// with New, the caller runs Run and calls Close.
func NewKeySets(cfg Config, sets map[string]KeySet, log *slog.Logger) (KeySets, error) {
	all := make(KeySets, len(sets))
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		a, err := New(Config{KeySet: sets[name], MaxTokenBytes: cfg.MaxTokenBytes, TokenCache: cfg.TokenCache}, log)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("key_sets.%s: %w", name, err), all.Close())
		}
		all[name] = a
	}
	return all, nil
}

// Get returns the set called name; def if the name is empty.
func (s KeySets) Get(name string, def *Authenticator) (*Authenticator, error) {
	if name == "" {
		return def, nil
	}
	a, ok := s[name]
	if !ok {
		return nil, fmt.Errorf("there is no key set %q", name)
	}
	return a, nil
}

// Run keeps the sets' JWKS fresh until ctx ends or Close is called.
func (s KeySets) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, a := range s {
		wg.Go(func() { _ = a.Run(ctx) }) // it returns nothing else than nil
	}
	wg.Wait()
	return nil
}

// Close closes all of them.
func (s KeySets) Close() error {
	var errs []error
	for _, a := range s {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}
