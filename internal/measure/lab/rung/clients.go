package rung

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// clientRungs are the other end: processes that hold connections to a rung open, since one process
// has not the descriptors for as many as some claims are about. They are started and ended as
// servers are, and their side port shows what they saw.
func clientRungs() map[string]Server {
	return map[string]Server{"load/streams": holdStreams}
}

// bindAddressNoPort is IP_BIND_ADDRESS_NO_PORT.
const bindAddressNoPort = 24

// holdStreams opens connections to the server at setting to, as many as streams says, 64 at a
// time, from the local address in from (any, without one), and sends the setting request on each. It is ready when all of them are
// open. The side port shows how many there are, how long connecting took until the first bytes of
// the answer ("connect", the mean, and "connect_p95"), and the bytes that came since the mark.
func holdStreams(ctx context.Context, env *Env) error {
	n, err := strconv.Atoi(env.Set["streams"])
	if err != nil || n <= 0 {
		return fmt.Errorf("streams: %q is not a number above 0", env.Set["streams"])
	}
	to, err := netip.ParseAddrPort(env.Set["to"])
	if err != nil {
		return fmt.Errorf("to: %q is not an address: %w", env.Set["to"], err)
	}
	var d net.Dialer
	if from := env.Set["from"]; from != "" {
		ip, err := netip.ParseAddr(from)
		if err != nil {
			return fmt.Errorf("from: %q is not an address: %w", from, err)
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
		d.Control = func(_, _ string, c syscall.RawConn) error {
			var set error
			// Only connect knows which ports are free towards its peer: bind would look for one that
			// nothing has.
			if err := c.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, bindAddressNoPort, 1) }); err != nil {
				return err
			}
			return set
		}
	}
	began := time.Now()
	list, took, err := openStreams(ctx, &d, to.String(), env.Set["request"], n)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer func() {
		for _, c := range list {
			if t, ok := c.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // thousands in TIME_WAIT would be in the way of the next
			}
			c.Close()
		}
	}()
	if err != nil {
		return err
	}
	env.Extra.Put("streams", float64(n))
	env.Extra.Put("connect", time.Since(began).Seconds()/float64(n))
	env.Extra.Put("connect_p95", stat.Quantile(took, 0.95))
	for _, c := range list {
		reading.Go(func() { countBytes(c, &env.Extra) })
	}
	env.Ready(to.String())
	<-ctx.Done()
	return nil
}

// countBytes reads until the connection is closed.
func countBytes(c net.Conn, extra *Extra) {
	var b [1024]byte
	for {
		n, err := c.Read(b[:])
		if n > 0 {
			extra.Add("bytes", float64(n))
		}
		if err != nil {
			return
		}
	}
}

// openStreams opens n connections, 64 at a time, sends the request on each and waits for the first bytes of its
// answer. It returns how long each took in seconds. What was opened before an error is returned with it.
func openStreams(ctx context.Context, d *net.Dialer, addr, request string, n int) (list []net.Conn, took []float64, err error) {
	var mu sync.Mutex
	failed := 0
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range 64 {
		wg.Go(func() {
			for range next {
				began := time.Now()
				c, e := OpenStream(ctx, d, addr, request)
				mu.Lock()
				if e != nil {
					failed++
					err = fmt.Errorf("%d of %d connections, the last: %w", failed, n, e)
				} else {
					list, took = append(list, c), append(took, time.Since(began).Seconds())
				}
				mu.Unlock()
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	return list, took, err
}

// OpenStream connects, sends the request and waits for the answer's first bytes, 20 s at most for
// both.
func OpenStream(ctx context.Context, d *net.Dialer, addr, request string) (net.Conn, error) {
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err = c.SetDeadline(time.Now().Add(20 * time.Second)); err == nil {
		_, err = io.WriteString(c, request)
	}
	if err == nil {
		var b [12]byte
		_, err = io.ReadFull(c, b[:])
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
