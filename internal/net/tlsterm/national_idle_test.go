package tlsterm

import (
	"net"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// An idle connection of the national standards is its keys and a small struct, as one of
// modern TLS is. The client's side is a descriptor only: its keys are dropped after one
// round trip.
func TestIdleNationalConnectionsAreSmall(t *testing.T) {
	const n, warm, limit = 200, 150, 2500
	names := map[string]bool{"ECC_SM4_GCM_SM3": true, "TLS_SM4_GCM_SM3": true}
	chain := newNational(t)
	for _, suite := range gm.Suites {
		if !names[suite.Name] {
			continue
		}
		delete(names, suite.Name)
		t.Run(suite.Name, func(t *testing.T) {
			s := serveGM(t, chain.config())
			ask := chain.requests(suite)
			ask.Pair = nil
			idleClients(t, s, ask, warm) // what is made once, and ciphers that stay ready
			before, routines := liveBytes(), runtime.NumGoroutine()
			conns := idleClients(t, s, ask, n)
			each := (int64(liveBytes()) - int64(before)) / n
			t.Logf("%d bytes each with the client's descriptor", each)
			if each > limit {
				t.Errorf("%d bytes each, want at most %d", each, limit)
			}
			if more := runtime.NumGoroutine() - routines; more > n/10 {
				t.Errorf("%d goroutines more for %d connections", more, n)
			}
			runtime.KeepAlive(conns)
		})
	}
	if len(names) > 0 {
		t.Errorf("not measured: %v", names)
	}
}

// idleClients returns n connections of clients that had one reply each.
func idleClients(t *testing.T, s *server, cfg *gm.ClientConfig, n int) (conns []net.Conn) {
	t.Helper()
	for range n {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
		c, err := gm.DialStream(raw, cfg)
		if err != nil {
			t.Fatalf("handshake: %v", err)
		}
		roundTrip(t, c, text(100))
		_ = raw.SetDeadline(time.Time{}) // its timer is the client's
		conns = append(conns, raw)
	}
	return conns
}

// liveBytes is what of the heap is in use, and the stacks.
func liveBytes() uint64 {
	runtime.GC() // FreeOSMemory collects again: only then is what pools kept gone
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
