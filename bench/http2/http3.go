package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// http3Conn is a connection of HTTP/3 and its SSE streams.
type http3Conn struct {
	quic    *quic.Conn
	client  *http3.ClientConn
	streams []*http3.RequestStream
}

// dialHTTP3 connects from a UDP port of its own.
func dialHTTP3(ctx context.Context, addr string) (*http3Conn, error) {
	q, err := quic.DialAddr(ctx, addr, ownTLS(http3.NextProtoH3), nil)
	if err != nil {
		return nil, err
	}
	return &http3Conn{quic: q, client: (&http3.Transport{DisableCompression: true}).NewClientConn(q)}, nil
}

// close ends the connection and its streams.
func (h *http3Conn) close() {
	_ = h.quic.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}

// subscribe opens n SSE streams and returns when all are answered.
func (h *http3Conn) subscribe(ctx context.Context, n int) error {
	for range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1/sse?channel=c", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "text/event-stream")
		s, err := h.client.OpenRequestStream(ctx)
		if err != nil {
			return err
		}
		h.streams = append(h.streams, s)
		if err := errors.Join(s.SetDeadline(time.Now().Add(patience)), s.SendRequestHeader(req)); err != nil {
			return err
		}
		_ = s.Close() // fails if the server has already refused the request: its answer says why
	}
	for _, s := range h.streams {
		res, err := s.ReadResponse() //nolint:bodyclose // its body is the stream, which close ends
		if err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("the answer is %q", res.Status)
		}
	}
	return nil
}

// count reads every stream until one ends, and calls on with the number of marks that
// came, from several goroutines.
func (h *http3Conn) count(on func(int)) error {
	ended := make(chan error, len(h.streams))
	for _, s := range h.streams {
		go func() { ended <- countMarks(s, on) }() // ended by close
	}
	return <-ended
}

func countMarks(r io.Reader, on func(int)) error {
	b := make([]byte, 4096)
	for {
		n, err := r.Read(b)
		on(bytes.Count(b[:n], []byte{mark}))
		if err != nil {
			return err
		}
	}
}
