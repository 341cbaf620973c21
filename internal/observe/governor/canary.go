package governor

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// timerCanary is the delay of the timer probe.
const timerCanary = 5 * time.Millisecond

// canaries run three probes each time they are sent off, and time them: a goroutine
// that is handed a value, one that reads a socket, a timer.
type canaries struct {
	base time.Time
	kick chan int64
	tick chan int64
	w, r *os.File

	goroutine, socket, timer metrics.Shared

	// Owned by the sampler.
	lost    uint64
	message [8]byte

	wg sync.WaitGroup
}

func startCanaries() (*canaries, error) {
	fds, err := sys.SocketPair()
	if err != nil {
		return nil, fmt.Errorf("canary: socket pair: %w", err)
	}
	c := &canaries{
		base: time.Now(), kick: make(chan int64, 1), tick: make(chan int64, 1),
		w: os.NewFile(uintptr(fds[0]), "canary"), r: os.NewFile(uintptr(fds[1]), "canary"),
	}
	c.wg.Go(c.wakes)
	c.wg.Go(c.reads)
	c.wg.Go(c.sleeps)
	return c, nil
}

func (c *canaries) now() int64 { return int64(time.Since(c.base)) }

// send starts the probes. Only the sampler calls it. An probe whose last one has not
// returned is not sent again, but counted as lost.
func (c *canaries) send() {
	select {
	case c.kick <- c.now():
	default:
		c.lost++
	}
	select {
	case c.tick <- c.now():
	default:
		c.lost++
	}
	now := c.now()
	for i := range c.message {
		c.message[i] = byte(now >> (8 * i))
	}
	if _, err := c.w.Write(c.message[:]); err != nil { // its buffer holds thousands
		c.lost++
	}
}

func (c *canaries) wakes() {
	for sent := range c.kick {
		c.goroutine.Observe(time.Duration(c.now() - sent))
	}
}

func (c *canaries) reads() {
	var b [8]byte
	for {
		if n, err := c.r.Read(b[:]); err != nil || n != len(b) { // eight bytes are written at once
			return
		}
		var sent int64
		for i, v := range b {
			sent |= int64(v) << (8 * i)
		}
		c.socket.Observe(time.Duration(c.now() - sent))
	}
}

func (c *canaries) sleeps() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for sent := range c.tick {
		t.Reset(timerCanary)
		<-t.C
		c.timer.Observe(max(time.Duration(c.now()-sent)-timerCanary, 0))
	}
}

// stop ends the probes and waits for them.
func (c *canaries) stop() {
	close(c.kick)
	close(c.tick)
	c.w.Close()
	c.wg.Wait()
	c.r.Close()
}
