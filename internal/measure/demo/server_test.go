package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
)

// A server speaks the publish API and SSE over a log in memory, as small as it
// can be, with switches for what can go wrong. It is not a double of the real
// gateway: it is a second, simple reading of the same contract.
type server struct {
	*httptest.Server
	key string // what X-API-Key must be

	// Any goroutine.
	away     atomic.Bool  // answer 503 to everything
	muteNext atomic.Int32 // store so many publications, then drop the connection unanswered
	streams  atomic.Int32 // subscriptions so far
	plant    func(n int) int

	mu     sync.Mutex
	log    map[string][]stored // by namespace; offset is index + 1
	seen   map[string]uint64   // idempotency key → offset
	change chan struct{}       // closed and replaced at each publication
	cut    chan struct{}       // closed and replaced to end all streams
}

type stored struct {
	channel string
	data    json.RawMessage
}

func serve(t *testing.T) *server {
	s := &server{
		key: "k", log: map[string][]stored{}, seen: map[string]uint64{},
		change: make(chan struct{}), cut: make(chan struct{}),
		plant: func(int) int { return 1 },
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/publish", s.publish)
	mux.HandleFunc("GET /sse", s.subscribe)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			refuse(w, http.StatusServiceUnavailable, "broker unavailable")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.cutAll(); s.Close() })
	return s
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%d,"message":%q,"hint":"see the log"}}`, status, text)
}

func (s *server) publish(w http.ResponseWriter, r *http.Request) {
	var p struct {
		client.Publication
		IdempotencyKey string `json:"idempotency_key"`
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || hub.CheckChannel(p.Channel) != nil {
		refuse(w, http.StatusBadRequest, "bad publication")
		return
	}
	if r.Header.Get("X-API-Key") != s.key {
		refuse(w, http.StatusUnauthorized, "this key is not known")
		return
	}
	ns := hub.NamespaceOf(p.Channel)
	s.mu.Lock()
	offset, known := s.seen[p.IdempotencyKey]
	if !known || p.IdempotencyKey == "" {
		s.log[ns] = append(s.log[ns], stored{p.Channel, p.Data})
		offset = uint64(len(s.log[ns]))
		s.seen[p.IdempotencyKey] = offset
		close(s.change)
		s.change = make(chan struct{})
	}
	s.mu.Unlock()
	if s.muteNext.Add(-1) >= 0 {
		panic(http.ErrAbortHandler) // stored, but the answer is lost
	}
	fmt.Fprintf(w, `{"result":{"epoch":%q,"offset":%d}}`, ns, offset)
}

// cutAll ends every stream where it is.
func (s *server) cutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// subscribe writes what the log has beyond the asked positions, then what comes.
func (s *server) subscribe(w http.ResponseWriter, r *http.Request) {
	s.streams.Add(1)
	want := map[string]bool{}
	at := map[string]uint64{}
	s.mu.Lock()
	cut := s.cut
	for _, c := range r.URL.Query()["channel"] {
		want[c] = true
		at[hub.NamespaceOf(c)] = uint64(len(s.log[hub.NamespaceOf(c)]))
	}
	s.mu.Unlock()
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		last = r.URL.Query().Get("lastEventId")
	}
	switch last {
	case "":
	case "0":
		clear(at)
		for c := range want {
			at[hub.NamespaceOf(c)] = 0
		}
	default:
		ps, err := hub.ParsePositions(last)
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		for _, p := range ps {
			at[p.Epoch] = p.Offset
		}
	}
	w.Header().Set("Content-Type", sse.ContentType)
	sent := 0
	b := sse.AppendRetry(nil, 10)
	b = sse.AppendEnd(sse.AppendID(b, positions(at)))
	for {
		if _, err := w.Write(b); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		s.mu.Lock()
		change := s.change
		b = b[:0]
		for ns := range at {
			for ; at[ns] < uint64(len(s.log[ns])); sent++ {
				m := s.log[ns][at[ns]]
				at[ns]++
				if !want[m.channel] {
					continue
				}
				for range s.plant(sent) {
					b = sse.AppendID(b, positions(at))
					b = sse.AppendEnd(sse.AppendData(b, fmt.Sprintf(`{"channel":%q,"id":"%s-%d","offset":%d,"data":%s}`, m.channel, ns, at[ns], at[ns], m.data)))
				}
			}
		}
		s.mu.Unlock()
		if len(b) > 0 {
			continue
		}
		select {
		case <-change:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func positions(at map[string]uint64) string {
	var parts []string
	for ns, offset := range at {
		parts = append(parts, fmt.Sprintf("%s-%d", ns, offset))
	}
	return strings.Join(parts, "~")
}
