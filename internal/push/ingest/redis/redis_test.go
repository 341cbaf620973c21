package redis

import (
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*Config), says string) {
		t.Helper()
		c := Config{URL: "redis://127.0.0.1:6379/0", Streams: []string{"s"}}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	f(func(*Config) {}, "")
	f(func(c *Config) { c.Start = "1700000000000-7" }, "")
	f(func(c *Config) { c.URL = "" }, "url: it is empty: want redis:// or rediss://host:port")
	f(func(c *Config) { c.URL = "http://u:hunter2@x" }, `url: invalid scheme "http"`)
	f(func(c *Config) { c.Streams = nil }, "streams: there are none")
	f(func(c *Config) { c.Streams = []string{""} }, "streams[0]: it is empty")
	f(func(c *Config) { c.Start = "yesterday" }, `start: invalid entry id "yesterday"`)
	f(func(c *Config) { c.Start = "1-x" }, `start: invalid entry id "1-x"`)
	f(func(c *Config) { c.Password, c.PasswordFile = "hunter2", "y" }, "password_file: there is a password as well")
}

func TestPayloadIsAFieldOrAllOfThem(t *testing.T) {
	f := func(field, want string) {
		t.Helper()
		r := &reader{cfg: Config{DataField: field}.WithDefaults()}
		m := r.message("s", goredis.XMessage{ID: "1700000000000-5", Values: map[string]any{"data": "1", "to": "x"}})
		if string(m.Data) != want || m.Position != "s/1700000000000-5" || m.Time.UnixMilli() != 1_700_000_000_000 {
			t.Errorf("%q: %s at %s, %v; want %s", field, m.Data, m.Position, m.Time, want)
		}
	}
	f("", "1")
	f("to", "x")
	f("none", "")
	f("*", `{"data":"1","to":"x"}`)
}
