package postgres

import (
	"strings"
	"testing"
)

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*Config), says string) {
		t.Helper()
		c := Config{URL: "postgres://weir@127.0.0.1:5432/shop"}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(func(*Config) {}, "")
	f(func(c *Config) { c.URL = "" }, "url: it is empty: want postgres:// or postgresql://host:port")
	f(func(c *Config) { c.URL = "host=x password=hunter2" }, "url: invalid URL")
	f(func(c *Config) { c.Poll = 1 }, "poll: invalid duration 1ns")
	f(func(c *Config) { c.Password, c.PasswordFile = "x", "y" }, "password_file: there is a password as well")
}

// Neither parameters that cannot be read nor a server that does not answer show the password.
func TestErrorsShowNoSecret(t *testing.T) {
	for _, url := range []string{"postgres://weir:hunter2@127.0.0.1:1/shop", "postgres://weir:hunter2@127.0.0.1:1/shop?sslmode=maybe", "postgres://weir:hunter2@127.0.0.1:1/shop?sslrootcert=/none"} {
		_, err := connect(t.Context(), Config{URL: url}, "orders")
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
