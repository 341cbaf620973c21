package downstream

import (
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A mirror is the copy of a request that goes to another cluster. No client sees its
// reply. It gets the body as it comes; a cluster that takes it more slowly than the
// real one is given up, as nothing is kept for it.
type mirror struct {
	x     *proxy.Exchange // nil: it is over
	whole bool            // it has the whole request: the client is not needed any more
}

var _ proxy.Sink = (*mirror)(nil)

func (r *forwarding) startMirror(to *upstream.Cluster, of *proxy.Exchange) {
	m := &mirror{}
	x := r.h.loopState.srv.proxy.LoopState(r.c.Loop()).Exchange(m)
	head := append(x.Head, of.Head...)
	x.Call = of.Call
	x.Head, x.Cluster, x.Split, x.Expect, x.Upgrade, x.Attempts = head, to, nil, of.Expect, "", -1
	m.x, r.mirror = x, m
	m.whole = !x.Chunked && x.Length <= 0
	x.Start()
}

func (m *mirror) body(b []byte) {
	if x := m.x; x != nil {
		if x.Body(b); m.x == x && x.Full() {
			m.x = nil
			x.Cancel()
		}
	}
}

func (m *mirror) end(trailer []byte) {
	m.whole = true
	if m.x != nil {
		m.x.End(trailer)
	}
}

// drop gives up a copy of which the rest will not come: its exchange would wait for
// that as long as the peer does.
func (m *mirror) drop() {
	if x := m.x; x != nil && !m.whole {
		m.x = nil
		x.Cancel()
	}
}

// Interim implements proxy.Sink.
func (m *mirror) Interim(*proxy.Exchange, *http1.Response) {}

// Head implements proxy.Sink.
func (m *mirror) Head(*proxy.Exchange, *http1.Response) {}

// Body implements proxy.Sink.
func (m *mirror) Body(*proxy.Exchange, []byte) bool { return false }

// End implements proxy.Sink.
func (m *mirror) End(*proxy.Exchange, []byte) { m.x = nil }

// Fail implements proxy.Sink.
func (m *mirror) Fail(*proxy.Exchange, *proxy.Error) { m.x = nil }

// Room implements proxy.Sink.
func (m *mirror) Room(*proxy.Exchange) {}

// Switch implements proxy.Sink; a copy does not upgrade.
func (m *mirror) Switch(*proxy.Exchange, *http1.Response) *eventloop.Conn { return nil }
