package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyKnownLicensesAreAccepted(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := kind(text); got != want {
			t.Errorf("kind(%.60q) = %q, want %q", text, got, want)
		}
	}
	f("Apache License\n   Version 2.0, January 2004", "Apache-2.0")
	f("Permission is hereby granted, free of\ncharge, to any … THE SOFTWARE IS PROVIDED \"AS IS\"", "MIT")
	f("Redistribution and use in source and binary forms … Neither the name of", "BSD-3-Clause")
	f("Redistribution and use in source and binary forms … conditions are met", "BSD-2-Clause")
	f("Permission to use, copy, modify, and/or distribute this software for any purpose with", "ISC")
	f("GNU AFFERO GENERAL PUBLIC LICENSE Version 3", "")
	f("GNU Lesser General Public License; or the Apache License, Version 2.0", "")
	f("Mozilla Public License Version 2.0", "")
	f("All rights reserved.", "")
	f("", "")
}

// What this test binary is linked with is what Go itself is.
func TestABinarysLicensesAreWritten(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := run(&b, exe); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Go and its standard library go1.", ": BSD-3-Clause\n", "The Go Authors"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q", want)
		}
	}
}

func TestAModuleWithoutALicenseIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "LICENSE.go"), []byte("package x // Apache License Version 2.0"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := write(&strings.Builder{}, []module{{Path: "example.com/closed", Version: "v1.0.0", Dir: dir}})
	if err == nil || !strings.Contains(err.Error(), "example.com/closed@v1.0.0: no license that is accepted") {
		t.Errorf("%v", err)
	}
}
