package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra/doc"
)

var manDir = flag.String("man", "", "`directory` into which TestManPages writes a manual page per command")

// TestManPages renders the manual pages that packages have, the same for the same commit:
// go test ./cmd/weir -run TestManPages -man DIR writes them, dated with SOURCE_DATE_EPOCH.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	date := time.Unix(0, 0).UTC()
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		d, err := time.ParseDuration(epoch + "s")
		if err != nil {
			t.Fatalf("SOURCE_DATE_EPOCH=%q: want seconds since 1970", epoch)
		}
		date = date.Add(d)
	}
	root := newRoot()
	root.DisableAutoGenTag = true // it would date each page with today
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "weir", Manual: "Weir"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	f := func(name string, want ...string) {
		t.Helper()
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		for _, w := range want {
			if !bytes.Contains(page, []byte(w)) {
				t.Errorf("%s lacks %q", name, w)
			}
		}
	}
	f("weir.1", `.TH "WEIR" "1"`, "weir-serve(1)")
	f("weir-serve.1", "YAML", `\fB--config\fP`, ".SH EXAMPLE")
	f("weir-config-check.1", ".SH NAME")
}
