package job

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// loopback is any free port of this machine.
var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// pair is both ends of a connection, non-blocking.
type pair struct{ near, far int }

func (p pair) close() { sys.Close(p.near); sys.Close(p.far) }

// pairs opens n connections with these options on the near end, which connects.
func pairs(n int, settings []sys.Setting) ([]pair, error) {
	l, at, err := sys.Listen(loopback, sys.ListenOptions{})
	if err != nil {
		return nil, err
	}
	defer sys.Close(l)
	var to sys.Address
	if err := to.TCPAddress(at); err != nil {
		return nil, err
	}
	var list []pair
	for range n {
		fd, err := sys.OpenStream(&to, netip.Addr{}, settings)
		if err != nil {
			return list, fmt.Errorf("open connection %d of %d: %w", len(list)+1, n, err)
		}
		if errno := sys.Connect(fd, &to); errno != 0 && errno != sys.EINPROGRESS {
			sys.Close(fd)
			return list, fmt.Errorf("connect: %w", errno)
		}
		far, _, errno := sys.Accept(l)
		for tries := 0; errno == sys.EAGAIN && tries < 1000; tries++ {
			time.Sleep(time.Millisecond) // the handshake of loopback is on its way
			far, _, errno = sys.Accept(l)
		}
		if errno != 0 {
			sys.Close(fd)
			return list, fmt.Errorf("accept: %w", errno)
		}
		list = append(list, pair{fd, far})
	}
	return list, nil
}

// buffers requests socket buffers of a size (setting bytes; 0 leaves them to the
// kernel), reads back what it got, and fills a connection whose reader has
// stopped: what the kernel takes then is what a slow client costs unseen.
func buffers(_ context.Context, p Params) (Values, error) {
	size := int(p.number("bytes", 0))
	v := Values{"asked": float64(size)}
	g, err := eventloop.New(eventloop.Config{
		Engine: "epoll", Loops: 1,
		Sockets: eventloop.SocketConfig{SendBuffer: size, ReceiveBuffer: size},
	}, func(*eventloop.Conn) eventloop.Handler { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer g.Release()
	if _, err := g.Listen(loopback); err != nil {
		return nil, err
	}
	for _, o := range g.Sockets() {
		if n, ok := o.Effective.(int); ok && (o.Option == "SO_SNDBUF" || o.Option == "SO_RCVBUF") {
			v[o.Option] = float64(n)
		}
	}
	var settings []sys.Setting
	if size > 0 {
		settings = []sys.Setting{{Option: sys.SendBuffer, Value: size}, {Option: sys.ReceiveBuffer, Value: size}}
	}
	list, err := pairs(1, settings)
	if err != nil {
		return nil, err
	}
	defer list[0].close()
	chunk := make([]byte, 32<<10)
	for full := 0; full < 20; { // the kernel moves bytes and grows buffers briefly yet
		n, errno := sys.Send(list[0].near, chunk)
		switch {
		case errno == sys.EAGAIN:
			full++
			time.Sleep(time.Millisecond)
		case errno != 0:
			return nil, errno
		default:
			v["unseen"] += float64(n)
		}
	}
	return v, nil
}

// ready measures how many events a second of processor time epoll brings when a share of the
// watched connections (setting share) has something, of conns (1000) in all.
func ready(ctx context.Context, p Params) (Values, error) {
	n := int(p.number("conns", 1000))
	active := max(int(math.Round(p.number("share", 1)*float64(n))), 1)
	list, err := pairs(n, nil)
	defer func() {
		for _, c := range list {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	ep, err := sys.EpollCreate()
	if err != nil {
		return nil, err
	}
	defer sys.Close(ep)
	for i, c := range list {
		if err := sys.EpollAdd(ep, c.far, sys.EpollIn, uint64(i)); err != nil {
			return nil, err
		}
	}
	var spent time.Duration
	var got, next int
	events, b := make([]sys.EpollEvent, 512), make([]byte, 16)
	_, err = repeat(ctx, p.Duration, func() error {
		for range active {
			if _, errno := sys.Send(list[next%n].near, b[:1]); errno != 0 {
				return errno
			}
			next++
		}
		began := sys.CPUTime()
		for seen := 0; seen < active; {
			k, errno := sys.EpollWait(ep, events, 1000)
			if errno != 0 || k == 0 {
				return fmt.Errorf("epoll brought %d of %d: %w", seen, active, errno)
			}
			for i := range k {
				if _, errno := sys.Recv(list[events[i].Data()].far, b); errno != 0 {
					return errno
				}
			}
			seen += k
		}
		spent += sys.CPUTime() - began
		got += active
		return nil
	})
	u := float64(active) / float64(n)
	return Values{"events_per_second": float64(got) / max(spent.Seconds(), 1e-9), "formula": 1 - 0.35*(1-u)*(1-u)}, err
}

// queue sends bursts of messages (setting burst, 5000) into a channel of a
// capacity (128) whose other end writes to a socket.
func queue(ctx context.Context, p Params) (Values, error) {
	near, far, err := connection()
	if err != nil {
		return nil, err
	}
	defer near.Close()
	var running sync.WaitGroup
	running.Go(func() { _, _ = io.Copy(io.Discard, far) }) // until it is closed
	defer running.Wait()
	defer far.Close()

	type item struct{ at time.Time }
	q, done := make(chan item, int(p.number("capacity", 128))), make(chan struct{})
	var delays []float64
	frame := make([]byte, 132)
	go func() {
		defer close(done)
		for m := range q {
			delays = append(delays, time.Since(m.at).Seconds())
			if _, err := near.Write(frame); err != nil {
				return
			}
		}
	}()
	size := int(p.number("burst", 5000))
	var firsts []float64
	var sent, lost float64
	_, err = repeat(ctx, p.Duration, func() error {
		first := 0 // none was refused
		for i := range size {
			select {
			case q <- item{time.Now()}:
			default:
				if lost++; first == 0 {
					first = i + 1
				}
			}
			sent++
		}
		if first > 0 {
			firsts = append(firsts, float64(first))
		}
		for len(q) > 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond) // between two bursts the writer catches up
		}
		return nil
	})
	close(q)
	<-done
	v := Values{"lost": lost / sent, "delay_p50": quantile(delays, 0.5), "delay_p99": quantile(delays, 0.99)}
	if len(firsts) > 0 {
		v["first_refused"] = quantile(firsts, 0.5)
	}
	return v, err
}

// connection is a TCP connection of this machine with itself.
func connection() (near, far net.Conn, err error) {
	l, err := net.Listen("tcp", loopback.String())
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	near, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	if far, err = l.Accept(); err != nil {
		near.Close()
	}
	return near, far, err
}
