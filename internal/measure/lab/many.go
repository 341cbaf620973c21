package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// perProcess is how many connections one process holds at most here: some descriptors are left
// for everything else.
func perProcess() int { return int(sys.MaxFiles() * 9 / 10) }

// processes is how many servers an arm has for n connections.
func (a Arm) processes(n int) int {
	if a.Processes > 0 {
		return a.Processes
	}
	return (n + perProcess() - 1) / perProcess()
}

// A crowd is an arm's servers with the clients that hold streams to them.
type crowd struct{ servers, clients []*Server }

func (c *crowd) stop() {
	for _, s := range append(c.clients, c.servers...) {
		s.Stop()
	}
}

// share is the part of n that the i-th of k has.
func share(n, i, k int) int { return n/k + min(max(n%k-i, 0), 1) }

// start starts the arm's servers for n streams.
func (c *crowd) start(ctx context.Context, b *Bench, a Arm, n int) error {
	for range a.processes(n) {
		s, err := b.Start(ctx, a)
		if err != nil {
			return err
		}
		c.servers = append(c.servers, s)
	}
	return nil
}

// hold opens n connections to the servers with a request each, one client process after the
// other. Each has a local address of its own, and so its own ports.
func (c *crowd) hold(ctx context.Context, b *Bench, n int, request string) error {
	for i, s := range c.servers {
		mine := share(n, i, len(c.servers))
		parts := (mine + perProcess() - 1) / perProcess()
		for k := range parts {
			client, err := b.Start(ctx, Arm{Server: "load/streams", Set: map[string]string{
				"to": s.Addr, "streams": strconv.Itoa(share(mine, k, parts)), "from": fmt.Sprintf("127.0.0.%d", 2+len(c.clients)),
				"request": request,
			}})
			if err != nil {
				return fmt.Errorf("hold %d connections: %w", mine, err)
			}
			c.clients = append(c.clients, client)
		}
	}
	return nil
}

// rss is the memory of all servers together.
func (c *crowd) rss() (sum float64, err error) {
	for _, s := range c.servers {
		one, err := s.RSS()
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// seen adds up what the clients say under a name.
func (c *crowd) seen(ctx context.Context, name string) (sum float64, err error) {
	for _, s := range c.clients {
		st, err := s.Stats(ctx)
		if err != nil {
			return 0, err
		}
		sum += st.Extra[name]
	}
	return sum, nil
}

// held opens idle streams and measures what each costs the servers' memory. With events it then
// publishes so many to all of them, and measures what each brings onto the wire. A quick
// run holds 6,000.
func held(conns, events int) Measure {
	return func(ctx context.Context, b *Bench, a Arm) (Values, error) {
		n := conns
		if b.opt.Quick {
			// No fewer: what a server has spare at its start would hide them.
			n = min(n, 6000)
		}
		c := &crowd{}
		defer c.stop()
		if err := c.start(ctx, b, a, n); err != nil {
			return nil, err
		}
		before, err := c.rss()
		if err != nil {
			return nil, err
		}
		if err := c.hold(ctx, b, n, "GET /sse?channel=idle HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
			return nil, err
		}
		after, err := c.rss()
		if err != nil {
			return nil, err
		}
		v := Values{"rss_per_conn": (after - before) / float64(n), "rss": after, "streams": float64(n), "processes": float64(len(c.servers))}
		for _, s := range c.servers {
			st, err := s.Stats(ctx)
			if err != nil {
				return nil, err
			}
			v["goroutines"] += st.Goroutines
		}
		for _, s := range c.clients {
			st, err := s.Stats(ctx)
			if err != nil {
				return nil, err
			}
			v["connect"] += st.Extra["connect"] * st.Extra["streams"] / float64(n)
			v["connect_p95"] = max(v["connect_p95"], st.Extra["connect_p95"])
		}
		if events > 0 {
			v["egress"], err = c.egress(ctx, n, events)
		}
		return v, err
	}
}

// egress publishes events to all streams and returns the bytes that each brought to each.
func (c *crowd) egress(ctx context.Context, n, events int) (float64, error) {
	for _, s := range c.clients {
		if err := s.Mark(ctx); err != nil {
			return 0, err
		}
	}
	for i := range events {
		for _, s := range c.servers {
			if err := post(ctx, http.DefaultClient, s.URL(), `{"channel":"idle","data":`+strconv.Quote(eventText)+`}`); err != nil {
				return 0, err
			}
		}
		if err := c.settled(ctx); err != nil {
			return 0, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	bytes, err := c.seen(ctx, "bytes")
	return bytes / float64(n*events), err
}

// settled waits until bytes have come and no more do.
func (c *crowd) settled(ctx context.Context) error {
	last, quiet := 0.0, 0
	for range 300 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		now, err := c.seen(ctx, "bytes")
		if err != nil {
			return err
		}
		if quiet++; now != last || now == 0 {
			last, quiet = now, 0
		}
		if quiet >= 4 {
			return nil
		}
	}
	return errors.New("deliveries do not come to an end")
}
