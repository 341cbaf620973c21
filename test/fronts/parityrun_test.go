package fronts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/test/judge"
	"github.com/weir-gateway/weir/websocket"
)

// A row is one thing that a client does. Whatever version of HTTP it does it in, it gets
// the same, the same metrics move by the same amounts, and the access log gets the same
// lines.
type row struct {
	name string
	// do does it and returns what the client saw, without what is another each time.
	do func(*client) string
	// differs are the parts in which the versions differ, and must not. A row that names
	// one in which they do not differ fails, so that the table stays true.
	differs part
	// but are metrics that are not compared, since they are another each time.
	but string
}

// A part is one of the three that are compared.
type part int

const (
	saw    part = 1 << iota // what the client got
	moved                   // metrics
	logged                  // the access log
)

func (p part) String() string {
	var names []string
	for i, name := range []string{"saw", "moved", "logged"} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}

// A client speaks one version with one gateway of its own.
type client struct {
	t       *testing.T
	version int
	s       *judge.Server
	to      *changeable
	http    *http.Client
	log     string // file of the access log
	read    int    // bytes of it that were looked at
}

func newClient(t *testing.T, version int, s *judge.Server, to *changeable, log string) *client {
	var p http.Protocols
	p.SetHTTP1(version == 1)
	p.SetUnencryptedHTTP2(version == 2)
	var tr http.RoundTripper = &http.Transport{Protocols: &p, DisableCompression: true}
	if version == 3 {
		h := &http3.Transport{TLSClientConfig: judge.Trust(t, s.Authority), DisableCompression: true}
		t.Cleanup(func() { _ = h.Close() })
		tr = h
	}
	c := &http.Client{Transport: tr, Timeout: trial.Patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(c.CloseIdleConnections)
	return &client{t: t, version: version, s: s, to: to, log: log, http: c}
}

// scheme is that of c's requests: HTTP/3 has no other form than the one with TLS.
func (c *client) scheme() string {
	if c.version == 3 {
		return "https"
	}
	return "http"
}

// ask sends a request; fields are "Name: value".
func (c *client) ask(ctx context.Context, method, target string, body io.Reader, fields ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.scheme()+"://"+c.s.Public+target, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Host = "site.example"
	req.Header.Set("User-Agent", "parity")
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Add(name, value)
	}
	return c.http.Do(req)
}

// one is a request whose answer ends.
func one(method, target, body string, fields ...string) func(*client) string {
	return func(c *client) string {
		var r io.Reader
		if body != "" {
			r = strings.NewReader(body)
		}
		res, err := c.ask(c.t.Context(), method, target, r, fields...)
		if err != nil {
			return "no answer: " + unaddressed(err.Error())
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		how := ""
		if err != nil {
			how = "\nthe body was cut"
		}
		return head(res) + normalised(string(text)) + how + trailers(res)
	}
}

// fails is a request whose answer is incomplete.
func fails(target string) func(*client) string {
	return func(c *client) string {
		res, err := c.ask(c.t.Context(), http.MethodGet, target, nil)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		if err == nil {
			return "whole"
		}
		return "not whole"
	}
}

// framing are fields in which the versions differ by what they are, and those that say
// when; of others only the presence counts.
var (
	framing  = []string{"Connection", "Date", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Trailer", "Upgrade", "Alt-Svc"}
	presence = []string{"Retry-After", "Last-Event-Id", "Traceparent"}
)

func head(res *http.Response) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", res.StatusCode)
	var names []string
	for name := range res.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case slices.Contains(framing, name):
		case slices.Contains(presence, name):
			fmt.Fprintf(&b, "\n%s: some", name)
		default:
			fmt.Fprintf(&b, "\n%s: %s", name, normalised(strings.Join(res.Header[name], " | ")))
		}
	}
	return b.String() + "\n\n"
}

func trailers(res *http.Response) string {
	if len(res.Trailer) == 0 {
		return ""
	}
	return fmt.Sprintf("\ntrailers %v", res.Trailer)
}

var volatile = regexp.MustCompile(`(?m)^retry: \d+$|^id: .*$|"epoch":"[^"]*"|"id":"[^"]*"|"time":\d+|urn:uuid:[-0-9a-f]+|00-[0-9a-f]{32}-[0-9a-f]{16}-\d\d|/api/recording\?id=[^"\s]+|127\.0\.0\.1:\d+`)

// normalised removes what is another each time.
func normalised(text string) string { return volatile.ReplaceAllString(text, "*") }

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func unaddressed(text string) string { return address.ReplaceAllString(text, "*") }

// stream opens an event stream, lets act happen when it has its position, from which on
// nothing is missed, and returns its head and blocks up to the first that has last, or its
// end.
func stream(target, last string, act func(*client), fields ...string) func(*client) string {
	return func(c *client) string {
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		defer cancel()
		res, err := c.ask(ctx, http.MethodGet, target, nil, append(fields, "Accept: text/event-stream")...)
		if err != nil {
			return "no answer: " + unaddressed(err.Error())
		}
		defer res.Body.Close()
		var b strings.Builder
		b.WriteString(head(res))
		lines := bufio.NewReader(res.Body)
		for acted, positioned := act == nil, false; ; {
			line, err := lines.ReadString('\n')
			positioned = positioned || strings.HasPrefix(line, "id: ")
			b.WriteString(normalised(line))
			switch {
			case err != nil && ctx.Err() != nil:
				return b.String() + "\nnothing more came"
			case err != nil:
				return b.String() + "\nthe stream ended"
			case strings.Contains(line, last):
				return b.String()
			case !acted && positioned && line == "\n":
				acted = true
				act(c)
			}
		}
	}
}

// beginning is the head of an answer that has no end.
func beginning(target string, fields ...string) func(*client) string {
	return func(c *client) string {
		res, err := c.ask(c.t.Context(), http.MethodGet, target, nil, fields...)
		if err != nil {
			return "no answer: " + unaddressed(err.Error())
		}
		_ = res.Body.Close()
		return head(res)
	}
}

// publish publishes with a client of its own, of the same version.
func publish(channel string) func(*client) {
	return func(c *client) {
		res, err := c.ask(c.t.Context(), http.MethodPost, "/api/publish", strings.NewReader(`{"channel":"`+channel+`","data":{"n":1}}`), "X-API-Key: "+judge.APIKey)
		if err != nil {
			c.t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, res.Body) // what came of it is the stream's to say
		_ = res.Body.Close()
	}
}

// then does several things in their order.
func then(all ...func(*client) string) func(*client) string {
	return func(c *client) string {
		var b strings.Builder
		for _, f := range all {
			b.WriteString(f(c) + "\n--\n")
		}
		return b.String()
	}
}

// socket opens a WebSocket, sends say if there is something, and returns what comes
// until a message has last.
func socket(target, say, last string, act func(*client)) func(*client) string {
	return func(c *client) string {
		nc, status := c.upgrade(target)
		if nc == nil {
			return status
		}
		ws := websocket.NewConn(nc, websocket.ConnOptions{Client: true})
		defer ws.CloseNow()
		ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
		defer cancel()
		got := "open"
		if say != "" {
			if err := ws.Write(websocket.OpText, []byte(say)); err != nil {
				return got + ", not writable"
			}
		}
		for {
			_, text, err := ws.Read(ctx)
			if err != nil {
				return got + "\nended"
			}
			got += "\n" + normalised(string(text))
			if bytes.Contains(text, []byte(last)) {
				_ = ws.Close(1000, "")
				return got
			}
			if act != nil {
				act(c)
			}
		}
	}
}

// upgrade starts a WebSocket: by Upgrade, or by extended CONNECT (RFC 8441, RFC 9220). Without a
// connection it returns why. Of a status it reports only whether it opens a WebSocket.
func (c *client) upgrade(target string) (net.Conn, string) {
	switch c.version {
	case 2:
		return c.connect(target)
	case 3:
		return c.connectHTTP3(target)
	}
	nc, err := net.Dial("tcp", c.s.Public)
	if err != nil {
		return nil, "refused at accept"
	}
	fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: site.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", target)
	r := bufio.NewReader(nc)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		_ = nc.Close()
		if err != nil {
			return nil, "no answer"
		}
		return nil, fmt.Sprintf("refused with %d", res.StatusCode)
	}
	return &buffered{nc, r}, ""
}

type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// connect is upgrade over HTTP/2. It sends what RFC 8441 requires only if the server
// offers it.
func (c *client) connect(target string) (net.Conn, string) {
	nc, err := net.Dial("tcp", c.s.Public)
	if err != nil {
		return nil, "refused at accept"
	}
	t := newTunnel(nc)
	status := t.open(target)
	if status != "200" {
		_ = nc.Close()
		return nil, status
	}
	return t, ""
}

// changeable is a backend whose answer a request names in its path.
type changeable struct {
	mu   sync.Mutex // guards what follows
	n    int        // requests since reset
	copy int        // of them at the mirror
}

func (b *changeable) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n, b.copy = 0, 0
}

func (b *changeable) count(mirror bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mirror {
		b.copy++
		return b.copy
	}
	b.n++
	return b.n
}

func (b *changeable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n := b.count(false)
	h := w.Header()
	h.Set("X-Backend", "1")
	switch _, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); what {
	case "tokens":
		h.Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: {\"i\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	case "hold":
		h.Set("Content-Type", "text/event-stream")
		h.Set("Weir-Hold", "stream")
		h.Set("Weir-Channel", r.URL.Query().Get("on"))
		_, _ = io.WriteString(w, "data: first\n\n")
	case "flaky": // the first attempt fails
		if n == 1 {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
		_, _ = fmt.Fprintf(w, "attempt %d", n)
	case "cut": // ends within its body
		h.Set("Content-Length", "100")
		_, _ = io.WriteString(w, "ten bytes.")
		_ = http.NewResponseController(w).Flush()
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	case "slow":
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Second):
		}
	case "trailers":
		h.Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		h.Set("X-Sum", "of-the-body")
	default:
		var status int
		if _, err := fmt.Sscanf(what, "status/%d", &status); err == nil {
			w.WriteHeader(status)
		}
		seen := map[string][]string{}
		for name, values := range r.Header {
			if !slices.Contains(ownFields, name) || name == "X-Forwarded-For" || name == "X-Forwarded-Proto" || name == "X-Forwarded-Host" {
				seen[name] = values
			}
			if name == "X-Forwarded-Proto" && len(values) == 1 { // there is no HTTP/3 without TLS
				seen[name] = []string{strings.TrimSuffix(values[0], "s")}
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "target": r.RequestURI, "host": r.Host, "fields": seen, "body": string(body)})
	}
}

// counted are the counters that requests move. Others follow the clock, the loops' work
// or the bytes of a version's framing.
func (c *client) counted() map[string]float64 {
	res, err := judge.HTTP.Get("http://" + c.s.Admin + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	all := map[string]float64{}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 {
			name, value = lines.Text()[:i], lines.Text()[i+1:]
		}
		family, _, _ := strings.Cut(name, "{")
		if !ok || !strings.HasPrefix(family, "weir_") || uncounted.MatchString(family) || !counters.MatchString(family) {
			continue
		}
		var v float64
		_, _ = fmt.Sscan(value, &v) // it is a number in this format
		all[sameLabels.Replace(unaddressed(name))] += v
	}
	return all
}

var (
	counters   = regexp.MustCompile(`(_total|_count)$|^weir_upstream_in_flight_requests$|^weir_recordings$`)
	uncounted  = regexp.MustCompile(`^weir_(accept|loop|cpu|gc|governor|lock|broker|sched|subscriber_lag|subscribers_lagged|spans|sends|sent_bytes|read_bytes|write_|delivery_|jwks|evidence|upstream_pool|messages_encoded|http[23]_|tls_)|seconds_total$`)
	sameLabels = strings.NewReplacer(`"http2_`, `"`, `"http3_`, `"`)
)

// difference is what moved between two readings, except what but starts. Counters that
// appear are from nothing.
func difference(before, after map[string]float64, but string) string {
	var lines []string
	for name, v := range after {
		if d := v - before[name]; d != 0 && (but == "" || !strings.HasPrefix(name, but)) {
			lines = append(lines, fmt.Sprintf("%s %+g", name, d))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// newLines returns what the access log got since it was last looked at, without times
// and identifiers.
func (c *client) newLines() string {
	text, err := os.ReadFile(c.log)
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	fresh := whole[min(c.read, len(whole)):]
	c.read = len(whole)
	var lines []string
	for line := range bytes.Lines(fresh) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			c.t.Errorf("the access log has %q", line)
			continue
		}
		for _, key := range []string{"time", "duration_ms", "trace_id", "span_id", "protocol", "version", "proto"} {
			delete(m, key)
		}
		b, _ := json.Marshal(m) // it was JSON
		lines = append(lines, normalised(string(b)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A record is all that came of a row.
type record struct{ client, metrics, access string }

// play does a row and waits until nothing moves any more.
func (c *client) play(r row) record {
	c.to.reset()
	before := c.counted()
	got := record{client: r.do(c)}
	c.http.CloseIdleConnections()
	last, quiet := "", 0
	for end := time.Now().Add(5 * time.Second); quiet < 3 && time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		now := difference(before, c.counted(), r.but)
		if now == last {
			quiet++
		} else {
			quiet = 0
		}
		last = now
	}
	got.metrics, got.access = last, c.newLines()
	return got
}

// compareRow reports in which of their parts two records differ, and how. over is what
// the second was played over.
func compareRow(a, b record, over string) (differ part, how string) {
	for _, p := range []struct {
		is         part
		what, a, b string
	}{{saw, "the client sees", a.client, b.client}, {moved, "metrics move", a.metrics, b.metrics}, {logged, "the access log gets", a.access, b.access}} {
		if p.a != p.b {
			differ |= p.is
			how += fmt.Sprintf("%s\n  HTTP/1.1:\n%s\n  %s:\n%s\n", p.what, indented(p.a), over, indented(p.b))
		}
	}
	return differ, how
}

func indented(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
