package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
)

// runtimeSource reads --runtime, which may be several with commas: pid:N, or the
// URL of metrics. nil is none. Each is looked at once, so that one that says
// nothing is known before the search.
func runtimeSource(ctx context.Context, v string) (capacity.Source, error) {
	if v == "" {
		return nil, nil
	}
	var all capacity.Sources
	for part := range strings.SplitSeq(v, ",") {
		source, err := oneSource(part)
		if err != nil {
			return nil, err
		}
		look, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err = source.Sample(look)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("--runtime %s: %w", part, err)
		}
		all = append(all, source)
	}
	return all, nil
}

func oneSource(v string) (capacity.Source, error) {
	const hint = "write pid:1234, or the URL of the target's metrics, http://127.0.0.1:8001/metrics"
	if n, ok := strings.CutPrefix(v, "pid:"); ok {
		pid, err := strconv.Atoi(n)
		if err != nil || pid <= 0 {
			return nil, usage(hint, "--runtime %q names no process", v)
		}
		return capacity.Process(pid), nil
	}
	if !isHTTP(v) {
		return nil, usage(hint, "--runtime %q is neither a process nor a URL", v)
	}
	return capacity.Scraped{URL: v}, nil
}
