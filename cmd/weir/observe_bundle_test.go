package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/observe/observer"
)

// bundleOf is an evidence bundle with these files.
func bundleOf(t *testing.T, files map[string][]byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weir-x.tar.gz")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	a := tar.NewWriter(z)
	for name, data := range files {
		if err := a.WriteHeader(&tar.Header{Name: "weir-x/" + name, Size: int64(len(data)), Mode: 0o600, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestObserveShowsABundle(t *testing.T) {
	var traced bytes.Buffer
	if err := trace.Start(&traced); err != nil {
		t.Fatal(err)
	}
	seen, err := observer.Observe(t.Context(), observer.Options{PID: os.Getpid(), NoKernel: true, Duration: 50 * time.Millisecond, Slices: 4})
	trace.Stop()
	if err != nil {
		t.Fatal(err)
	}
	observed, err := json.Marshal(seen)
	if err != nil {
		t.Fatal(err)
	}
	r, err := readBundle(bundleOf(t, map[string][]byte{"README.txt": []byte("x"), "trace.out": traced.Bytes(), "observed.json": observed}), 10)
	if err != nil {
		t.Fatal(err)
	}
	if r.PID != os.Getpid() || r.Go == nil || len(r.Go.StateMap()) != 10 {
		t.Fatalf("%+v", r)
	}
	var text, page strings.Builder
	writeObserved(&text, r)
	if err := observePage(r).HTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, name := range observer.StateNames {
		if !strings.Contains(text.String(), name+" |") || !strings.Contains(page.String(), ">"+name+" (") {
			t.Errorf("no state %q in\n%s", name, text.String())
		}
	}

	f := func(files map[string][]byte, says string) {
		t.Helper()
		if _, err := readBundle(bundleOf(t, files), 10); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(map[string][]byte{"trace.out": traced.Bytes()}, "it has no observation")
	f(map[string][]byte{"observed.json": []byte("{")}, "observed.json: ")
	r, err = readBundle(bundleOf(t, map[string][]byte{"observed.json": observed, "trace.out": []byte("no trace")}), 10)
	if err != nil || r.Go != nil || !strings.Contains(r.Probes[len(r.Probes)-1].Why, "execution trace") {
		t.Errorf("a bad trace: %+v %v", r, err)
	}
	plain := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readBundle(plain, 10); err == nil || !strings.Contains(err.Error(), "not an evidence bundle") {
		t.Error(err)
	}
}
