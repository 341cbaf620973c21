package stdhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"time"

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
			o.Kind = a.relay(ctx, peer, res, &o)
			o.End = x.f.deps.Now()
			c.Done(peer, o)
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
			a.failed(o.Kind)
			return
		}
	}
}

// again reports whether another attempt is made.
func (a *attempts) again(o *upstream.Outcome, made, status int, kind upstream.Kind) bool {
	max := a.choice.Cluster.Config().Retry.Attempts
	if n := a.x.Route.Config().Retry.Attempts; n != 0 {
		max = n + 1
	}
	if made >= max || kind == upstream.Canceled || status != 0 && status < 500 {
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
	case errors.As(err, &op) && op.Op == "dial":
		return upstream.ConnectError
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

var errSlow = errors.New("the upstream is too slow")

// failed answers a request that no peer has answered.
func (a *attempts) failed(kind upstream.Kind) {
	err := a.x.bodyFailed()
	switch {
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
	out, err := a.request(ctx, peer)
	if err != nil {
		return nil, err
	}
	if d := time.Duration(a.x.Route.Config().Timeouts.FirstByte); d > 0 {
		late := time.AfterFunc(d, a.slow)
		defer late.Stop()
	}
	return a.x.f.transport(a.choice.Cluster).RoundTrip(out)
}

func (a *attempts) slow() { a.cancel(errSlow) }

// request is what a peer is sent: the head that policy writes, read back by net/http.
func (a *attempts) request(ctx context.Context, peer *upstream.Peer) (*http.Request, error) {
	x := a.x
	f := policy.Framing{Length: -1, Host: peer.Address().String()}
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
	out = out.WithContext(context.WithValue(a.traced(ctx), peerKey{}, peer))
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host = "http", label(peer)
	out.Body, out.ContentLength = x.r.Body, x.r.ContentLength
	if x.held {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	}
	if out.ContentLength == 0 && x.Length != 0 {
		out.Body = nil
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // or the library would say it is the client
	}
	return out, nil
}

// traced passes interim replies on.
func (a *attempts) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if code == http.StatusContinue {
			return nil // net/http's own server sends it when the body is read
		}
		own := a.x.w.Header()
		before := own.Clone()
		for name, values := range h {
			own[name] = values
		}
		a.x.w.WriteHeader(code)
		clear(own)
		for name, values := range before {
			own[name] = values
		}
		return nil
	}})
}

type peerKey struct{}

// label is a host name that stands for the address of peer, so that connections
// to different peers are never mixed up.
func label(peer *upstream.Peer) string {
	return "p" + strconv.FormatUint(upstream.HashString(peer.Address().String()), 36) + ".invalid"
}

// transport returns the connections to c.
func (f *Front) transport(c *upstream.Cluster) *http.Transport {
	if t, ok := f.transports.Load(c); ok {
		return t.(*http.Transport) //nolint:forcetypeassert // nothing else is stored
	}
	cfg := c.Config()
	d := &net.Dialer{Timeout: time.Duration(cfg.Timeouts.Connect)}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			peer, _ := ctx.Value(peerKey{}).(*upstream.Peer)
			at := peer.Address()
			if at.IsUnix() {
				return d.DialContext(ctx, "unix", at.Unix)
			}
			return d.DialContext(ctx, "tcp", at.IP.String())
		},
		DisableCompression: true, ResponseHeaderTimeout: time.Duration(cfg.Timeouts.FirstByte), IdleConnTimeout: time.Duration(cfg.Pool.IdleTimeout),
		MaxIdleConnsPerHost: max(cfg.Pool.MaxIdle, 1), MaxConnsPerHost: cfg.Pool.MaxPerPeer, DisableKeepAlives: cfg.Pool.MaxIdle < 0,
		ExpectContinueTimeout: time.Second,
	}
	got, _ := f.transports.LoadOrStore(c, t)
	return got.(*http.Transport) //nolint:forcetypeassert // nothing else is stored
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
		x.out.Status = 0
		x.fail(&wire.Error{Status: http.StatusBadGateway, Message: "the upstream's answer could not be understood"})
		return upstream.Reset
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return a.tunnel(res)
	}
	x.w.WriteHeader(res.StatusCode)
	kind := a.copy(ctx, res, o)
	if kind == upstream.OK {
		for name, values := range res.Trailer {
			x.w.Header()[http.TrailerPrefix+name] = values
		}
		return kind
	}
	if kind != upstream.Canceled {
		panic(http.ErrAbortHandler) // the client must not take it for whole
	}
	return kind
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
	stream := res.ContentLength < 0
	idle := time.Duration(a.choice.Cluster.Config().Timeouts.Idle)
	if d := time.Duration(a.x.Route.Config().Timeouts.Idle); d > 0 {
		idle = d
	}
	silence := time.AfterFunc(idle, a.slow)
	defer silence.Stop()
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		o.Bytes += int64(n)
		a.x.out.BytesOut += int64(n)
		if n > 0 {
			silence.Reset(idle)
			_ = rc.SetWriteDeadline(time.Now().Add(30 * time.Second)) // not every writer has one
			if _, werr := a.x.w.Write(buf[:n]); werr != nil {
				return upstream.Canceled
			}
			if stream && rc.Flush() != nil {
				return upstream.Canceled
			}
		}
		switch {
		case errors.Is(err, io.EOF):
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
	out, err := m.request(ctx, peer)
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
