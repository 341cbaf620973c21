package acme

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// A record is a certificate as it is stored.
type record struct {
	Name  string `json:"name"`
	Chain string `json:"chain"` // PEM
	Key   string `json:"key"`   // PEM
	// RenewAt is when it is due for renewal.
	RenewAt time.Time `json:"renew_at"`
	// InfoAt is when the CA is queried again for renewal information; zero: it has none.
	InfoAt time.Time `json:"info_at,omitzero"`
	// Explanation is a URL by the CA about the time of renewal.
	Explanation string `json:"explanation,omitempty"`

	pair *tls.Certificate
}

// parse checks the record's chain and key.
func (r *record) parse() error {
	pair, err := tls.X509KeyPair([]byte(r.Chain), []byte(r.Key))
	if err != nil {
		return fmt.Errorf("stored certificate of %s: %w", r.Name, err)
	}
	r.pair = &pair
	return nil
}

// due reports whether the certificate is to be renewed.
func (r *record) due(now time.Time) bool { return r == nil || !now.Before(r.RenewAt) }

// infoDue reports whether the CA is to be requested renewal information.
func (r *record) infoDue(now time.Time) bool {
	return r != nil && !r.InfoAt.IsZero() && !now.Before(r.InfoAt)
}

// failures are failed orders of a name in a row, as they are stored.
type failures struct {
	Count   int       `json:"count"` // 0: the last order succeeded
	Error   string    `json:"error"`
	At      time.Time `json:"at"`
	RetryAt time.Time `json:"retry_at"`
}

// load reads the JSON value of key from s into v. It reports whether there is one.
func load(ctx context.Context, s Store, key string, v any) (bool, error) {
	b, err := s.Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("load %s: %w", key, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("load %s: %w", key, err)
	}
	return true, nil
}

// save writes v as JSON to s.
func save(ctx context.Context, s Store, key string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = s.Save(ctx, key, b)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", key, err)
	}
	return nil
}

// loadRecord returns the stored certificate of a name, nil if there is none.
func (m *Manager) loadRecord(ctx context.Context, s Store, name string) (*record, error) {
	r := &record{}
	if ok, err := load(ctx, s, m.stores.keyOf("certificates", name), r); !ok || err != nil {
		return nil, err
	}
	if err := r.parse(); err != nil {
		return nil, err
	}
	return r, nil
}
