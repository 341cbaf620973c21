package websocket

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// AcceptOptions is what the server side of a handshake can choose. The zero value
// works.
type AcceptOptions struct {
	Config

	// Subprotocols are the ones this server speaks. None means that none is agreed.
	Subprotocols []string

	// CheckOrigin decides whether the page a browser runs may connect. nil means
	// SameOrigin: any other policy must be chosen, because browsers send cookies
	// along with a handshake from any page.
	CheckOrigin func(r *http.Request) bool
}

// Accept makes a WebSocket of a request. It takes the connection over from
// net/http, so the handler must close it before it returns (see Handler, which
// does). If the request is refused, Accept has answered it and returns a
// *HandshakeError.
func Accept(w http.ResponseWriter, r *http.Request, o AcceptOptions) (*Conn, error) {
	header := func(name string) []byte { return []byte(strings.Join(r.Header.Values(name), ",")) }
	key, err := CheckUpgrade(r.Method, r.ProtoMajor == 1 && r.ProtoMinor >= 1, header)
	if err == nil && !o.originAllowed(r) {
		err = errOrigin
	}
	if err != nil {
		answerRefusal(w, err)
		return nil, err
	}
	co := ConnOptions{Config: o.Config}
	co.Subprotocol = SelectSubprotocol(header("Sec-WebSocket-Protocol"), o.Subprotocols...)
	extensions := ""
	if co.Deflate {
		if co.Agreed, co.Deflate = NegotiateDeflate(header("Sec-WebSocket-Extensions")); co.Deflate {
			extensions = co.Agreed.String()
		}
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "connection can not be upgraded", http.StatusInternalServerError)
		return nil, fmt.Errorf("websocket: accept: %w", err)
	}
	if n := rw.Reader.Buffered(); n > 0 {
		co.Early, _ = rw.Reader.Peek(n)
	}
	c := NewConn(nc, co)
	_ = nc.SetDeadline(time.Time{}) // the server's deadlines are for requests
	_ = nc.SetWriteDeadline(time.Now().Add(c.cfg.WriteTimeout))
	if _, err := nc.Write(AppendHandshakeResponse(nil, key, extensions, co.Subprotocol)); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("websocket: accept: %w", err)
	}
	return c, nil
}

func (o *AcceptOptions) originAllowed(r *http.Request) bool {
	if o.CheckOrigin != nil {
		return o.CheckOrigin(r)
	}
	return SameOrigin([]byte(strings.Join(r.Header.Values("Origin"), ",")), []byte(r.Host))
}

// answerRefusal answers a request that CheckUpgrade or the origin check refused.
func answerRefusal(w http.ResponseWriter, err error) {
	var he *HandshakeError
	if !errors.As(err, &he) {
		he = &HandshakeError{http.StatusBadRequest, err.Error()}
	}
	switch he.Status {
	case http.StatusUpgradeRequired:
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Sec-WebSocket-Version", "13")
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodGet)
	}
	http.Error(w, he.Reason, he.Status)
}

// Handler serves each WebSocket with a call of serve and closes it afterwards: with
// CloseNormal if serve returns nil, with CloseInternal if it returns an error of
// its own or panics. The panic continues to net/http, which ends that one request
// with it; other connections do not notice.
func Handler(o AcceptOptions, serve func(ctx context.Context, c *Conn) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(w, r, o)
		if err != nil {
			return // answered
		}
		defer c.CloseNow()
		returned := false
		defer func() {
			if !returned {
				_ = c.Close(CloseInternal, "")
			}
		}()
		err = serve(r.Context(), c)
		returned = true
		code := CloseNormal
		if err != nil {
			code = CloseInternal
		}
		_ = c.Close(code, "") // says nothing more if the connection has ended
	})
}
