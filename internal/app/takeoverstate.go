package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/proxy"
)

// receive reads the connections until the old process has sent all, and returns the numbers
// of those that cannot continue here. To understand a frame takes longer than to read it, so the
// processors share them.
func (s *succession) receive() (refused []int, err error) {
	var frames []*understood
	var working sync.WaitGroup
	free := make(chan struct{}, sys.Processors())
	reader := s.reader()
	for {
		t, records, failed := s.parent.ReceiveConns()
		if err = failed; err != nil || t != takeover.Conns {
			break
		}
		f := s.frame(records)
		frames = append(frames, f)
		free <- struct{}{}
		working.Go(func() {
			f.understand(reader, records)
			<-free
		})
	}
	working.Wait()
	for _, f := range frames {
		refused = append(refused, s.addFrame(f)...)
	}
	if err == nil {
		refused = append(refused, s.receiveAll()...)
	}
	return refused, err
}

// frame is what will be known of records, the next that came.
func (s *succession) frame(records []takeover.Record) *understood {
	f := &understood{first: s.received}
	s.received += len(records)
	return f
}

// addFrame has what was understood of f wait for arrive, and returns the numbers of the others.
func (s *succession) addFrame(f *understood) (refused []int) {
	for _, i := range slices.Sorted(maps.Keys(f.refused)) {
		s.app.log.Warn("a connection stays with the old process", "err", f.refused[i])
		refused = append(refused, f.first+i)
	}
	s.add(f.list)
	return refused
}

// understood is what came of a frame of connections.
type understood struct {
	first   int // number of its first connection
	list    []arrival
	refused map[int]error // by their place in the frame
}

// understand reads records. The descriptors of what is refused are closed.
func (f *understood) understand(reader *stateReader, records []takeover.Record) {
	f.list = make([]arrival, 0, len(records))
	for i, r := range records {
		x, err := reader.understand(r)
		x.number = f.first + i
		if err == nil {
			f.list = append(f.list, x)
			continue
		}
		closeFiles(r.Files)
		if f.refused == nil {
			f.refused = map[int]error{}
		}
		f.refused[i] = err
	}
}

// A stateReader reads states of connections. Any goroutine.
type stateReader struct {
	*succession
	sessions map[string]socket.Reader
	streams  map[string]socket.SubscriptionReader
}

func (s *succession) reader() *stateReader {
	return &stateReader{succession: s, sessions: s.app.protocol.readers(), streams: s.app.protocol.streamReaders()}
}

// understand reads the state of a connection.
func (s *stateReader) understand(r takeover.Record) (x arrival, err error) {
	a := s.app
	if x.conn, err = eventloop.Import(r.State); err != nil {
		return x, err
	}
	files := &recordFiles{succession: s.succession, left: r.Files, loop: s.loop(x.conn.Loop)}
	if x.fd, err = files.socket(x.conn.Socket); err != nil {
		return x, err
	}
	x.socket = x.conn.Socket
	if tls := len(x.conn.Filter) > 0; tls != (a.tls != nil) {
		return x, fmt.Errorf("the listener speaks TLS: %v, and the connection: %v", a.tls != nil, tls)
	} else if tls {
		if x.filter, x.opened, err = a.tls.Restore(files.loop.ID(), x.conn.Filter); err != nil {
			return x, err
		}
	}
	h := handlerReader{stateReader: s, files: files}
	x.open, err = h.handler(x.conn)
	x.companions = files.companions
	if err == nil && len(files.left) > 0 {
		err = fmt.Errorf("%w: %d descriptors too many", takeover.ErrState, len(files.left))
	}
	return x, err
}

// recordFiles are the sockets of a connection and of those that come with it.
type recordFiles struct {
	*succession
	left       []int // descriptors of the record, in the order in which its state needs them
	loop       *eventloop.Loop
	companions []*arrivingSocket
}

// socket returns the socket of that number, plus 1, which came before the pause; 0: the next descriptor.
func (f *recordFiles) socket(n int) (fd int32, err error) {
	switch {
	case n == 0 && len(f.left) == 0, n > len(f.sockets):
		return -1, fmt.Errorf("%w: %d descriptors left for a connection, socket %d of %d", takeover.ErrState, len(f.left), n, len(f.sockets))
	case n == 0:
		fd, f.left = int32(f.left[0]), f.left[1:]
		return fd, nil
	case f.sockets[n-1].loop != f.loop:
		return -1, fmt.Errorf("%w: socket %d is another loop's, or not there", takeover.ErrState, n)
	case !atomic.CompareAndSwapUint32(&f.sockets[n-1].claimed, 0, 1):
		return -1, fmt.Errorf("%w: socket %d is another connection's", takeover.ErrState, n)
	}
	return f.sockets[n-1].fd, nil
}

// A handlerReader reads the states of a connection's handlers: its own, and those of what it carries.
type handlerReader struct {
	*stateReader
	files *recordFiles
}

// handler reads the state of a connection's handler and returns what makes it.
func (s *handlerReader) handler(m *eventloop.Moving) (h2.Open, error) {
	a := s.app
	switch m.Kind {
	case takeover.KindSSE, takeover.KindWebSocket, takeover.KindEvents:
		m.Quiet = true
		session, err := a.push.ReadState(m.Kind, m.State, s.streams)
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.push.Arrive(c, session) }, err
	case takeover.KindHTTP1:
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.front.Arrive(c, m.State, m.Timer) }, nil
	case takeover.KindHTTP2:
		if a.http2 == nil {
			return nil, errors.New("a connection of HTTP/2, which is switched off here (downstream.http2)")
		}
		x, err := a.http2.ReadState(m.State, s.stream)
		m.Quiet = err == nil && x.Quiet()
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.http2.Arrive(c, x, m.Timer) }, err
	case takeover.KindProtocol:
		x, err := a.push.ReadProtocol(m.State, s.sessions)
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.push.ArriveProtocol(c, x), nil }, err
	case takeover.KindTunnel:
		return s.tunnel(m)
	}
	return nil, fmt.Errorf("%w: a connection of kind %d is not known to this version", takeover.ErrState, m.Kind)
}

// stream is handler for a stream of HTTP/2.
func (s *handlerReader) stream(m *eventloop.Moving) (h2.Open, error) {
	open, err := s.handler(m)
	return func(c *eventloop.Conn) (eventloop.Handler, error) {
		s.app.admission.arrived(c)
		return open(c)
	}, err
}

// tunnel is handler for a tunnel, with which the connection to the backend comes.
func (s *handlerReader) tunnel(m *eventloop.Moving) (h2.Open, error) {
	w := &s.app.wing
	x, err := w.proxy.ReadState(m.State, s.files.loop.ID(), func(id takeover.State) (proxy.Identity, error) { return downstream.TunnelIdentity(s.app.auth, id) })
	if err != nil {
		return nil, err
	}
	backend := &arrivingSocket{socket: x.Backend.Socket}
	if backend.fd, err = s.files.socket(backend.socket); err != nil {
		return nil, err
	}
	s.files.companions = append(s.files.companions, backend)
	return func(c *eventloop.Conn) (eventloop.Handler, error) {
		backend.used = true
		return w.proxy.Arrive(c, x, backend.fd, w.upstreams.Cluster)
	}, nil
}
