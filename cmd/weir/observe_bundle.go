package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/observe/observer"
)

// runBundle shows what an evidence bundle has.
func (f *observeFlags) runBundle(cmd *cobra.Command) error {
	r, err := readBundle(f.bundle, f.slices)
	if err != nil {
		return fmt.Errorf("observe: %s: %w", f.bundle, err)
	}
	if err := f.show(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		return &exitError{status: exitFindings}
	}
	return nil
}

// maxObserved bounds observed.json in a bundle.
const maxObserved = 64 << 20

// readBundle reads the observation of a bundle, and its execution trace if there is one.
func readBundle(name string, slices int) (*observer.Report, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("not an evidence bundle: %w", err)
	}
	var r *observer.Report
	var g *observer.GoReport
	trace := observer.Probe{Name: "go trace", Why: "the bundle has no execution trace"}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not an evidence bundle: %w", err)
		}
		switch path.Base(h.Name) {
		case "observed.json":
			r = &observer.Report{}
			if err := json.NewDecoder(io.LimitReader(t, maxObserved)).Decode(r); err != nil {
				return nil, fmt.Errorf("observed.json: %w", err)
			}
		case "trace.out":
			g, err = observer.ReadTrace(t, slices)
			if trace = (observer.Probe{Name: "go trace", On: err == nil}); err != nil {
				trace.Why = err.Error()
			}
		}
	}
	if r == nil {
		return nil, errors.New("it has no observation: governor.evidence.observe is off, or the bundle is older than that")
	}
	r.Go, r.Probes = g, append(r.Probes, trace)
	return r, nil
}
