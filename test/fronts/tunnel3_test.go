package fronts

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weir-gateway/weir/test/judge"
)

// tunnel3 is a stream of an HTTP/3 connection of its own, opened by extended CONNECT (RFC
// 9220), as a connection.
type tunnel3 struct {
	*http3.RequestStream
	q *quic.Conn
}

// connectHTTP3 is upgrade over HTTP/3.
func (c *client) connectHTTP3(target string) (net.Conn, string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	trust := judge.Trust(c.t, c.s.Authority)
	trust.NextProtos = []string{"h3"}
	q, err := quic.DialAddr(ctx, c.s.Public, trust, nil)
	if err != nil {
		return nil, "refused at accept"
	}
	t := &tunnel3{q: q}
	if t.RequestStream, err = (&http3.Transport{DisableCompression: true}).NewClientConn(q).OpenRequestStream(ctx); err != nil {
		_ = t.Close()
		return nil, "no answer"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodConnect, "https://"+c.s.Public+target, nil)
	if err != nil {
		c.t.Error(err)
		_ = t.Close()
		return nil, "no request"
	}
	req.Host, req.Proto = "site.example", "websocket"
	req.Header.Set("Sec-WebSocket-Version", "13")
	req.Header.Set("User-Agent", "") // none, as over the other versions
	_ = t.SetDeadline(time.Now().Add(10 * time.Second))
	if err := t.SendRequestHeader(req); err != nil {
		_ = t.Close()
		return nil, "no answer"
	}
	switch res, err := t.ReadResponse(); {
	case err != nil:
		_ = t.Close()
		return nil, "no answer"
	case res.StatusCode != http.StatusOK:
		_ = t.Close()
		return nil, "refused with " + strconv.Itoa(res.StatusCode)
	}
	return t, ""
}

// Close ends the connection.
func (t *tunnel3) Close() error {
	if t.RequestStream != nil {
		_ = t.RequestStream.Close()
	}
	return t.q.CloseWithError(0x100, "")
}

// LocalAddr implements net.Conn.
func (t *tunnel3) LocalAddr() net.Addr { return t.q.LocalAddr() }

// RemoteAddr implements net.Conn.
func (t *tunnel3) RemoteAddr() net.Addr { return t.q.RemoteAddr() }
