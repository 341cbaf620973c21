package stdhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/policy"
	"github.com/weir-gateway/weir/internal/upstream"
	"github.com/weir-gateway/weir/internal/wire"
)

// maxMirrors bounds the copies under way; one more is not sent.
const maxMirrors = 256

// attempts is one request at a cluster.
type attempts struct {
	x       *exchange
	choice  upstream.Choice
	upgrade string
	key     uint64
	tried   upstream.Tried
	cancel  context.CancelCauseFunc
	begun   bool // the reply's head was written
	hinted  bool // an interim reply was passed on: there is no other attempt
	gone    bool // the client left while an interim reply was written: see interim
}

// run asks peers until one answers.
func (a *attempts) run(ctx context.Context) {
	x, c := a.x, a.choice.Cluster
	for made := 1; ; made++ {
		start := x.f.deps.Now()
		peer, err := c.Pick(start, a.key, &a.tried)
		if err != nil {
			x.fail(&wire.Error{Status: http.StatusServiceUnavailable, Message: "no upstream is available"})
			return
		}
		x.out.Upstream, x.out.Retries = peer.Address().String(), made-1
		o := upstream.Outcome{Start: start, Split: a.choice.Split, Arm: a.choice.Arm}
		res, err := a.ask(ctx, peer)
		if err == nil && !a.again(&o, made, res.StatusCode, upstream.OK) {
			a.answer(ctx, peer, res, &o)
			return
		}
		if err == nil {
			_ = res.Body.Close() // another peer is asked
			o.Status = res.StatusCode
		} else {
			o.Kind = kindOf(ctx, err)
			if x.bodyFailed() != nil {
				o.Kind = upstream.Canceled // the client's fault
			}
		}
		o.End = x.f.deps.Now()
		c.Done(peer, o)
		if err != nil && !a.again(&o, made, 0, o.Kind) {
			a.failed(ctx, o.Kind)
			return
		}
	}
}

// answer relays the reply and tells the cluster how that ended, whatever happens. A
// reply that is not whole ends the stream, so that the client does not take it for
// whole.
func (a *attempts) answer(ctx context.Context, peer *upstream.Peer, res *http.Response, o *upstream.Outcome) {
	o.Kind = upstream.Canceled
	defer func() {
		o.End = a.x.f.deps.Now()
		a.choice.Cluster.Done(peer, *o)
	}()
	kind := a.relay(ctx, peer, res, o)
	if o.Kind = kind; kind != upstream.OK && kind != upstream.Canceled && a.begun {
		panic(http.ErrAbortHandler)
	}
}

// again reports whether another attempt is made.
func (a *attempts) again(o *upstream.Outcome, made, status int, kind upstream.Kind) bool {
	max := a.choice.Cluster.Config().Retry.Attempts
	if n := a.x.Route.Config().Retry.Attempts; n != 0 {
		max = n + 1
	}
	if made >= max || a.hinted || kind == upstream.Canceled || status != 0 && status < 500 {
		return false
	}
	failed := *o
	failed.Kind, failed.Status = kind, status
	return a.choice.Cluster.MayRetry(a.x.f.deps.Now(), upstream.Attempt{Outcome: failed, Made: made, Idempotent: idempotent(a.x.r.Method),
		Replayable: a.x.held || a.x.r.ContentLength == 0})
}

func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE": // RFC 9110 §9.2.2
		return true
	}
	return false
}

// kindOf is what an error means for the peer.
func kindOf(ctx context.Context, err error) upstream.Kind {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, errInsecure):
		return upstream.ConnectError
	case errors.Is(context.Cause(ctx), errBusy):
		return upstream.Canceled // nothing was asked of the peer
	case errors.Is(context.Cause(ctx), errSlow), isTimeout(err):
		return upstream.Timeout
	case ctx.Err() != nil:
		return upstream.Canceled
	}
	return upstream.Reset
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

var (
	errSlow = errors.New("the upstream is too slow")
	errBusy = errors.New("no connection became free in time")
	errAway = errors.New("the stream is ended by a drain")
)

// failed answers a request that no peer has answered.
func (a *attempts) failed(ctx context.Context, kind upstream.Kind) {
	err := a.x.bodyFailed()
	switch {
	case a.gone:
		a.x.out.Status = 499
	case errors.Is(context.Cause(ctx), errBusy):
		a.x.fail(&wire.Error{Status: http.StatusServiceUnavailable, Message: "the upstreams are overloaded, try again later"})
	case err != nil:
		a.x.w.Header().Set("Connection", "close")
		a.x.fail(bodyError(err))
	case kind == upstream.Canceled:
		a.x.out.Status = 499 // the client left: nobody to answer
	case kind == upstream.Timeout:
		a.x.fail(&wire.Error{Status: http.StatusGatewayTimeout, Message: "the upstream did not answer in time"})
	default:
		a.x.fail(&wire.Error{Status: http.StatusBadGateway, Message: "the upstream did not answer"})
	}
}

// ask sends the request to peer and waits for the head of its reply.
func (a *attempts) ask(ctx context.Context, peer *upstream.Peer) (*http.Response, error) {
	cfg := a.choice.Cluster.Config()
	busy := time.AfterFunc(time.Duration(cfg.Pool.PendingTimeout+cfg.Timeouts.Connect), func() { a.cancel(errBusy) })
	defer busy.Stop()
	i := &interim{a: a}
	out, err := a.request(ctx, peer, &httptrace.ClientTrace{
		GotConn:        func(info httptrace.GotConnInfo) { busy.Stop(); a.got(info) },
		Got1xxResponse: i.pass,
	})
	if err != nil {
		return nil, err
	}
	if d := time.Duration(a.x.Route.Config().Timeouts.FirstByte); d > 0 {
		late := time.AfterFunc(d, a.slow)
		defer late.Stop()
	}
	res, err := a.x.f.transport(a.choice.Cluster).RoundTrip(out)
	a.gone = i.end()
	a.hinted = a.hinted || i.passed
	if a.gone && err == nil {
		_ = res.Body.Close() // for nobody
		return nil, context.Canceled
	}
	return res, err
}

// got tells the connection what is asked on it.
func (a *attempts) got(info httptrace.GotConnInfo) {
	if c, ok := info.Conn.(*strict); ok {
		c.ask(a.x.r.Method, a.upgrade)
	}
}

func (a *attempts) slow() { a.cancel(errSlow) }

// request is what a peer is sent: the head that policy writes, read back by net/http.
func (a *attempts) request(ctx context.Context, peer *upstream.Peer, trace *httptrace.ClientTrace) (*http.Request, error) {
	x := a.x
	f := policy.Framing{Length: -1, Host: peer.Host()}
	switch {
	case x.r.ContentLength > 0 || x.Length == 0:
		f.Length = x.r.ContentLength
	case x.r.ContentLength < 0:
		f.Chunked = true
	}
	f.Trailers = f.Chunked
	if a.upgrade != "" {
		f.Upgrade = []byte(a.upgrade)
	}
	head := x.Route.AppendRequestHead(nil, &x.Exchange, f)
	out, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return nil, err
	}
	to := a.destination(peer)
	out = out.WithContext(context.WithValue(httptrace.WithClientTrace(ctx, trace), destination{}, to))
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host = "http", to.label()
	out.Body, out.ContentLength = x.r.Body, x.r.ContentLength
	if x.held {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
		out.Body, _ = out.GetBody()
		out.ContentLength = int64(len(x.body))
	}
	if out.ContentLength == 0 && x.Length != 0 {
		out.Body, out.GetBody = nil, nil
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // or the library would say it is the client
	}
	return out, nil
}

// interim passes interim replies on, as long as the final one is waited for: the
// transport tells of them on a goroutine of its own.
type interim struct {
	a *attempts

	mu   sync.Mutex // guards what is below, and the answer's header until over
	over bool
	// passed: at least one went to the client.
	passed bool
	// gone: the client left while a reply was written. HTTP/2 may be reading the
	// header still, on a goroutine that nobody waits for: it must not be touched again.
	gone bool
}

func (i *interim) end() (gone bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	return i.gone
}

func (i *interim) pass(code int, h textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over || i.gone || code == http.StatusContinue { // net/http's own server sends that when the body is read
		return nil
	}
	i.passed = true
	own := i.a.x.w.Header()
	before := own.Clone()
	clear(own)
	for name, values := range h {
		if !ofThisHop(name) && !http1.HasToken([]byte(strings.Join(h["Connection"], ",")), name) {
			own[name] = values
		}
	}
	i.a.x.w.WriteHeader(code)
	if i.a.x.r.Context().Err() != nil {
		i.gone = true
		return nil
	}
	clear(own)
	maps.Copy(own, before)
	return nil
}

// ofThisHop reports whether a field concerns one connection only (RFC 9110 §7.6.1).
func ofThisHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length":
		return true
	}
	return false
}

// A transport is the connections to a cluster, as it was configured when they were made.
type transport struct {
	*http.Transport
	pool     upstream.PoolConfig
	timeouts upstream.TimeoutConfig
	proxy    int
	tls      *upstream.TLS
}

func (t *transport) fits(cfg *upstream.Config, tls *upstream.TLS) bool {
	return t.pool == cfg.Pool && t.timeouts == cfg.Timeouts && t.proxy == cfg.ProxyProtocol && t.tls == tls
}

// transport returns the connections to c.
func (f *Front) transport(c *upstream.Cluster) *http.Transport {
	cfg, secure := c.Config(), c.TLS()
	old, there := f.transports.Load(c)
	if t, _ := old.(*transport); there && t.fits(cfg, secure) {
		return t.Transport
	}
	d := &net.Dialer{Timeout: time.Duration(cfg.Timeouts.Connect)}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			to, ok := ctx.Value(destination{}).(destination)
			if !ok {
				return nil, errors.New("a connection for nobody")
			}
			nc, err := to.dial(ctx, d)
			if err != nil {
				return nil, err
			}
			s := &strict{Conn: nc, limits: f.cfg.Reply}
			if to.peer.Address().TLS {
				s.refused = to.refused
			}
			return s, nil
		},
		DisableCompression: true, ResponseHeaderTimeout: time.Duration(cfg.Timeouts.FirstByte), IdleConnTimeout: time.Duration(cfg.Pool.IdleTimeout),
		MaxIdleConnsPerHost: max(cfg.Pool.MaxIdle, 1), MaxConnsPerHost: cfg.Pool.MaxPerPeer, DisableKeepAlives: cfg.Pool.MaxIdle < 0,
		ExpectContinueTimeout: time.Second,
	}
	if cfg.ProxyProtocol != 0 { // a client's are kept apart, and its end is not told
		t.MaxIdleConns = cfg.Pool.MaxPerPeer
	}
	made := &transport{t, cfg.Pool, cfg.Timeouts, cfg.ProxyProtocol, secure}
	if !there {
		got, _ := f.transports.LoadOrStore(c, made)
		return got.(*transport).Transport //nolint:forcetypeassert // nothing else is stored
	}
	if f.transports.CompareAndSwap(c, old, made) {
		old.(*transport).CloseIdleConnections() //nolint:forcetypeassert // as above
	}
	return made.Transport
}

// forget closes the connections to clusters that are gone.
func (f *Front) forget() {
	f.transports.Range(func(c, t any) bool {
		cluster, transport := c.(*upstream.Cluster), t.(*transport) //nolint:forcetypeassert // nothing else is stored
		if f.deps.Upstreams == nil || f.deps.Upstreams.Cluster(cluster.Config().Name) != cluster {
			f.transports.Delete(c)
			transport.CloseIdleConnections()
		}
		return true
	})
}

// relay passes the reply on. It returns how it ended for the peer.
func (a *attempts) relay(ctx context.Context, peer *upstream.Peer, res *http.Response, o *upstream.Outcome) upstream.Kind {
	x := a.x
	defer func() { _ = res.Body.Close() }() // read, or given up
	now := x.f.deps.Now()
	o.Status, o.FirstByte, o.Headed = res.StatusCode, now, true
	a.choice.Cluster.Head(peer, o.Start, now, res.StatusCode)
	x.out.Status, x.out.FirstByteNS = res.StatusCode, now-x.begin
	if !a.head(res) {
		x.out.Status = 0 // until it is answered
		x.fail(&wire.Error{Status: http.StatusBadGateway, Message: "the upstream's answer could not be understood"})
		return upstream.Reset
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return a.tunnel(res)
	}
	a.begun = true
	x.w.WriteHeader(res.StatusCode)
	kind := a.copy(ctx, res, o)
	if kind == upstream.OK {
		for name, values := range res.Trailer {
			if mayTrail(name) {
				x.w.Header()[http.TrailerPrefix+name] = values
			}
		}
	}
	return kind
}

// mayTrail reports whether a field may stand in the trailer of what goes on: it must
// not say how the message is framed, kept or read, nor speak for us (RFC 9110 §6.5.1).
func mayTrail(name string) bool {
	name = http.CanonicalHeaderKey(name)
	for _, p := range [...]string{"X-Weir-", "Access-Control-", "Grip-", "Weir-"} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	switch name {
	case "Set-Cookie", "Location", "Vary", "Age", "Date", "Expires", "Etag", "Last-Modified", "Retry-After", "Strict-Transport-Security", "Forwarded", "Via", "Upgrade":
		return false
	}
	return !ofThisHop(name) && httpguts.ValidTrailerHeader(name)
}

// head puts the reply's head, as policy writes it, into the answer's header.
func (a *attempts) head(res *http.Response) bool {
	x := a.x
	f := policy.Framing{Length: -1}
	if res.StatusCode == http.StatusSwitchingProtocols {
		f.Upgrade = []byte(res.Header.Get("Upgrade"))
	}
	b := x.Route.AppendResponseHead(nil, &x.Exchange, res.StatusCode, fieldsOf(res.Header), f)
	var parsed http1.Response
	if n, err := http1.ParseResponse(&parsed, b, http1.Limits{MaxLine: 64 << 10, MaxHead: 128 << 10, MaxFields: 1000}, x.r.Method); err != nil || n == 0 {
		return false
	}
	h := x.w.Header()
	for _, f := range parsed.Fields {
		if !http1.EqualFold(f.Name, "Transfer-Encoding") {
			h.Add(string(f.Name), string(f.Value))
		}
	}
	if res.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(res.ContentLength, 10))
	}
	return true
}

// copy passes the body on as it comes, each piece at once when its length is not
// known: that is a stream.
func (a *attempts) copy(ctx context.Context, res *http.Response, o *upstream.Outcome) upstream.Kind {
	rc := http.NewResponseController(a.x.w)
	endless := res.ContentLength < 0
	idle := time.Duration(a.choice.Cluster.Config().Timeouts.Idle)
	if d := time.Duration(a.x.Route.Config().Timeouts.Idle); d > 0 {
		idle = d
	}
	silence := time.AfterFunc(idle, a.slow)
	defer silence.Stop()
	// A deadline that is left behind would end a stream of HTTP/2 that only rests.
	bound := func(d time.Duration) {
		var by time.Time
		if d > 0 {
			by = time.Now().Add(d)
		}
		_ = rc.SetWriteDeadline(by) // not every writer has one
	}
	var follow *stream
	if endless {
		follow = a.follow(res)
		defer a.x.f.streams.leave(follow)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		n, ends := follow.take(buf[:n])
		o.Bytes += int64(n)
		a.x.out.BytesOut += int64(n)
		if n > 0 {
			silence.Reset(idle)
			bound(a.x.f.cfg.WriteStall)
			if _, werr := a.x.w.Write(buf[:n]); werr != nil {
				return upstream.Canceled
			}
			if endless && rc.Flush() != nil {
				return upstream.Canceled
			}
			bound(0)
		}
		switch {
		case ends, errors.Is(context.Cause(ctx), errAway):
			if last := a.x.f.streams.last(follow); last != nil {
				bound(a.x.f.cfg.WriteStall)
				_, _ = a.x.w.Write(last) // the client may be gone
			}
			return upstream.Canceled
		case errors.Is(err, io.EOF):
			bound(a.x.f.cfg.WriteStall) // for what net/http still holds
			return upstream.OK
		case a.x.r.Context().Err() != nil:
			return upstream.Canceled
		case err != nil && ctx.Err() != nil:
			return upstream.Timeout
		case err != nil:
			return upstream.Reset
		}
	}
}

// tunnel joins client and upstream after 101.
func (a *attempts) tunnel(res *http.Response) upstream.Kind {
	up, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return upstream.Reset
	}
	down, rw, err := http.NewResponseController(a.x.w).Hijack()
	if err != nil {
		return upstream.Canceled
	}
	defer func() { _ = down.Close() }()
	b := http1.AppendStatusLine(nil, http.StatusSwitchingProtocols)
	for _, f := range fieldsOf(a.x.w.Header()) {
		b = http1.AppendField(b, f.Name, f.Value)
	}
	if _, err := down.Write(http1.AppendEnd(b)); err != nil {
		return upstream.Canceled
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(up, rw.Reader) // its end is the tunnel's
		_ = up.Close()
	}()
	_, _ = io.Copy(down, up) // its end is the tunnel's
	_ = down.Close()
	<-ended
	return upstream.OK
}

// mirror sends a copy to another cluster, whose reply nobody sees.
func (a *attempts) mirror(c *upstream.Cluster) {
	if !a.x.held && a.x.r.ContentLength != 0 {
		return // too long to be kept
	}
	select {
	case a.x.f.mirrors <- struct{}{}:
	default:
		return
	}
	m := &attempts{x: a.x, choice: upstream.Choice{Cluster: c}, key: a.key}
	start := a.x.f.deps.Now()
	peer, err := c.Pick(start, a.key, nil)
	if err != nil {
		<-a.x.f.mirrors
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.x.r.Context()), 30*time.Second)
	out, err := m.request(ctx, peer, &httptrace.ClientTrace{GotConn: m.got}) // its interim replies are nobody's
	go func() {
		defer func() { <-a.x.f.mirrors }()
		defer cancel()
		o := upstream.Outcome{Start: start, Kind: upstream.Reset}
		if err == nil {
			var res *http.Response
			if res, err = a.x.f.transport(c).RoundTrip(out); err == nil {
				_, _ = io.Copy(io.Discard, res.Body) // to have the connection back
				_ = res.Body.Close()
				o.Kind, o.Status = upstream.OK, res.StatusCode
			}
		}
		o.End = a.x.f.deps.Now()
		c.Done(peer, o)
	}()
}
