package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

// h2specTests is how many cases h2spec 2.2.1 has (without those that it calls strict).
const h2specTests = 145

// How h2spec reaches the server.
const (
	cleartext = "cleartext" // prior knowledge, RFC 9113 §3.3
	overTLS   = "TLS"       // ALPN
)

// An exception is a case of h2spec that may fail.
type exception struct {
	name string   // section and title
	in   []string // how the server is reached; empty: both
	why  string
}

func (e exception) covers(name, how string) bool {
	return e.name == name && (e.in == nil || slices.Contains(e.in, how))
}

// h2specExceptions are the cases that Weir fails, by name, and why each does. A case
// that is named here and passes fails the test, so that the list stays true.
var h2specExceptions = []exception{
	{"http2/3.5: Sends invalid connection preface", nil,
		`Bytes that are no preface are read as HTTP/1.1 and answered with 400 and a close: the connection is terminated as RFC 9113 §3.4
requires, but h2spec takes an answer in HTTP/1.1 for a failure.`},
}

// A junit is h2spec's report.
type junit struct {
	Suites []struct {
		Package string `xml:"package,attr"`
		Cases   []struct {
			Title   string  `xml:"classname,attr"`
			Failure *string `xml:"failure"`
			Error   *string `xml:"error"`
			Skipped *string `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// TestH2Spec has h2spec judge HTTP/2 of a route, on both engines. Its backend reads a
// request to the end before it answers, since several cases need a stream that is still
// open.
func TestH2Spec(t *testing.T) {
	h2spec := judge.Tool(t, "test/conformance/h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the client may be gone
		_, _ = io.WriteString(w, "Hello, World!\n")
	}))
	t.Cleanup(backend.Close)
	for _, engine := range []string{"epoll", "io_uring"} {
		for _, how := range []string{cleartext, overTLS} {
			t.Run(engine+", "+how, func(t *testing.T) {
				t.Parallel() // it mostly waits
				s := judge.New(t, judge.Options{Memory: true, TLS: how == overTLS, Config: forwardAll(strings.TrimPrefix(backend.URL, "http://"),
					map[string]any{"eventloop": map[string]any{"engine": engine}})})
				h2specJudges(t, h2spec, s.Public, how)
			})
		}
	}
}

func h2specJudges(t *testing.T, h2spec, addr, how string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.xml")
	args := []string{"-h", host, "-p", port, "-j", file}
	if how == overTLS {
		args = append(args, "-t", "-k")
	}
	out, err := exec.CommandContext(t.Context(), h2spec, args...).CombinedOutput() // its status says what the report says
	text, missing := os.ReadFile(file)
	if missing != nil {
		t.Fatalf("h2spec wrote no report: %v\n%s", err, out)
	}
	var report junit
	if err := xml.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	verdicts, sections := judgeReport(t, report, how)
	t.Logf("h2spec, %s: %v; by section, passed of all: %s", how, verdicts, strings.Join(sections, ", "))
	if n := verdicts["passed"] + verdicts["excepted"]; n != h2specTests {
		t.Errorf("%d of %d cases passed or are excepted: %v", n, h2specTests, verdicts)
	}
}

// judgeReport fails the test for each case that neither passed nor is excepted, and for
// each that is excepted and passed.
func judgeReport(t *testing.T, report junit, how string) (verdicts map[string]int, sections []string) {
	t.Helper()
	verdicts = map[string]int{}
	for _, suite := range report.Suites {
		passed := 0
		for _, c := range suite.Cases {
			name := suite.Package + ": " + c.Title
			known := slices.ContainsFunc(h2specExceptions, func(e exception) bool { return e.covers(name, how) })
			verdict := "passed"
			switch {
			case c.Skipped != nil:
				verdict = "skipped"
				t.Errorf("%s: skipped", name)
			case c.Failure == nil && c.Error == nil && known:
				t.Errorf("%s: passed, though it is excepted", name)
			case c.Failure == nil && c.Error == nil:
				passed++
			case known:
				verdict = "excepted"
			default:
				verdict = "failed"
				t.Errorf("%s: %s", name, reason(c.Failure, c.Error))
			}
			verdicts[verdict]++
		}
		sections = append(sections, fmt.Sprintf("%s %d/%d", suite.Package, passed, len(suite.Cases)))
	}
	return verdicts, sections
}

func reason(texts ...*string) string {
	for _, s := range texts {
		if s != nil {
			return strings.Join(strings.Fields(*s), " ")
		}
	}
	return ""
}
