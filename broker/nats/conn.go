package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var errDisconnected = fmt.Errorf("%w: not connected to NATS", hub.ErrUnavailable)

// connect makes the one connection. It tries until ctx ends.
func (b *Broker) connect(ctx context.Context) error {
	for n := 0; ; n++ {
		nc, err := natsgo.Connect(b.cfg.URL, b.options()...)
		if err == nil {
			b.nc = nc
			b.up()
			break
		}
		if errors.Is(err, natsgo.ErrAuthorization) || !netError(err) {
			return fmt.Errorf("connect to %s: %w", b.cfg.URL, err)
		}
		b.waits("connect", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: connect to %s: %w; is the server running there?", hub.ErrUnavailable, b.cfg.URL, err)
		case <-time.After(retryAfter(n)):
		}
	}
	// Batched direct reads came with 2.11.
	if v := b.nc.ConnectedServerVersion(); older(v, 2, 11) {
		return fmt.Errorf("the NATS server at %s is version %s; 2.11 or newer is needed", b.cfg.URL, v)
	}
	return b.tryLongSubject()
}

// tryLongSubject finds out whether the servers take the longest line that a
// channel name can make. The servers do not announce their bound, and one that goes past it
// is disconnected for good.
func (b *connection) tryLongSubject() error {
	m := &natsgo.Msg{
		Subject: b.cfg.Prefix + ".probe." + strings.Repeat("x", maxToken+64), Reply: natsgo.NewInbox() + ".zzzzzzzzzzzzz",
		Header: natsgo.Header{headerKey: {"x"}},
	}
	err := b.nc.PublishMsg(m)
	if err == nil {
		err = b.nc.FlushTimeout(2 * time.Second)
	}
	if last := b.nc.LastError(); err != nil && last != nil && strings.Contains(strings.ToLower(last.Error()), "maximum control line") {
		return fmt.Errorf("the NATS server at %s refuses subjects as long as channel names may make them; "+
			"remove max_control_line from its configuration, or set it to 4096 or more", b.cfg.URL)
	}
	return nil // other troubles meet who comes next
}

// netError reports whether a server may just not be there yet, as opposed to
// options that cannot work.
func netError(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, natsgo.ErrNoServers) || errors.Is(err, natsgo.ErrTimeout) || errors.Is(err, io.EOF)
}

func older(version string, major, minor int) bool {
	var ma, mi int
	if _, err := fmt.Sscanf(version, "%d.%d", &ma, &mi); err != nil {
		return false // a build without a number: let it try
	}
	return ma < major || ma == major && mi < minor
}

// reconnectWait is how long to wait after all servers were tried, and as much again at random.
const reconnectWait = 100 * time.Millisecond

func (b *Broker) options() []natsgo.Option {
	o := []natsgo.Option{
		natsgo.Name("weir"),
		natsgo.MaxReconnects(-1),
		natsgo.ReconnectWait(reconnectWait),
		natsgo.ReconnectJitter(reconnectWait, reconnectWait),
		natsgo.ReconnectBufSize(-1), // nothing waits for a connection: it is answered at once
		// A server that is suspended or cut off closes nothing. It is left after three
		// pings without an answer, at the latest: of a cluster the pulse leaves it before.
		// Shorter times would also leave servers on machines that are only busy. One
		// that accepts and says nothing is passed over.
		natsgo.PingInterval(time.Second),
		natsgo.MaxPingsOutstanding(2),
		natsgo.FlusherTimeout(3 * time.Second),
		natsgo.Timeout(time.Second),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) { b.disconnected(err) }),
		natsgo.ReconnectHandler(func(nc *natsgo.Conn) { b.reconnected(nc) }),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			b.noteDenial(err)
			b.log.Debug("nats client", "err", err) // a full queue is seen and healed by the stream
		}),
	}
	if b.server != nil {
		return append(o, natsgo.InProcessServer(inProcess{b}))
	}
	c := b.cfg
	o = append(o, natsgo.SetCustomDialer(dialer{b}),
		natsgo.ReconnectToServer(func(servers []natsgo.Server, _ natsgo.ServerInfo) (*natsgo.Server, time.Duration) {
			return b.departures.next(servers, time.Now())
		}))
	if c.User != "" || c.Password != "" {
		o = append(o, natsgo.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		o = append(o, natsgo.Token(c.Token))
	}
	if c.Credentials != "" {
		o = append(o, natsgo.UserCredentials(c.Credentials))
	}
	if c.TLS.CA != "" {
		o = append(o, natsgo.RootCAs(c.TLS.CA))
	}
	if c.TLS.Cert != "" {
		o = append(o, natsgo.ClientCert(c.TLS.Cert, c.TLS.Key))
	}
	return o
}

// The dialers count connections before the client library reads from one. So
// a reader of a message of a new connection finds the generation changed.
type inProcess struct{ b *Broker }

func (p inProcess) InProcessConn() (net.Conn, error) {
	p.b.generation.Add(1)
	return p.b.server.srv.Load().InProcessConn()
}

type dialer struct{ b *Broker }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err == nil {
		d.b.generation.Add(1)
		d.b.socket.Store(&c)
	}
	return c, err
}

// disconnected answers what waits: whether it was stored is unknown.
func (b *Broker) disconnected(err error) {
	b.connected.Store(false)
	if l := b.link.Load(); l != nil {
		l.lost.CompareAndSwap(0, time.Now().UnixNano())
		l.cancel()
	}
	if b.ctx.Err() != nil {
		return
	}
	b.log.Warn("connection to NATS lost", "err", err)
	b.out.disconnected()
	b.reads.fail(errDisconnected)
}

// A link is the life of one connection.
type link struct {
	ctx    context.Context
	cancel context.CancelFunc
	lost   atomic.Int64 // Unix nanoseconds when it ended; 0 before
}

func (b *connection) up() {
	ctx, cancel := context.WithCancel(b.ctx)
	if before := b.link.Swap(&link{ctx: ctx, cancel: cancel}); before != nil {
		before.cancel()
	}
	b.connected.Store(true)
}

func (b *Broker) reconnected(nc *natsgo.Conn) {
	b.up()
	b.log.Info("connection to NATS made again", "url", nc.ConnectedUrlRedacted())
	if b.stateErr() != nil {
		return // still starting: streams is not ours to read
	}
	for _, s := range b.all() {
		s.storesAgain()
		s.nudge()
	}
}
