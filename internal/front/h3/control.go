package h3

import (
	"bufio"
	"errors"
	"io"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/weir-gateway/weir/internal/front/h2"
)

// openControl opens our control stream (RFC 9114 §6.2.1). QPACK's are not needed without a
// table (RFC 9204 §4.2).
func (h *conn) openControl() error {
	c, err := h.quic.OpenUniStream()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.control = c
	return c.TryWriteAll(appendSettings(nil, h.srv.cfg.Head.MaxHead))
}

// acceptUnidirectional takes the client's streams in one direction until the connection ends.
func (h *conn) acceptUnidirectional() {
	var seen [streamDecoder + 1]atomic.Bool
	for {
		q, err := h.quic.AcceptUniStream(h.srv.ended)
		if err != nil {
			return
		}
		h.srv.connections.Go(func() {
			var broken *connError
			if err := h.readOwn(q, seen[:]); errors.As(err, &broken) {
				h.fail(broken.code, broken.why)
			}
		})
	}
}

// readOwn reads a stream in one direction. It returns an error that ends the connection, or
// one that says that it has ended.
func (h *conn) readOwn(q *quic.ReceiveStream, seen []atomic.Bool) error {
	in := bufio.NewReaderSize(q, 64)
	kind, err := quicvarint.Read(in)
	switch {
	case err != nil:
		return nil // it belongs to no stream
	case kind == streamPush:
		return &connError{StreamCreationError, "a client does not push"}
	case kind > streamDecoder:
		q.CancelRead(quic.StreamErrorCode(StreamCreationError))
		return nil
	case seen[kind].Swap(true):
		return &connError{StreamCreationError, "a second stream of its kind"}
	}
	switch kind {
	case streamControl:
		err = h.readControl(frames{in})
	case streamEncoder:
		err = readEncoder(in)
	default: // what it acknowledges does not exist
		_, err = io.Copy(io.Discard, in)
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = &connError{ClosedCriticalStream, "a stream of the connection was closed"}
	}
	if e, ok := errors.AsType[*quic.StreamError](err); ok && e.Remote {
		err = &connError{ClosedCriticalStream, "a stream of the connection was reset"}
	}
	return err
}

// readEncoder reads QPACK's instructions: without a table there is nothing to say but that
// it stays empty (RFC 9204 §4.3.1).
func readEncoder(in *bufio.Reader) error {
	for {
		b, err := in.ReadByte()
		switch {
		case err != nil:
			return err
		case b != 0x20:
			return &connError{EncoderStreamError, "an entry for a table that does not exist"}
		}
	}
}

// readControl reads the client's control stream (RFC 9114 §7.2).
func (h *conn) readControl(f frames) error {
	for first := true; ; first = false {
		kind, length, err := f.next()
		switch {
		case err != nil:
			return err
		case first && kind != frameSettings:
			return &connError{MissingSettings, "the first frame is not SETTINGS"}
		case !first && kind == frameSettings, kind == frameData, kind == frameHeaders, kind == framePushPromise, kind == 0x2, kind == 0x6, kind == 0x8, kind == 0x9:
			return &connError{FrameUnexpected, "a frame that does not belong there"}
		case !first && !h.tolerate(kindOf(kind)):
			return errEnds
		case kind == frameSettings && length <= maxSettings:
			p, err := f.payload(nil, length)
			if err == nil {
				err = checkSettings(p)
			}
			if err != nil {
				return err
			}
			continue
		case kind == frameGoAway:
			h.loop.Post(h.leave)
		}
		if err := f.skip(length); err != nil {
			return err
		}
	}
}

// maxSettings bounds the payload of SETTINGS.
const maxSettings = 4 << 10

// kindOf is what a frame of the control stream counts as.
func kindOf(frame uint64) h2.Flood {
	if frame == framePriorityUpdate || frame == framePriorityPush {
		return h2.FloodPriority
	}
	return h2.FloodUnknown
}
