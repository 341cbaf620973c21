package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// receive reads the connections until the old process has sent all, and returns the numbers
// of those that cannot continue here. To understand a frame takes longer than to read it, so the
// processors share them.
func (s *succession) receive() (refused []int, err error) {
	var frames []*understood
	var working sync.WaitGroup
	free := make(chan struct{}, sys.Processors())
	reader := s.reader()
	number := 0
	for {
		records, more, failed := s.parent.ReceiveConns()
		if err = failed; err != nil || !more {
			break
		}
		f := &understood{first: number}
		frames = append(frames, f)
		number += len(records)
		free <- struct{}{}
		working.Go(func() {
			f.understand(reader, records)
			<-free
		})
	}
	working.Wait()
	for _, f := range frames {
		for _, i := range slices.Sorted(maps.Keys(f.refused)) {
			s.app.log.Warn("a connection stays with the old process", "err", f.refused[i])
			refused = append(refused, f.first+i)
		}
		s.add(f.list)
	}
	return refused, err
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
	switch n := x.conn.Socket; {
	case n == 0 && len(r.Files) == 1:
		x.fd = int32(r.Files[0])
	case len(r.Files) > 0 || n == 0 || n > len(s.sockets):
		return x, fmt.Errorf("%w: %d descriptors for a connection, socket %d of %d", takeover.ErrState, len(r.Files), n, len(s.sockets))
	case s.sockets[n-1].loop != s.loop(x.conn.Loop):
		return x, fmt.Errorf("%w: socket %d is another loop's, or not there", takeover.ErrState, n)
	default:
		x.fd, x.socket = s.sockets[n-1].fd, n
	}
	if tls := len(x.conn.Filter) > 0; tls != (a.tls != nil) {
		return x, fmt.Errorf("the listener speaks TLS: %v, and the connection: %v", a.tls != nil, tls)
	} else if tls {
		if x.filter, x.opened, err = a.tls.Restore(x.conn.Loop%len(a.loops.Loops()), x.conn.Filter); err != nil {
			return x, err
		}
	}
	x.open, err = s.handler(x.conn)
	return x, err
}

// handler reads the state of a connection's handler and returns what makes it.
func (s *stateReader) handler(m *eventloop.Moving) (h2.Open, error) {
	a := s.app
	switch m.Kind {
	case takeover.KindSSE, takeover.KindWebSocket, takeover.KindEvents:
		session, err := a.push.ReadState(m.Kind, m.State, s.streams)
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.push.Arrive(c, session) }, err
	case takeover.KindHTTP1:
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.front.Arrive(c, m.State, m.Timer) }, nil
	case takeover.KindHTTP2:
		if a.http2 == nil {
			return nil, errors.New("a connection of HTTP/2, which is switched off here (downstream.http2)")
		}
		x, err := a.http2.ReadState(m.State, s.stream)
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.http2.Arrive(c, x, m.Timer) }, err
	case takeover.KindProtocol:
		x, err := a.push.ReadProtocol(m.State, s.sessions)
		return func(c *eventloop.Conn) (eventloop.Handler, error) { return a.push.ArriveProtocol(c, x), nil }, err
	}
	return nil, fmt.Errorf("%w: a connection of kind %d is not known to this version", takeover.ErrState, m.Kind)
}

// stream is handler for a stream of HTTP/2.
func (s *stateReader) stream(m *eventloop.Moving) (h2.Open, error) {
	open, err := s.handler(m)
	return func(c *eventloop.Conn) (eventloop.Handler, error) {
		s.app.admission.arrived(c)
		return open(c)
	}, err
}
