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

// AdminJSON decodes the JSON of a path of the admin listener into v.
func (c *client) AdminJSON(path string, v any) {
	c.t.Helper()
	status, body, err := get("http://" + c.Admin + path)
	if err != nil || status != http.StatusOK {
		c.t.Fatalf("%s: status %d, %v", path, status, err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		c.t.Fatalf("%s: %v in %.200s", path, err, body)
	}
}

var series = regexp.MustCompile(`^([a-z_0-9]+)(\{.*\})? (\S+)`)

// Series sums the samples of a metric that have all of these labels, each written
// as `name="value"`. None is 0: a counter may not have counted yet.
func (c *client) Series(name string, labels ...string) (sum float64) {
	c.t.Helper()
	var body []byte
	Eventually(c.t, 10*time.Second, "/metrics answers", func() bool { // only so many at a time
		var status int
		var err error
		status, body, err = get("http://" + c.Admin + "/metrics")
		return err == nil && status == http.StatusOK
	})
next:
	for line := range bytes.Lines(body) {
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
