package admin

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

func TestReferenceIsCurrent(t *testing.T) {
	const name = "../../../docs/reference/admin-api.md"
	var b bytes.Buffer
	writeReference(&b)
	for _, word := range []string{"GET /api/live", "POST /api/trace", "delivered_per_second: number", "woken_seconds: number"} {
		if !strings.Contains(b.String(), word) {
			t.Errorf("the reference has no %q", word)
		}
	}
	if *update {
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s is not current (%v); run: go test ./internal/observe/admin -run TestReferenceIsCurrent -update", name, err)
	}
}

func TestConfigIsValidated(t *testing.T) {
	f := func(c Config, says string) {
		t.Helper()
		err := c.Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%+v: %v, want %q", c, err, says)
		}
	}
	const long = "a-token-of-many-bytes"
	f(Config{}, "")
	f(Config{Token: long, ReadToken: long + "2"}, "")
	f(Config{Token: "short"}, "token")
	f(Config{Token: long, TokenFile: "x"}, "token_file")
	f(Config{Token: long, ReadToken: "short"}, "read_token")
	f(Config{Token: long, ReadToken: long}, "read_token")
	f(Config{ReadToken: long}, "read_token")
	f(Config{LiveRate: 5}, "live_rate")
}
