package conformance

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// ansi are the colours slowhttptest writes.
var ansi = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// slowhttptest opens 800 slow connections in one of its modes for 20 seconds:
// at its end none may be left and the service must have been there throughout.
func slowhttptest(t *testing.T, path string, args ...string) {
	t.Helper()
	judge.Need(t, "slowhttptest")
	s := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: judge.Deadlines()})
	url := "http://" + s.Public + path
	if strings.Contains(path, "lastEventId=0") {
		// Something to read slowly: more than a socket's buffers hold.
		p := judge.Publisher{Addr: s.Public}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for i := range 200 {
			if err := p.Publish(ctx, "big", strconv.Itoa(i)+strings.Repeat("x", 32<<10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	args = append(args, "-c", "800", "-i", "5", "-r", "400", "-l", "20", "-p", "2", "-u", url)
	cmd := exec.CommandContext(t.Context(), "slowhttptest", args...)
	cmd.Dir = filepath.Clean(t.TempDir())
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	text := ansi.ReplaceAllString(string(out), "")
	if err != nil {
		t.Fatalf("slowhttptest: %v\n%s", err, text)
	}
	last := text[max(0, strings.LastIndex(text, "slow HTTP test status")):]
	count := func(what string) int {
		m := regexp.MustCompile(what + `:\s+(\d+)`).FindStringSubmatch(last)
		if m == nil {
			t.Fatalf("slowhttptest says nothing of %q:\n%s", what, last)
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	held := count("initializing") + count("pending") + count("connected")
	shed := count("closed") + count("error")
	t.Logf("%s: %d shed, %d held after %s", strings.Join(args[:1], " "), shed, held, time.Since(begin).Round(time.Second))
	if held != 0 || shed != 800 {
		t.Errorf("%d of 800 shed, %d held:\n%s", shed, held, last)
	}
	if n := strings.Count(text, "service available:   NO"); n > 0 {
		t.Errorf("the service was not available in %d of the status reports:\n%s", n, last)
	}
	if !strings.Contains(last, "service available:   YES") {
		t.Errorf("the service was not seen available:\n%s", last)
	}
	judge.Eventually(t, 5*time.Second, "a request is answered after the attack", func() bool {
		status, _ := s.Get("/healthz")
		return status == 200
	})
}

func TestSlowHeadersAreShed(t *testing.T) { slowhttptest(t, "/healthz", "-H") }

func TestSlowBodiesAreShed(t *testing.T) { slowhttptest(t, "/api/publish", "-B", "-t", "POST") }

func TestSlowReadersAreShed(t *testing.T) {
	slowhttptest(t, "/sse?channel=big&lastEventId=0", "-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1")
}
