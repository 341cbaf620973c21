package centrifuge

import (
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A browser's EventSource sends back the last id that it has seen. On one channel that
// is the position of a message, in the bytes that all subscribers share. On several
// it has the client's position on each: they are delivered channel by channel, so that
// no single position says what was seen. Such an id starts with a hash of the
// channels' names, as it means nothing for others:
//
//	c1f83d9ab~ab3f-17~-~ab3f-12
//
// A part "-" is a channel without a log.

// maxIDChannels bounds the channels of an id; with more there is none.
const maxIDChannels = 32

// standings are the positions of an EventSource, by the hub's names of channels.
type standings map[string]hub.Position

func (st standings) hash() string {
	h := fnv.New32a()
	for _, ch := range slices.Sorted(maps.Keys(st)) {
		h.Write([]byte(ch))
		h.Write([]byte{0})
	}
	return "c" + strconv.FormatUint(uint64(h.Sum32()), 16)
}

// appendID appends the id line; nothing if there is none.
func (st standings) appendID(dst []byte) []byte {
	if len(st) == 0 || len(st) > maxIDChannels {
		return dst
	}
	if len(st) == 1 {
		for _, at := range st {
			if at.IsZero() {
				return dst
			}
			dst = at.AppendTo(append(dst, "id: "...))
		}
		return append(dst, '\n')
	}
	dst = append(append(dst, "id: "...), st.hash()...)
	for _, ch := range slices.Sorted(maps.Keys(st)) {
		dst = append(dst, '~')
		if at := st[ch]; at.IsZero() {
			dst = append(dst, '-')
		} else {
			dst = at.AppendTo(dst)
		}
	}
	return append(dst, '\n')
}

// resumeFrom has wants continue from the position in id.
func resumeFrom(id string, wants []subscribeOptions) {
	if id == "" || len(wants) == 0 {
		return
	}
	parts := []string{id}
	if len(wants) > 1 {
		st := standings{}
		for _, w := range wants {
			st[w.channel] = hub.Position{}
		}
		parts = strings.Split(id, "~")
		if parts[0] != st.hash() || len(parts) != len(wants)+1 {
			parts = nil
		} else {
			parts = parts[1:]
		}
	}
	order := make([]*subscribeOptions, len(wants))
	for i := range wants {
		order[i] = &wants[i]
	}
	slices.SortFunc(order, func(a, b *subscribeOptions) int { return strings.Compare(a.channel, b.channel) })
	for i, w := range order {
		if (w.flags|w.requested)&recoverable == 0 {
			continue
		}
		var at hub.Position
		err := hub.ErrBadPosition
		if parts != nil {
			if parts[i] == "-" {
				continue
			}
			at, err = hub.ParsePosition(parts[i])
		}
		w.recovering = true
		if err != nil {
			at = hub.Position{Epoch: unknownEpoch} // what was seen is not known: not recovered
		}
		w.since, w.check = protocol.Position{Epoch: at.Epoch, Offset: at.Offset}, at.Check
	}
}

// unknownEpoch is one that no log has.
const unknownEpoch = "-"

// advance notes what the client of an EventSource has been sent, and returns the id line
// to send before it.
func (r *sessionExtras) advance(m *hub.Message) []byte {
	if r == nil || r.positions == nil {
		return nil
	}
	if m.Offset != 0 {
		r.positions[m.Channel] = m.Position()
	}
	return r.positions.appendID(nil)
}

// standings returns the client's positions; nil if they are not needed.
func (s *session) standings() standings {
	if !s.kind().ids {
		return nil
	}
	r := s.ensureExtras()
	if r.positions == nil {
		r.positions = standings{}
	}
	return r.positions
}
