package client

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// A fake is a small server of the wire contract: logs in memory, streams that
// resume, publications with idempotency keys. What is done to it is what breaks
// in real life: connections cut at any byte, refusals, drains, lost logs.
type fake struct {
	mu        sync.Mutex
	rnd       *rand.Rand
	logs      map[string]*fakeLog
	answer    map[string]hub.Position // idempotency key → place
	news      chan struct{}           // closed at each change
	drain     chan struct{}           // closed: end all streams
	conns     map[net.Conn]bool
	requested []*http.Request

	// Chaos, in percent of connections, requests and streams.
	cuts, refusals, drains int
	retry                  int // ms in the first block
	tokens                 bool
	onEvent                func(n int) // before the nth event of a stream; tests only
}

type fakeLog struct {
	epoch string
	msgs  []*hub.Message
	floor uint64 // offsets up to it have expired
}

func newFake(seed uint64) *fake {
	f := &fake{
		rnd: rand.New(rand.NewPCG(seed, 1)), logs: make(map[string]*fakeLog), answer: make(map[string]hub.Position),
		news: make(chan struct{}), drain: make(chan struct{}), conns: make(map[net.Conn]bool), retry: 1000,
	}
	for _, ns := range []string{"default", "orders"} {
		f.logs[ns] = &fakeLog{epoch: ns[:1] + "1"}
	}
	return f
}

func (f *fake) chance(percent int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.IntN(100) < percent
}

// change changes the state and notifies the streams.
func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.news)
	f.news = make(chan struct{})
}

// calm ends the chaos.
func (f *fake) calm() { f.change(func() { f.cuts, f.refusals, f.drains = 0, 0, 0 }) }

// lose throws a log away and cuts every connection, as a crash would.
func (f *fake) lose(ns, epoch string) {
	f.change(func() { f.logs[ns] = &fakeLog{epoch: epoch} })
	f.cutAll()
}

func (f *fake) cutAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.Close()
	}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requested = append(f.requested, r.Clone(context.Background()))
	tokens, refusals := f.tokens, f.refusals
	f.mu.Unlock()
	var expires time.Time
	if tokens {
		ms, _ := strconv.ParseInt(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), 10, 64)
		if expires = time.UnixMilli(ms); !time.Now().Before(expires) {
			refuse(w, 401, "token expired", "request a new one")
			return
		}
	}
	if f.chance(refusals) {
		w.Header().Set("Retry-After", "1")
		refuse(w, 503, "overloaded", "")
		return
	}
	switch r.URL.Path {
	case "/sse", "/ws":
		f.serveStream(w, r, expires)
	case "/api/publish", "/api/broadcast":
		f.servePublish(w, r)
	default:
		refuse(w, 404, "no such path", "see the reference")
	}
}

func refuse(w http.ResponseWriter, code int, message, hint string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "message": message, "hint": hint}})
}

func (f *fake) servePublish(w http.ResponseWriter, r *http.Request) {
	var p struct {
		Channel  string          `json:"channel"`
		Channels []string        `json:"channels"`
		Data     json.RawMessage `json:"data"`
		Key      string          `json:"key"`
		IdemKey  string          `json:"idempotency_key"`
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		refuse(w, 400, err.Error(), "send JSON")
		return
	}
	place := func(channel string) any {
		at, ok := f.publish(channel, p.Key, p.IdemKey, p.Data)
		if !ok {
			return map[string]any{"error": map[string]any{"code": 404, "message": "unknown namespace"}}
		}
		return map[string]any{"result": map[string]any{"epoch": at.Epoch, "offset": at.Offset}}
	}
	if r.URL.Path == "/api/publish" {
		_ = json.NewEncoder(w).Encode(place(p.Channel))
		return
	}
	responses := []any{}
	for _, ch := range p.Channels {
		responses = append(responses, place(ch))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"result": map[string]any{"responses": responses}})
}

func (f *fake) publish(channel, key, idem string, data []byte) (at hub.Position, ok bool) {
	f.change(func() {
		l := f.logs[hub.NamespaceOf(channel)]
		if l == nil {
			return
		}
		if at, ok = f.answer[idem+channel]; ok && idem != "" {
			return
		}
		n := uint64(1)
		if k := len(l.msgs); k > 0 {
			n = l.msgs[k-1].Offset + 1
		}
		l.msgs = append(l.msgs, &hub.Message{Channel: channel, Key: key, Data: data, Epoch: l.epoch, Offset: n, Time: time.Now().UnixMilli()})
		at, ok = hub.Position{Epoch: l.epoch, Offset: n}, true
		f.answer[idem+channel] = at
	})
	return at, ok
}

// A fakeStream is one subscriber's connection.
type fakeStream struct {
	f        *fake
	channels []string
	at       map[string]hub.Position // by namespace
	out      fakeOut
	sent     int
}

// fakeOut writes in one transport's form; at is the whole position.
type fakeOut interface {
	hello(at string, retry int) error
	message(m *hub.Message, at string) error
	gap(ns, from, to, at string) error
	heartbeat() error
	end(code int, reason string)
}

func (f *fake) serveStream(w http.ResponseWriter, r *http.Request, expires time.Time) {
	q := r.URL.Query()
	s := &fakeStream{f: f, channels: q["channel"], at: make(map[string]hub.Position)}
	since, ctx := q.Get("since"), r.Context()
	if r.URL.Path == "/ws" {
		c, err := websocket.Accept(w, r, websocket.AcceptOptions{})
		if err != nil {
			return
		}
		var reader sync.WaitGroup
		defer reader.Wait()
		defer c.CloseNow()
		gone, cancel := context.WithCancel(ctx)
		reader.Go(func() {
			defer cancel()
			for {
				if _, _, err := c.Read(context.Background()); err != nil {
					return
				}
			}
		})
		ctx, s.out = gone, &wsOut{c}
	} else {
		w.Header().Set("Content-Type", sse.ContentType+"; charset=utf-8")
		since = r.Header.Get("Last-Event-ID")
		s.out = &sseOut{w: http.NewResponseController(w), rw: w, raw: q.Get("envelope") == ""}
	}
	_ = s.serve(ctx, since, expires)
}

func (s *fakeStream) serve(ctx context.Context, since string, expires time.Time) error {
	f := s.f
	until := make(<-chan time.Time)
	if !expires.IsZero() {
		until = time.After(time.Until(expires))
	}
	if err := s.begin(since); err != nil {
		return err
	}
	for {
		f.mu.Lock()
		news, drain := f.news, f.drain
		f.mu.Unlock()
		if err := s.send(); err != nil {
			return err
		}
		select {
		case <-news:
			if f.chance(f.percent(&f.drains)) {
				s.out.end(1012, "draining")
				return nil
			}
		case <-drain:
			s.out.end(1012, "draining")
			return nil
		case <-until:
			s.out.end(CodeTokenExpired, "the token has expired")
			return nil
		case <-time.After(25 * time.Second):
			if err := s.out.heartbeat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) percent(p *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *p
}

// begin finds where the stream starts and says so, with the gaps that are known.
func (s *fakeStream) begin(since string) error {
	requested, _ := hub.ParsePositions(since)
	type gap struct{ ns, to string }
	var gaps []gap
	s.f.mu.Lock()
	for _, ch := range s.channels {
		ns := hub.NamespaceOf(ch)
		l := s.f.logs[ns]
		if _, done := s.at[ns]; done || l == nil {
			continue
		}
		at := hub.Position{Epoch: l.epoch}
		i := slices.IndexFunc(requested, func(p hub.Position) bool { return p.Epoch == l.epoch })
		switch {
		case i >= 0 && requested[i].Offset >= l.floor:
			at = requested[i]
		case since == "" && len(l.msgs) > 0:
			at.Offset = l.msgs[len(l.msgs)-1].Offset
		case since == "" || since == "0":
		default:
			at.Offset = l.floor
			gaps = append(gaps, gap{ns, at.String()})
		}
		s.at[ns] = at
	}
	retry := s.f.retry
	s.f.mu.Unlock()
	if len(gaps) > 0 { // the checkpoint must not pass over a notice that may get lost
		if err := s.out.hello(since, retry); err != nil {
			return err
		}
	} else if err := s.out.hello(s.token(), retry); err != nil {
		return err
	}
	for i, g := range gaps {
		at := s.token()
		if i+1 < len(gaps) {
			at = since
		}
		if err := s.out.gap(g.ns, since, g.to, at); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeStream) token() string {
	var ps hub.Positions
	for _, ns := range []string{"default", "orders"} {
		if p, ok := s.at[ns]; ok {
			ps = append(ps, p)
		}
	}
	return string(ps.AppendTo(nil))
}

// send writes everything that is new on the stream's channels.
func (s *fakeStream) send() error {
	for ns, at := range s.at {
		s.f.mu.Lock()
		l := s.f.logs[ns]
		i, _ := slices.BinarySearchFunc(l.msgs, at.Offset+1, func(m *hub.Message, o uint64) int { return int(m.Offset) - int(o) })
		fresh := l.msgs[i:]
		hook := s.f.onEvent
		s.f.mu.Unlock()
		if l.epoch != at.Epoch {
			return fmt.Errorf("the log is gone")
		}
		for _, m := range fresh {
			s.at[ns] = m.Position()
			if !slices.Contains(s.channels, m.Channel) {
				continue
			}
			if s.sent++; hook != nil {
				hook(s.sent)
			}
			if err := s.out.message(m, s.token()); err != nil {
				return err
			}
		}
	}
	return nil
}

func fakeEnvelope(m *hub.Message) []byte {
	key := ""
	if m.Key != "" {
		key = fmt.Sprintf(`,"key":%q`, m.Key)
	}
	return fmt.Appendf(nil, `{"channel":%q,"id":%q,"offset":%d,"time":%d%s,"data":%s}`,
		m.Channel, m.Position(), m.Offset, m.Time, key, m.Data)
}

type sseOut struct {
	w   *http.ResponseController
	rw  http.ResponseWriter
	raw bool
}

func (o *sseOut) write(b []byte) error {
	if _, err := o.rw.Write(b); err != nil {
		return err
	}
	return o.w.Flush()
}

func (o *sseOut) event(id, typ string, data []byte) error {
	return o.write(sse.AppendEvent(nil, &sse.Event{HasID: true, ID: []byte(id), Type: []byte(typ), HasData: data != nil, Data: data}))
}

func (o *sseOut) hello(at string, retry int) error {
	return o.write(sse.AppendEvent(nil, &sse.Event{HasID: at != "", ID: []byte(at), HasRetry: true, Retry: retry}))
}

func (o *sseOut) message(m *hub.Message, at string) error {
	if o.raw {
		return o.event(at, "", m.Data)
	}
	return o.event(at, "", fakeEnvelope(m))
}

func (o *sseOut) gap(ns, from, to, at string) error {
	return o.event(at, "gap", fmt.Appendf(nil, `{"namespace":%q,"from":%q,"to":%q,"reason":"epoch"}`, ns, from, to))
}

func (o *sseOut) heartbeat() error { return o.write([]byte(":\n")) }

func (o *sseOut) end(code int, reason string) {
	b := sse.AppendType(nil, "end")
	_ = o.write(sse.AppendEnd(sse.AppendData(b, fmt.Appendf(nil, `{"code":%d,"reason":%q}`, code, reason))))
}

type wsOut struct{ c *websocket.Conn }

func (o *wsOut) text(format string, a ...any) error {
	return o.c.Write(websocket.OpText, fmt.Appendf(nil, format, a...))
}

func (o *wsOut) hello(at string, _ int) error { return o.text(`{"type":"subscribed","id":%q}`, at) }

func (o *wsOut) message(m *hub.Message, _ string) error { return o.text("%s", fakeEnvelope(m)) }

func (o *wsOut) gap(ns, from, to, at string) error {
	return o.text(`{"type":"gap","namespace":%q,"from":%q,"to":%q,"id":%q,"reason":"epoch"}`, ns, from, to, at)
}

func (o *wsOut) heartbeat() error { return o.c.Ping(nil) }

func (o *wsOut) end(code int, reason string) { _ = o.c.Close(uint16(code), reason) }
