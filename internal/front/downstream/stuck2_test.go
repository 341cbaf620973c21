package downstream_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A client may open all the streams it is allowed and read none of them: what is kept for
// all of a connection's is bounded, not only for each. For each of 200 that is some 8 KiB, what one
// read brings (64 KiB at most), and with io_uring what came until the receive was canceled, the
// more the busier the machine: the kernel may fill 32 buffers of 8 KiB before it looks for other work,
// and that twice. Were each alone, it would be proxy.buffer, 1 MiB here, and that.
func TestUnreadStreamsShareABound(t *testing.T) {
	const streams = 200
	body := make([]byte, 4<<20)
	serve := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }
	one := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(one.Close)
	for protocol, addr := range map[string]string{"http1": one.Listener.Addr().String(), "http2": newBackend2(t, false, serve).addr()} {
		g := start(t, settings{proxy: proxy.Config{Buffer: 1 << 20}, cluster: upstream.Config{Protocol: protocol, Pool: upstream.PoolConfig{MaxPerPeer: streams}}, loops: oneLoop}, addr)
		conn, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(trial.Patience))
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		fr := http2.NewFramer(conn, conn)
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for i := range uint32(streams) {
			b.Reset()
			for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/"}} {
				_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: b.Bytes(), EndStream: true, EndHeaders: true})
		}
		for heads := 0; heads < streams; {
			f, err := fr.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := f.(*http2.HeadersFrame); ok {
				heads++
			}
		}
		kept, low := int64(0), 0
		defer func() { t.Logf("%s: %d KiB for each of %d streams", protocol, kept>>10, streams) }()
		// What the backend, in this process, has for each is among it, and is freed as the loop takes it; so it
		// is below the bound for good only after a while.
		trial.Eventually(t, protocol+": at most 600 KiB are kept for each stream", func() bool {
			if kept = (heap() - before) / streams; kept > 600<<10 {
				low = 0
			}
			low++
			<-time.After(100 * time.Millisecond)
			return low > 10
		})
	}
}
