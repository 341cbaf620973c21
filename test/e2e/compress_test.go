package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// compressing is a server whose messages are compressed from 256 bytes on.
func compressing(t *testing.T, config ...map[string]any) *judge.Server {
	t.Helper()
	all := judge.Namespace(map[string]any{"compress": true, "max_message_bytes": 1 << 20, "queue_bytes": 4 << 20})
	all["push"] = map[string]any{"retry": "300ms"} // each life starts with the slowest client
	for _, c := range config {
		for k, v := range c {
			all[k] = v
		}
	}
	return judge.New(t, judge.Options{Build: judge.Race, Config: all})
}

// payloads are of every kind that is written differently: too short to be
// compressed, compressed, larger than a deflate block, a zstd block and a
// WebSocket's 16 bits of length, larger than a socket's buffer, and without
// much that could be compressed away. Each number gives another.
func payloads(n int) (list []string) {
	r := rand.New(rand.NewPCG(uint64(n), 5))
	noise := make([]byte, 40_000)
	for i := range noise {
		noise[i] = '#' + byte(r.IntN('Z'-'#'))
	}
	for i, text := range []string{
		"", strings.Repeat("x", 200), strings.Repeat("price ", 60), string(noise[:300]), strings.Repeat("ask 101.25 bid 101.50 ", 900),
		"", strings.Repeat("größer, ", 20_000), string(noise), strings.Repeat("ask 101.25 bid 101.50 ", 30_000), "",
	} {
		list = append(list, fmt.Sprintf("%d.%d %s", n, i, text))
	}
	return list
}

// A compressed crew has a relay for each of its members, which counts the bytes.
type compressedCrew struct {
	*crew
	server *judge.Server
	relays []*judge.Relay
}

func newCompressedCrew(t *testing.T, s *judge.Server) *compressedCrew {
	c := &compressedCrew{crew: newCrew(t), server: s}
	c.coding = map[*judge.Member]string{}
	return c
}

// join adds a member whose events are to come encoded as said, and returns its
// feed and the address that it is to use.
func (c *compressedCrew) join(name, coding string) (on func(line), addr string) {
	m := c.Member(name, channels[:1])
	c.coding[m] = coding
	r := judge.NewRelay(c.T, c.server.Public, 1, 0)
	r.Calm()
	c.relays = append(c.relays, r)
	return c.on(m), r.Addr
}

// arrived waits until every member has the newest message of p.
func (c *compressedCrew) arrived(p *judge.Publisher, what string) {
	c.T.Helper()
	acked := p.Acked()
	newest := acked[len(acked)-1]
	// Less than a heartbeat's 25s, which would push out what a decoder kept.
	judge.Eventually(c.T, 15*time.Second, what+" has arrived everywhere", func() bool {
		for _, m := range c.Members {
			if m.High.Load() < newest.Offset {
				return false
			}
		}
		return true
	})
}

// run publishes one message after the other, each when all have the one before,
// and through three kills, after each of which some are missed. Then it has the
// history evaluated, and what it took on the wire.
func (c *compressedCrew) run() {
	t, s := c.T.(*testing.T), c.server
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p := &judge.Publisher{Addr: s.Public}
	publish := func(payload string) {
		t.Helper()
		if err := p.Publish(ctx, channels[0], payload); err != nil {
			t.Fatal(err)
		}
	}
	before := make([]int64, len(c.Members))
	for life := range 4 {
		judge.Eventually(t, 60*time.Second, "every client is connected", func() bool { return c.Connected(before) == len(c.Members) })
		for i, payload := range payloads(2 * life) {
			publish(payload)
			c.arrived(p, fmt.Sprintf("message %d of life %d", i, life))
		}
		if life == 3 {
			break
		}
		s.Kill()
		before = c.Sessions()
		s.Start()
		for _, payload := range payloads(2*life + 1) {
			publish(payload)
		}
		c.arrived(p, "what was missed")
	}
	acked := p.Acked()
	size := 0
	for _, a := range acked {
		size += len(a.Payload)
	}
	for i, m := range c.Members {
		down := c.relays[i].Down.Load()
		t.Logf("%s: %d bytes of payload came in %d bytes on the wire", m.Name, size, down)
		if down > int64(size)/4 {
			t.Errorf("%s: %d bytes of payload came in %d bytes on the wire, want at most a quarter", m.Name, size, down)
		}
		if strings.Contains(c.coding[m], "deflate") && m.Pongs.Load() < 2*4 {
			t.Errorf("%s: %d pongs, want two in each of 4 lives", m.Name, m.Pongs.Load())
		}
	}
	c.verdict = func() { c.Judge(acked) }
}

func TestNpmClientsTakeCompressedEventsLive(t *testing.T) {
	t.Parallel()
	judge.Need(t, "npm")
	c := newCompressedCrew(t, compressing(t))
	for library, coding := range map[string]string{
		"eventsource": "gzip", "undici EventSource": "gzip", "fetch": "gzip",
		"ws": "permessage-deflate", "undici WebSocket": "permessage-deflate",
	} {
		on, addr := c.join(library, coding)
		script(t, "client.mjs", map[string]any{"library": library, "url": "http://" + addr, "channel": channels[0]}, on)
	}
	c.run()
}

func TestChromiumTakesCompressedEventsLive(t *testing.T) {
	t.Parallel()
	f := func(coding, accept string) {
		t.Helper()
		t.Run(coding, func(t *testing.T) {
			judge.Need(t, "npm", "chromium")
			executable, err := exec.LookPath("chromium")
			if err != nil {
				t.Fatal(err)
			}
			pages := httptest.NewServer(http.FileServer(http.Dir(judge.Path("test", "e2e", "npm"))))
			t.Cleanup(pages.Close)
			c := newCompressedCrew(t, compressing(t, judge.Origins(pages.URL)))
			stream, streamAddr := c.join("sse", coding)
			socket, socketAddr := c.join("websocket", "permessage-deflate")
			query := url.Values{"server": {"http://" + streamAddr}, "socket": {"http://" + socketAddr}, "channel": channels[:1]}
			page := fmt.Sprintf("%s/page.html?%s", pages.URL, query.Encode())
			script(t, "browser.mjs", map[string]any{"executable": executable, "page": page, "profile": t.TempDir(), "accept": accept}, func(l line) {
				switch l.Source {
				case "sse":
					stream(l)
				case "websocket":
					socket(l)
				default:
					t.Errorf("the page reports %+v", l)
				}
			})
			c.run()
		})
	}
	f("zstd", "") // what it takes by itself
	f("gzip", "gzip")
}
