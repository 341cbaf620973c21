package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Sizes: an integer key that ends in "_bytes", or whose field is tagged
// unit:"bytes", may be written as text with a unit, so that files say 64KiB
// where the code says 65536.

var sizeUnits = []struct {
	name string
	n    int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

// isSize reports whether the key counts bytes.
func isSize(key string) bool { return key == "bytes" || strings.HasSuffix(key, "_bytes") }

// parseSize reads "64KiB", "1.5 MB" is refused: a size is a whole number of units.
func parseSize(s string) (int64, error) {
	bad := fmt.Errorf("%.40q is not a size; write for example 65536, 64KiB or 1GiB", s)
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(s[:i], 10, 64)
	if err != nil {
		return 0, bad
	}
	unit := strings.TrimSpace(s[i:])
	for _, u := range sizeUnits {
		if u.name == unit {
			if n > math.MaxInt64/u.n {
				return 0, fmt.Errorf("%.40q is too large", s)
			}
			return n * u.n, nil
		}
	}
	return 0, bad
}

// formatSize is the shortest text that parseSize reads back as n, whole binary
// units only.
func formatSize(n int64) string {
	for i := 3; i >= 0; i-- {
		if u := sizeUnits[i]; n >= u.n && n%u.n == 0 {
			return strconv.FormatInt(n/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
