package proxy

import (
	"bytes"
	"errors"
	"testing"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/websocket"
)

// FuzzReadState reads the state of a tunnel: what is accepted can be followed as a WebSocket, and is the
// same when it is written again.
func FuzzReadState(f *testing.F) {
	backend := takeover.State{}.MustBytes(9, []byte("input")).Uint(5, 7)
	head := frames{n: 3, head: [10]byte{0x82, 126, 1}, closing: true}
	s := takeover.State{}.MustBytes(tunnelFromClient, head.state()).MustBytes(tunnelFromBackend, (&frames{left: 1 << 40}).state())
	s = s.Uint(tunnelSilence, 1e9).String(tunnelCluster, "main").String(tunnelPeer, "127.0.0.1:80").Uint(tunnelBytes, 12)
	f.Add([]byte(s.MustUint(tunnelMarks, markWebSocket|markBackendPaused).MustBytes(tunnelBackend, backend)))
	f.Add([]byte(takeover.State{}.MustBytes(tunnelIdentity, []byte("who")).MustBytes(tunnelBackend, backend)))
	f.Add([]byte(takeover.State{}.MustUint(tunnelMarks, 64).MustBytes(tunnelBackend, backend)))
	p := &Proxy{tls: tlsterm.NewClient(1)}
	unknown := func(takeover.State) (Identity, error) { return nil, errors.New("not known here") }
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := p.ReadState(takeover.State(b), 0, unknown)
		if err != nil {
			return
		}
		if a.Backend == nil || a.silence < 0 || a.bytes < 0 || (a.filter != nil) != (len(a.Backend.Filter) > 0) {
			t.Fatalf("%x: %+v", b, a)
		}
		if a.frames == nil {
			return
		}
		for i := range a.frames {
			at := &a.frames[i]
			var again frames
			if err := again.read(at.state()); err != nil || again.left != at.left || again.closing != at.closing || !bytes.Equal(again.head[:again.n], at.head[:at.n]) {
				t.Fatalf("%x: %+v, written again %+v, %v", b, at, again, err)
			}
			at.advance(websocket.AppendFrame(nil, websocket.OpText, make([]byte, 300)), false)
		}
	})
}
