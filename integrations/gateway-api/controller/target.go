package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/integrations/gateway-api/translate"
	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

// A Target is a Weir: the files it reads, and where it is asked to read them again. One
// goroutine at a time may use it.
type Target struct {
	// Base is the file with the rest of its configuration.
	Base string
	// File is the configuration that Weir reads, which Apply writes.
	File string
	// Dir is the folder for certificates and keys, for it alone.
	Dir string
	// Fallback is the certificate of an HTTPS Weir; its files are in Dir. Zero: plain HTTP.
	Fallback tlsterm.Certificate
	// Admin is the URL of Weir's admin listener, and Token its WEIR_ADMIN_TOKEN.
	Admin, Token string
	// Client is for Admin. Nil means one that waits 10s.
	Client *http.Client

	written []byte
	files   map[string][]byte
	current bool // the last reload succeeded
}

// Apply writes what out is and has Weir reload it. An error means that it is not in force, or
// not all of it; what Weir would refuse is not written.
func (t *Target) Apply(ctx context.Context, out translate.Output) error {
	base, err := os.ReadFile(t.Base)
	if err != nil {
		return err
	}
	text, err := out.Config.Render(base, t.Fallback)
	if err != nil {
		return err
	}
	if t.current && string(text) == string(t.written) && maps.EqualFunc(out.Files, t.files, func(a, b []byte) bool { return string(a) == string(b) }) {
		return nil
	}
	t.current = false
	for name, content := range out.Files {
		if err := replace(filepath.Join(t.Dir, name), content, 0o600); err != nil {
			return err
		}
	}
	if _, err := config.Load(config.Sources{File: t.File, Text: text, Env: os.Environ()}, app.Check); err != nil {
		return fmt.Errorf("weir refuses the configuration: %w", err)
	}
	if err := replace(t.File, text, 0o600); err != nil {
		return err
	}
	t.written = text
	if err := t.reload(ctx); err != nil {
		return err
	}
	t.tidy(out.Files)
	t.files, t.current = out.Files, true
	return nil
}

// replace writes a file as a whole, so that no reader sees a part of it.
func replace(name string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(content)
	if e := f.Chmod(mode); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// tidy removes the files of certificates that are no longer used.
func (t *Target) tidy(keep map[string][]byte) {
	entries, _ := os.ReadDir(t.Dir) // what stays does no harm
	for _, e := range entries {
		name := e.Name()
		if _, ok := keep[name]; !ok && (strings.HasPrefix(name, "tls-") || strings.HasPrefix(name, "ca-")) {
			_ = os.Remove(filepath.Join(t.Dir, name))
		}
	}
}

// reload has Weir read its file. A Weir that does not run yet reads it when it starts.
func (t *Target) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Admin+"/api/reload", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+t.Token)
	client := t.Client
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("reload weir: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("reload weir: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("reload weir: status %d: %s", res.StatusCode, strings.TrimSpace(string(text)))
	}
	var done struct {
		Waiting []string `json:"waiting_for_restart"`
	}
	if err := json.Unmarshal(text, &done); err != nil {
		return fmt.Errorf("reload weir: %w", err)
	}
	waits := func(key string) bool { return key == "tls" || strings.HasPrefix(key, "tls.certificates") }
	if slices.ContainsFunc(done.Waiting, waits) {
		return fmt.Errorf("weir must restart to serve another list of certificates: %s wait", strings.Join(done.Waiting, ", "))
	}
	return nil
}
