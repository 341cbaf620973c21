package hubhttp

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// hijacked answers on a connection that was taken from net/http and that no loop
// can have: its body ends with the connection.
type hijacked struct {
	nc     net.Conn
	buf    *bufio.Writer
	header http.Header
	wrote  bool
}

var _ http.ResponseWriter = (*hijacked)(nil)

func newHijacked(nc net.Conn, header http.Header) *hijacked {
	return &hijacked{nc: nc, buf: bufio.NewWriter(nc), header: header.Clone()}
}

// Header implements http.ResponseWriter.
func (w *hijacked) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *hijacked) WriteHeader(status int) {
	if w.wrote {
		return
	}
	w.wrote = true
	b := http1.AppendDate(http1.AppendStatusLine(nil, status), time.Now())
	w.header.Set("Connection", "close")
	for name, values := range w.header {
		for _, v := range values {
			b = http1.AppendField(b, name, v)
		}
	}
	_, _ = w.buf.Write(http1.AppendEnd(b)) // a failure stays with the writer
}

// Write implements http.ResponseWriter.
func (w *hijacked) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.buf.Write(b)
}

// FlushError is what http.ResponseController calls.
func (w *hijacked) FlushError() error { return w.buf.Flush() }

// SetWriteDeadline is what http.ResponseController calls.
func (w *hijacked) SetWriteDeadline(t time.Time) error { return w.nc.SetWriteDeadline(t) }
