package examples_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startWithGateway is start for an example that runs Weir as a program of its own.
func startWithGateway(t *testing.T, name string) string {
	t.Helper()
	weir := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", weir, "./cmd/weir") // as the Makefile
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	t.Setenv("WEIR", weir)
	return start(t, name)
}

// events reads n events of a stream, or all with n < 0.
func events(t *testing.T, method, url, body string, n int) (data []string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "one")
	res, err := (&http.Client{Timeout: 60 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	sc := bufio.NewScanner(res.Body)
	for n != 0 && sc.Scan() {
		if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			data = append(data, d)
			n--
		}
	}
	return data
}

func TestAnswerSurvivesAReload(t *testing.T) {
	addr := "http://" + startWithGateway(t, "llm")
	first := events(t, "POST", addr+"/v1/chat", "hello", 10)
	again := events(t, "POST", addr+"/v1/chat", "hello", -1)
	if len(again) < 20 || strings.Join(again[:10], "") != strings.Join(first, "") || again[len(again)-1] != "[DONE]" {
		t.Errorf("first %q, then %q", first, again)
	}
	res, err := http.Get(addr + "/calls")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, _ := io.ReadAll(res.Body); string(n) != "1\n" {
		t.Errorf("%s calls of the model", n)
	}
}

func TestBackendThatHoldsNothingOwnsStreams(t *testing.T) {
	addr := "http://" + startWithGateway(t, "hold")
	post := func(state string) {
		t.Helper()
		res, err := http.Post(addr+"/orders/42", "text/plain", strings.NewReader(state))
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		res.Body.Close()
	}
	post("paid")
	got := make(chan []string)
	go func() { got <- events(t, "GET", addr+"/orders/42/events", "", 2) }()
	for {
		select {
		case data := <-got:
			if want := `{"state":"shipped"}`; len(data) != 2 || data[1] != want || data[0] != want && data[0] != `{"state":"paid"}` {
				t.Errorf("%q", data)
			}
			return
		case <-time.After(100 * time.Millisecond): // the follower may not be there yet
			post("shipped")
		}
	}
}
