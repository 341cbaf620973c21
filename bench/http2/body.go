package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
)

const block = 64 << 10 // bytes written at a time

// backend serves bodies: it discards those that come and sends as many bytes as the
// path says.
func backend(ctx context.Context) (addr string, stop func(), err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	piece := make([]byte, block)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, block))
			if err != nil || n != r.ContentLength && r.ContentLength >= 0 {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = fmt.Fprint(w, n) // the client judges
			return
		}
		n, _ := strconv.ParseInt(r.URL.Path[1:], 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		for ; n > 0; n -= block {
			if _, err := w.Write(piece[:min(n, block)]); err != nil {
				return
			}
		}
	})}
	go func() { _ = srv.Serve(l) }() // ended by stop
	return l.Addr().String(), func() { _ = srv.Close() }, nil
}

func (b *bench) upload(ctx context.Context, w way) (sample, error) {
	return b.body(ctx, w, func(c *conn, n int64) error {
		if c.h2 != nil {
			return c.upload2(n)
		}
		if _, err := fmt.Fprintf(c, "POST /up HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n", n); err != nil {
			return err
		}
		for piece := make([]byte, block); n > 0; n -= block {
			if _, err := c.Write(piece[:min(n, block)]); err != nil {
				return err
			}
		}
		return answered(c.r)
	})
}

func (b *bench) download(ctx context.Context, w way) (sample, error) {
	return b.body(ctx, w, func(c *conn, n int64) error {
		if c.h2 != nil {
			return c.download2(n)
		}
		if _, err := fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", n); err != nil {
			return err
		}
		res, err := http.ReadResponse(c.r, nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, block))
		if err == nil && (got != n || res.StatusCode != http.StatusOK) {
			err = fmt.Errorf("%s with %d of %d bytes", res.Status, got, n)
		}
		return err
	})
}

// body measures one large transfer on a connection that has had a small one.
func (b *bench) body(ctx context.Context, w way, transfer func(*conn, int64) error) (sample, error) {
	to, stop, err := backend(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	g, err := b.start(ctx, w, to)
	if err != nil {
		return nil, err
	}
	defer g.Kill()
	c, err := dial(ctx, g.addr, w, block)
	if err != nil {
		return nil, err
	}
	defer c.reset()
	if err := transfer(c, block); err != nil {
		return nil, fmt.Errorf("the first: %w", err)
	}
	before, err := g.usage()
	if err != nil {
		return nil, err
	}
	if err := transfer(c, int64(b.megabytes)*1_000_000); err != nil {
		return nil, err
	}
	after, err := g.usage()
	if err != nil {
		return nil, err
	}
	return sample{"cpu": (after.cpu - before.cpu).Seconds() * 1e3, "peak": max(0, after.peak-before.rss) / 1e6, "seconds": after.at.Sub(before.at).Seconds(),
		"others": othersPercent(before, after)}, nil
}

// upload2 sends a body as fast as the windows let it, in frames of the size that every
// server takes, some of them in one write.
func (c *conn) upload2(n int64) error {
	f := c.h2
	stream := f.begin()
	if err := http2.NewFramer(c, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: f.block(":method", "POST", ":scheme", "http",
		":path", "/up", ":authority", "127.0.0.1", "content-length", strconv.FormatInt(n, 10))}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := c.untilEnded()
		f.widen(func() { f.failed = errors.Join(err, io.EOF) })
		ended <- err
	}()
	var out bytes.Buffer
	fr, piece := http2.NewFramer(&out, nil), make([]byte, 16384)
	for sent := int64(0); sent < n; {
		k, err := f.take(int(min(block, n-sent)))
		if err != nil {
			return errors.Join(errors.New("answered before the body was complete"), <-ended)
		}
		out.Reset()
		for k > 0 {
			m := min(k, len(piece))
			k, sent = k-m, sent+int64(m)
			if err := fr.WriteData(stream, sent == n, piece[:m]); err != nil {
				return err
			}
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			return err
		}
	}
	return <-ended
}

// begin opens a stream that uploads or downloads alone.
func (f *frames) begin() uint32 {
	f.ended, f.data, f.answered = false, 0, 0
	f.widen(func() { f.stream, f.failed = f.initial, nil })
	return f.open()
}

func (c *conn) download2(n int64) error {
	f := c.h2
	if err := http2.NewFramer(c, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: f.begin(), EndHeaders: true, EndStream: true,
		BlockFragment: f.block(":method", "GET", ":scheme", "http", ":path", "/"+strconv.FormatInt(n, 10), ":authority", "127.0.0.1")}); err != nil {
		return err
	}
	if err := c.untilEnded(); err != nil {
		return err
	}
	if f.data != n {
		return fmt.Errorf("%d of %d bytes", f.data, n)
	}
	return nil
}

// untilEnded reads until the stream has ended.
func (c *conn) untilEnded() error {
	for !c.h2.ended {
		if err := c.step(); err != nil {
			return err
		}
	}
	return nil
}
