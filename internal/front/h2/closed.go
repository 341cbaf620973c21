package h2

import "slices"

// closedStreams are the streams of a connection that were closed lately. A client may
// send on one that we have closed until it knows that, which is not a mistake of the client's
// and is ignored (RFC 9113 §5.1); on one that it has ended itself it must not.
type closedStreams struct {
	stopped []uint32 // closed by us before the client ended them, the oldest first
	ended   []uint32 // the others
}

const (
	// endedMost is how many streams are remembered that both sides ended: only so that a
	// client which uses one again gets the exact code.
	endedMost = 32
	// stoppedMost is the same for those that the client may still send on. As many as it may
	// have open at a time may be stopped before it knows of the first.
	stoppedMost = 512
)

// add notes that a stream was closed. stopped: the client may not know.
func (l *closedStreams) add(id uint32, stopped bool) {
	list, most := &l.ended, endedMost
	if stopped {
		list, most = &l.stopped, stoppedMost
	}
	if len(*list) == most {
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, id)
}

// find reports whether stream id is known to be closed, and how.
func (l *closedStreams) find(id uint32) (stopped, ended bool) {
	return slices.Contains(l.stopped, id), slices.Contains(l.ended, id)
}

// trim returns what memory the lists do not need.
func (l *closedStreams) trim() {
	l.stopped, l.ended = slices.Clip(slices.Clone(l.stopped)), slices.Clip(slices.Clone(l.ended))
}
