package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A request is from the server's side to the client's, a line of JSON each.
type request struct {
	// Up is the address that the client's end of the veth gets; empty: it has it.
	Up string `json:",omitempty"`
	// Subscribe is how many connections each channel gets, at Server; they are open when it is
	// answered.
	Subscribe map[string]int `json:",omitempty"`
	Server    string         `json:",omitempty"`
	// Since is the time from which messages count; 0: not yet.
	Since int64 `json:",omitempty"`
	// Until ends the run: messages from before it are waited for as long as Wait says, and the
	// connections are closed.
	Until int64         `json:",omitempty"`
	Wait  time.Duration `json:",omitempty"`
}

// An answer is the client's to a request.
type answer struct {
	Error string `json:",omitempty"`
	// Channels is what came, after Until.
	Channels map[string]received `json:",omitempty"`
}

// received is what came on all connections of a channel.
type received struct {
	Messages      int64
	Broken        int     // connections that ended
	P50, P99, Max float64 // milliseconds from the publication to the client
}

// serveClient answers requests until the input ends.
func serveClient(in io.Reader, out io.Writer) error {
	var c *subscribers
	enc, lines := json.NewEncoder(out), bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		var a answer
		var err error
		switch {
		case r.Up != "":
			err = ip("addr add "+r.Up+" dev c0", "link set c0 up", "link set lo up")
		case r.Server != "":
			c, err = subscribe(r.Server, r.Subscribe)
		case r.Since != 0:
			c.since.Store(r.Since)
		case r.Until != 0:
			a.Channels = c.finish(r.Until, r.Wait)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// ip runs ip(8) with each line.
func ip(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

// subscribers are the connections of a run.
type subscribers struct {
	since, until atomic.Int64
	conns        []net.Conn
	reading      sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*tally
}

type tally struct {
	times  *hdrhistogram.Histogram // microseconds
	broken int
}

func subscribe(server string, channels map[string]int) (*subscribers, error) {
	c := &subscribers{channels: map[string]*tally{}}
	c.since.Store(1 << 62)
	c.until.Store(1 << 62)
	for channel, n := range channels {
		t := &tally{times: hdrhistogram.New(1, 60_000_000, 3)}
		c.channels[channel] = t
		for range n {
			conn, err := net.DialTimeout("tcp", server, 10*time.Second)
			if err != nil {
				return nil, err
			}
			c.conns = append(c.conns, conn)
			if _, err := fmt.Fprintf(conn, "GET /sse?channel=%s HTTP/1.1\r\nHost: w\r\n\r\n", channel); err != nil {
				return nil, err
			}
			in := bufio.NewReaderSize(conn, 64<<10)
			for { // until the stream's position has come: it is subscribed
				line, err := in.ReadString('\n')
				if err != nil {
					return nil, err
				}
				if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.Contains(line, " 200 ") {
					return nil, errors.New(strings.TrimSpace(line))
				}
				if strings.HasPrefix(line, "retry:") {
					break
				}
			}
			c.reading.Go(func() { c.read(in, t) })
		}
	}
	return c, nil
}

// read notes how old each message is when it comes.
func (c *subscribers) read(in *bufio.Reader, t *tally) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			if time.Now().UnixNano() < c.until.Load() {
				c.mu.Lock()
				t.broken++
				c.mu.Unlock()
			}
			return
		}
		at, ok := sentAt(line)
		if !ok || at < c.since.Load() || at >= c.until.Load() {
			continue
		}
		age := max((time.Now().UnixNano()-at)/1000, 1)
		c.mu.Lock()
		_ = t.times.RecordValue(min(age, 60_000_000)) // within its bounds
		c.mu.Unlock()
	}
}

// timeMark precedes the time of a message in its data.
const timeMark = `data: {"t":`

func sentAt(line []byte) (at int64, ok bool) {
	_, rest, ok := strings.Cut(string(line[:min(len(line), 64)]), timeMark)
	if !ok {
		return 0, false
	}
	digits, _, ok := strings.Cut(rest, ",")
	at, err := strconv.ParseInt(digits, 10, 64)
	return at, ok && err == nil
}

// finish ends the run.
func (c *subscribers) finish(until int64, wait time.Duration) map[string]received {
	c.until.Store(until)
	time.Sleep(wait)
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.reading.Wait()
	all := map[string]received{}
	for channel, t := range c.channels {
		ms := func(q float64) float64 { return float64(t.times.ValueAtQuantile(q)) / 1000 }
		all[channel] = received{Messages: t.times.TotalCount(), Broken: t.broken, P50: ms(50), P99: ms(99), Max: float64(t.times.Max()) / 1000}
	}
	return all
}
