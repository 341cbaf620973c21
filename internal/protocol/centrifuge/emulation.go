package centrifuge

import (
	"net/http"
	"slices"
	"sync"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// topicEmulate carries commands to the node that has the client.
const topicEmulate = "centrifuge.emulate"

// emulatedClients are those whose commands come by themselves, by their numbers. Any
// goroutine.
type emulatedClients struct {
	srv *Server // fixed at New

	mu sync.Mutex
	m  map[uint64]*session
}

func (e *emulatedClients) add(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.m == nil {
		e.m = map[uint64]*session{}
	}
	e.m[s.t.ID()] = s
}

func (e *emulatedClients) remove(s *session) {
	if s.flags&emulated == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.m, s.t.ID())
}

func (e *emulatedClients) get(number uint64) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.m[number]
}

// serve passes commands on to the client's connection, on whatever node.
func (e *emulatedClients) serve(r socket.Request) {
	s := e.srv
	if !admitPage(r) {
		return
	}
	enc := protocol.JSON
	if isBinary(r) {
		enc = protocol.Protobuf
	}
	m, err := protocol.ParseEmulation(r.Body(), enc)
	switch {
	case err != nil, len(m.Data) > s.conf().cfg.MaxCommand:
		r.Fail(&wire.Error{Status: http.StatusBadRequest, Message: "bad emulation request", Hint: "want session, node and data"})
		return
	case s.moved.session(m.Session) != nil && e.emulate(m.Session, m.Data): // m.Node is the process's that it came from
	case m.Node == s.node():
		if !e.emulate(m.Session, m.Data) {
			r.Fail(&wire.Error{Status: http.StatusNotFound, Message: "no such session"})
			return
		}
	default:
		if !e.elsewhere(m) {
			r.Fail(&wire.Error{Status: http.StatusNotFound, Message: "no such node"})
			return
		}
	}
	r.Answer(http.StatusNoContent, "", nil)
}

// emulate gives commands to the client of a session here.
func (e *emulatedClients) emulate(session string, data []byte) bool {
	s := e.srv
	c := s.moved.session(session)
	if number, ok := s.names.number(s.names.session, session); ok {
		c = e.get(number)
	}
	if c == nil {
		return false
	}
	data = slices.Clone(data)
	c.t.Post(func() { c.input(data) })
	return true
}

// elsewhere sends commands to another node that lives.
func (e *emulatedClients) elsewhere(m *protocol.Emulation) bool {
	s := e.srv
	if s.deps.Cluster == nil || !s.deps.Cluster.Alive(m.Node) {
		return false
	}
	err := s.deps.Bus.SendTo(m.Node, topicEmulate, m.AppendTo(nil, protocol.Protobuf))
	if err != nil {
		s.log.Debug("emulation", "node", m.Node, "err", err)
	}
	return err == nil
}

// received is called with commands that came to another node.
func (e *emulatedClients) received(_ string, data []byte) {
	if m, err := protocol.ParseEmulation(data, protocol.Protobuf); err == nil {
		e.emulate(m.Session, m.Data)
	}
}
