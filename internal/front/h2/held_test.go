package h2

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// pausing reads a request as exchange does, but stops reading after each piece of its body
// briefly.
type pausing struct{ exchange }

func (x *pausing) Data(c *eventloop.Conn, b []byte) int {
	before := len(x.body)
	n := x.exchange.Data(c, b)
	if len(x.body) > before && !x.whole {
		c.PauseReading()
		loop := c.Loop()
		time.AfterFunc(time.Millisecond, func() { loop.Post(c.ResumeReading) })
	}
	return n
}

// What comes while a handler does not read is kept, in order and with its end, within the
// window, which is a wide one after a while.
func TestBodiesOfHandlersThatPauseAreWhole(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		f := serving(t, engine, Config{}, func(*eventloop.Conn) eventloop.Handler {
			return &pausing{exchange{serve: func(c *eventloop.Conn, x *exchange) {
				want := strings.Repeat("0123456789", len(x.body)/10)
				reply(fmt.Sprint(len(x.body), " ", string(x.body) == want, " ", string(x.trailer)))(c, x)
			}}}
		})
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		defer tr.CloseIdleConnections()
		for _, chunked := range []bool{false, true} {
			body, want := io.Reader(strings.NewReader(strings.Repeat("0123456789", 100_000))), "1000000 true "
			if chunked {
				body, want = io.MultiReader(body), want+"x-sum: 9\r\n\r\n"
			}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.addr+"/", body)
			if chunked {
				req.Trailer = http.Header{"X-Sum": {"9"}}
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if string(got) != want || err != nil {
				t.Errorf("%s, chunked %v: %q %v, want %q", engine, chunked, got, err, want)
			}
		}
	}
}

// A client may send a window of single bytes while its handler does not read: what frames
// them for the handler is not counted.
func TestSmallFramesForAHandlerThatPauses(t *testing.T) {
	resume := make(chan *eventloop.Conn, 1)
	f := serving(t, "", Config{}, func(*eventloop.Conn) eventloop.Handler {
		x := &stopping{paused: resume}
		x.serve = func(c *eventloop.Conn, x *exchange) { reply(fmt.Sprint(len(x.body)))(c, x) }
		return x
	})
	c := f.dial()
	c.open(1, false, post("/")...)
	c.do(c.WriteData(1, false, []byte("x")))
	paused := <-resume
	const n = 30_000
	for i := range n {
		c.do(c.WriteData(1, false, []byte("x")))
		c.do(c.WritePing(false, [8]byte{})) // so that each is a piece of its own
		if i%1000 == 999 {
			c.until("the answers", func() bool { return c.pongs > i })
		}
	}
	c.do(c.WriteData(1, true, nil))
	paused.Loop().Post(paused.ResumeReading)
	c.until("the answer", func() bool { return c.ended[1] || len(c.reset) > 0 || c.away != nil })
	if got := c.body[1]; got == nil || got.String() != fmt.Sprint(n+1) {
		t.Errorf("%v, reset %v, goaway %v", got, c.reset, c.away)
	}
}

// stopping stops reading after the first piece of a body until it is signalled to continue.
type stopping struct {
	exchange
	paused chan *eventloop.Conn
}

func (x *stopping) Data(c *eventloop.Conn, b []byte) int {
	n := x.exchange.Data(c, b)
	if len(x.body) > 0 && x.paused != nil {
		c.PauseReading()
		x.paused <- c
		x.paused = nil
	}
	return n
}
