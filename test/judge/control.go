package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Configure writes the configuration with config laid over the base in place of
// Options.Config, as one step, and does not signal the process.
func (s *Server) Configure(config map[string]any) {
	s.t.Helper()
	o := s.options
	o.Config = config
	text, err := json.MarshalIndent(s.compose(o, s.data), "", "  ") // JSON is YAML
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.config+".new", text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.config+".new", s.config); err != nil {
		s.t.Fatal(err)
	}
}

// ConfigFile is the path of the configuration.
func (s *Server) ConfigFile() string { return s.config }

// LogFile is the path of what the server writes.
func (s *Server) LogFile() string { return s.log }

// Signal sends sig to the process.
func (p *process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// Reload requests over the admin listener that the configuration be read again, and
// returns the answer.
func (c *client) Reload() (status int, body string) {
	c.t.Helper()
	resp, err := HTTP.Post("http://"+c.Admin+"/api/reload", "", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

// ReadAdmin decodes the JSON of a path of the admin listener into v. It does not fail the test: who
// polls tries again.
func (c *client) ReadAdmin(path string, v any) error {
	status, body, err := get("http://" + c.Admin + path)
	if err != nil {
		return err // it has the URL
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s: status %d, %.200s", path, status, body)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: %w in %.200s", path, err, body)
	}
	return nil
}

// metrics is the text of /metrics, of which the server makes only so many at a time.
func (c *client) metrics() (text []byte) {
	c.t.Helper()
	Soon(c.t, 10*time.Second, "/metrics answers", func() error {
		status, body, err := get("http://" + c.Admin + "/metrics")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d, %.200s", status, body)
		}
		text = body
		return err
	})
	return text
}

var series = regexp.MustCompile(`^([a-z_0-9]+)(\{.*\})? (\S+)`)

// Series sums the samples of a metric that have all of these labels, each written
// as `name="value"`. None is 0: a counter may not have counted yet.
func (c *client) Series(name string, labels ...string) (sum float64) {
	c.t.Helper()
next:
	for line := range bytes.Lines(c.metrics()) {
		m := series.FindSubmatch(line)
		if m == nil || string(m[1]) != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(string(m[2]), l) {
				continue next
			}
		}
		var v float64
		if _, err := fmt.Sscan(string(m[3]), &v); err != nil {
			c.t.Fatalf("%s: %v", line, err)
		}
		sum += v
	}
	return sum
}
