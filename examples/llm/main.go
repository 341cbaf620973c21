// LLM puts Weir in front of a language model's streaming API: an answer survives a
// reload of the page, a lost connection and a second tab, and the model is queried once.
//
//	$ go run ./llm
//	open http://127.0.0.1:8080, ask, and reload in the middle of the answer
//
// The model is a fake: it repeats what you say, one word at a time. Without a browser:
//
//	curl -N http://127.0.0.1:8080/v1/chat -H 'Idempotency-Key: 1' -d 'hello'   # stop it in the middle
//	curl -N http://127.0.0.1:8080/v1/chat -H 'Idempotency-Key: 1' -d 'hello'   # all of it, and it continues
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/examples/internal/gateway"
)

const config = `
listen: %s
admin: {listen: "off"}
shutdown: {drain: 1s}
namespaces:
  - name: llm                  # not anonymous: its channels are followed by their owners alone
    durability: stored         # an answer survives the gateway's end
    history_size: 20000        # events of the longest answer
    history_ttl: 1h            # for how long it can be read again
clusters:
  - name: model
    peers: [{address: "%s"}]
    timeouts: {first_byte: 60s, idle: 60s}
routes:
  - path: /v1/*
    cluster: model
    record: {namespace: llm, outlive: 1m}
  - path: /*
    cluster: model
`

const page = `<!doctype html><meta charset=utf-8><title>an answer that survives</title>
<h1>Ask, then reload</h1>
<form id=f><input id=q size=50 value="what is a weir, and why does it measure a river?"> <button>ask</button></form>
<p id=a style="white-space: pre-wrap; max-width: 40em"></p><p id=s></p>
<script type=module>
const $ = id => document.getElementById(id)

// What is asked stays in the tab, with a key of its own: the same key is the same answer.
async function answer(asked) {
  let text = "", last = ""
  for (;;) {
    try {
      const headers = {"Idempotency-Key": asked.key}
      if (last) headers["Last-Event-ID"] = last
      const res = await fetch("/v1/chat", {method: "POST", body: asked.question, headers})
      if (res.status === 204) return "done"
      if (!res.ok) return "error " + res.status
      $("s").textContent = "recorded at " + res.headers.get("Weir-Recording")
      let rest = ""
      for await (const piece of res.body.pipeThrough(new TextDecoderStream())) {
        const blocks = (rest + piece).split("\n\n")
        rest = blocks.pop()
        for (const block of blocks) {
          const event = Object.fromEntries(block.split("\n").map(l => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 2)]))
          last = event.id ?? last
          if (event.event === "error") return "the answer is incomplete: " + JSON.parse(event.data).reason
          if (event.data === "[DONE]") return "done"
          if (event.data && !event.event) $("a").textContent = text += JSON.parse(event.data).word
        }
      }
    } catch { /* the connection was lost: continue after the last event */ }
    await new Promise(go => setTimeout(go, 500))
  }
}
async function run(asked) { $("a").textContent = ""; $("s").textContent = await answer(asked) }
$("f").onsubmit = e => {
  e.preventDefault()
  const asked = {question: $("q").value, key: crypto.randomUUID()}
  sessionStorage.asked = JSON.stringify(asked)
  run(asked)
}
if (sessionStorage.asked) run(JSON.parse(sessionStorage.asked))
</script>`

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where the gateway listens")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	ln, err := gateway.Listen()
	if err != nil {
		return err
	}
	var calls atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, page)
	})
	mux.HandleFunc("POST /v1/chat", func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		model(w, r)
	})
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, calls.Load()) })
	backend := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- backend.Serve(ln) }()
	fmt.Printf("open http://%s (the first start builds weir)\n", addr)
	go func() { ended <- gateway.Run(ctx, fmt.Sprintf(config, addr, ln.Addr())) }()
	err = <-ended
	_ = backend.Close()
	cancel()
	if other := <-ended; !errors.Is(other, http.ErrServerClosed) {
		err = errors.Join(err, other)
	}
	return err
}

// model streams an answer of many words, slowly, as models do.
func model(w http.ResponseWriter, r *http.Request) {
	question, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(120 * time.Millisecond)
	defer tick.Stop()
	words := strings.Fields("You ask: " + string(question))
	for range 4 {
		words = append(words, strings.Fields("A weir is a low dam across a river. What flows over it shows how much water there is.")...)
	}
	for _, word := range words {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			log.Print("the gateway cancelled the answer: no client has followed it for a minute")
			return
		}
		_, _ = fmt.Fprintf(w, "data: {\"word\":%q}\n\n", word+" ")
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
