package conformance

import (
	"context"
	"encoding/csv"
	"errors"
	"os"
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
	t.Parallel() // it mostly waits
	judge.Need(t, "slowhttptest")
	s := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: judge.Deadlines()})
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
	report := filepath.Join(t.TempDir(), "report")
	args = append(args, "-g", "-o", report, "-c", "800", "-i", "5", "-r", "400", "-l", "20", "-p", "2", "-u", "http://"+s.Public+path)
	begin := time.Now()
	out, err := exec.CommandContext(t.Context(), "slowhttptest", args...).CombinedOutput()
	text := ansi.ReplaceAllString(string(out), "")
	last := text[max(0, strings.LastIndex(text, "slow HTTP test status")):]
	if err != nil {
		t.Fatalf("slowhttptest: %v\n%s", err, last)
	}
	opened, unavailable := readReport(t, report+".csv")
	t.Logf("slowhttptest %s: %d connections opened, ended after %s", args[0], opened, time.Since(begin).Round(time.Second))
	if opened != 800 {
		t.Errorf("%d of 800 connections were opened:\n%s", opened, last)
	}
	// Its words for: all of them were shed before its time was over.
	if !strings.Contains(last, "No open connections left") {
		t.Errorf("connections were still held after 20s:\n%s", last)
	}
	if unavailable > 0 {
		t.Errorf("the service was not available in %d of its seconds:\n%s", unavailable, last)
	}
	judge.Eventually(t, 5*time.Second, "a request is answered after the attack", func() bool {
		status, _ := s.Get("/healthz")
		return status == 200
	})
}

// readReport reads the rows Seconds,Closed,Pending,Connected,Service Available,
// one a second: how many connections there were in all, and in how many seconds
// the service did not answer.
func readReport(t *testing.T, file string) (opened, unavailable int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 5 {
		t.Fatalf("the report has %d rows: %v", len(rows), err)
	}
	for _, row := range rows[1:] {
		closed, err1 := strconv.Atoi(row[1])
		connected, err2 := strconv.Atoi(row[3])
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("row %v: %v", row, err)
		}
		opened = max(opened, closed+connected)
		if row[4] == "0" {
			unavailable++
		}
	}
	return opened, unavailable
}

func TestSlowHeadersAreShed(t *testing.T) { slowhttptest(t, "/healthz", "-H") }

func TestSlowBodiesAreShed(t *testing.T) {
	// With the right to publish, or its head alone would end it.
	token := judge.Token(judge.Claims{"exp": time.Now().Unix() + 600, "weir": judge.Grants(nil, []string{"**"})})
	slowhttptest(t, "/api/publish", "-B", "-t", "POST", "-j", "weir_token="+token)
}

// The reader takes 256 bytes a second. It notices the end of its connection only
// behind what its own socket holds, so it may not be slower than that.
func TestSlowReadersAreShed(t *testing.T) {
	slowhttptest(t, "/sse?channel=big&lastEventId=0", "-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "256", "-k", "1")
}
