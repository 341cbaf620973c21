package protocols

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/r3labs/sse/v2"

	"github.com/weir-gateway/weir/test/judge"
)

// sseClients are the clients of event streams that npm/sse.mjs and sse.py hold.
var sseClients = map[string][]string{
	"npm":  {"eventsource 1", "eventsource 2", "eventsource 3", "launchdarkly-eventsource", "undici", "fetch-event-source"},
	"pypi": {"httpx-sse", "sseclient-py", "sseclient"},
}

// Every client gets an event before the next one is published, and resumes behind a restart
// exactly.
func TestEveryEventSourceGetsEventsInTimeAndResumes(t *testing.T) {
	s := serve(t)
	url := "http://" + s.Public + "/sse?channel=news"
	judge.Need(t, "protocols")
	python := exec.Command("python3", judge.Path("test", "protocols", "sse.py"), url)
	python.Env = append(os.Environ(), "PYTHONPATH="+judge.Path(".cache", "sse-python", "site"), "PYTHONDONTWRITEBYTECODE=1")
	agents := map[string]*agent{
		"npm":  startAgent(t, exec.Command("node", judge.Path("test", "protocols", "npm", "sse.mjs"), url)),
		"pypi": startAgent(t, python),
	}
	labs, opened := r3labs(t, url)
	expectAll := func(n int) {
		t.Helper()
		data := fmt.Sprintf(`{"n":%d}`, n)
		for from, a := range agents {
			for _, name := range sseClients[from] {
				got := field(t, a.with(t).next(name, "message"), "data")
				expect(t, name, got, data)
			}
		}
		select {
		case got := <-labs:
			if got != data {
				t.Errorf("r3labs/sse: got %s, want %s", got, data)
			}
		case <-time.After(patience):
			t.Fatalf("r3labs/sse: event %d did not come", n)
		}
	}
	for from, a := range agents {
		for _, name := range sseClients[from] {
			a.next(name, "open")
		}
	}
	<-opened
	publish := func(n int) {
		t.Helper()
		status, body := post(t, "http://"+s.Public+"/api/publish", "application/json", fmt.Sprintf(`{"channel":"news","data":{"n":%d}}`, n), "X-API-Key", judge.APIKey)
		if status != 200 {
			t.Fatalf("publish: %d %s", status, body)
		}
	}
	n := 0
	for range 5 {
		n++
		publish(n)
		expectAll(n)
	}
	restart(t, s, s.Terminate)
	for range 3 { // those back already, and those not
		n++
		publish(n)
	}
	for i := n - 2; i <= n; i++ {
		expectAll(i)
	}
	publish(n + 1)
	expectAll(n + 1) // and nothing was repeated
}

// r3labs follows url with the client for Go.
func r3labs(t *testing.T, url string) (data <-chan string, opened <-chan struct{}) {
	t.Helper()
	got, open := make(chan string, 64), make(chan struct{}, 8)
	c := sse.NewClient(url)
	c.OnConnect(func(*sse.Client) { open <- struct{}{} })
	ended := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(ended)
		for ctx.Err() == nil { // an end in order is the end of its call
			_ = c.SubscribeRawWithContext(ctx, func(e *sse.Event) {
				if len(e.Event) == 0 && json.Valid(e.Data) {
					got <- string(e.Data)
				}
			})
		}
	}()
	t.Cleanup(func() { <-ended })
	return got, open
}
