package mercure

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// A locator finds the position of an id in the log. Any goroutine.
type locator struct {
	s      *Server                      // fixed in New
	cursor atomic.Pointer[hub.Position] // of the top of the log, just now
}

// A start is where a stream starts.
type start struct {
	options hub.SubscribeOptions // Since, All and SkipID
	// header is the id before the first update, as the client receives it; "" is omitted.
	header string
}

// fields report to the client where its stream starts.
func (f start) fields(d protocol.Dialect) []socket.Field {
	if f.header == "" {
		return nil
	}
	name := "Last-Event-ID"
	if d == protocol.Draft08 {
		name = "Mercure-Last-Event-ID"
	}
	return []socket.Field{{Name: name, Value: f.header}}
}

// resolve finds the place of an id in the log. An id may be a position or what a
// publisher gave; of one that was used again, the earliest use counts. One that is not
// there gets live updates only, and the client sees it by what it receives: of draft 07
// the id of the last update, if it is one that the client may see (read).
func (l *locator) resolve(ctx context.Context, id string, d protocol.Dialect, read *protocol.Set) (start, error) {
	if f, ok := l.resolveAtOnce(id); ok {
		return f, nil
	}
	top, err := l.s.deps.Hub.Top(ctx, l.s.conf().cfg.Namespace)
	if err != nil {
		return start{}, err
	}
	live := start{header: cursorOf(top)}
	if top.Epoch != "" {
		live.options.Since = hub.Positions{top}
	}
	if id == "" {
		if d == protocol.Draft07 {
			live.header = ""
		}
		return live, nil
	}
	if f, ok := startAt(id, top); ok {
		return f, nil
	}
	at, err := l.s.deps.Hub.Lookup(ctx, l.s.conf().cfg.Namespace, id)
	switch {
	case err == nil:
		return start{options: hub.SubscribeOptions{Since: hub.Positions{at}, SkipID: id}, header: id}, nil
	case !errors.Is(err, hub.ErrNoMessage) && !errors.Is(err, errors.ErrUnsupported):
		return start{}, err
	}
	l.s.counts.unknown.Add(1)
	if d == protocol.Draft08 {
		live.header = protocol.Earliest
		return live, nil
	}
	if last := l.last(ctx, top, read); last != "" {
		live.header = last
	}
	return live, nil
}

// last returns the id of the update that top is the place of; "" if it is not for who
// may read no more than read.
func (l *locator) last(ctx context.Context, top hub.Position, read *protocol.Set) string {
	h, err := l.s.deps.Hub.History(ctx, hub.Whole(l.s.conf().cfg.Namespace), hub.HistoryOptions{Limit: 1, Reverse: true})
	if err != nil || len(h.Messages) == 0 {
		return ""
	}
	m := h.Messages[0]
	v := &view{ns: l.s.conf().cfg.Namespace, read: read, access: l.s.deps.Access}
	switch a := m.Attributes; {
	case !m.Position().Same(top):
		return ""
	case v.hidden(m):
		return ""
	case a == nil:
	case a.ID != "":
		return a.ID
	}
	return top.String()
}

// startAt is resolve for an id that is a place in the log, of which the end is top.
func startAt(id string, top hub.Position) (f start, ok bool) {
	at, isCursor, ok := parseID(id)
	if !ok || at.Epoch != top.Epoch || at.Offset > top.Offset {
		return start{}, false
	}
	f.header = id
	switch {
	case at.Offset == 0:
		f.options.All = true
	case isCursor:
		f.options.Since = hub.Positions{at}
	default:
		f.options.Since, f.options.SkipID = hub.Positions{at}, id
	}
	return f, true
}

// resolveAtOnce is resolve for what needs no look into the log, which is most of a
// storm of clients that come again.
func (l *locator) resolveAtOnce(id string) (start, bool) {
	if id == protocol.Earliest {
		return start{options: hub.SubscribeOptions{All: true}, header: id}, true
	}
	top := l.cursor.Load()
	if top == nil {
		return start{}, false
	}
	return startAt(id, *top)
}

// cursorMark ends an id that says the log's position. It is not the id of the update
// there: that update may have been to several topics, of which the subscriber follows
// one whose copy comes after.
const cursorMark = "."

// cursorOf is the id of a place in the log.
func cursorOf(at hub.Position) string {
	if at.Epoch == "" || at.Offset == 0 {
		return protocol.Earliest
	}
	return at.String() + cursorMark
}

// parseID reads what cursorOf wrote, or the position that an update went by.
func parseID(id string) (at hub.Position, isCursor, ok bool) {
	id, isCursor = strings.CutSuffix(id, cursorMark)
	at, err := hub.ParsePosition(id)
	return at, isCursor, err == nil
}

// appendGap reports missing updates as Weir's own streams do.
func appendGap(g hub.Gap) []byte {
	b := sse.AppendType(nil, "gap")
	b = sse.AppendID(b, cursorOf(g.At))
	return sse.AppendEnd(sse.AppendData(b, wire.AppendGap(nil, "", g, "")))
}

// cursorEvery is how old the cursor of Link may be.
const cursorEvery = time.Second

// readCursor notes the log's position.
func (l *locator) readCursor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*cursorEvery)
	defer cancel()
	if top, err := l.s.deps.Hub.Top(ctx, l.s.conf().cfg.Namespace); err == nil {
		l.cursor.Store(&top)
	}
}

// Link returns the value of a Link field (RFC 8288) by which an answer of a backend
// says where updates of it are to be had, and from where on. It never waits. Ask for
// it before the backend is asked: the cursor is slightly old, so a client may see an
// update that the answer has already, but misses none. contentType is that of the
// updates, "" to leave it out.
func (s *Server) Link(contentType string) string {
	l := protocol.Link{Hub: s.conf().cfg.PublicURL, ContentType: contentType}
	l.Hub = cmp.Or(l.Hub, s.conf().cfg.Path)
	if at := s.ids.cursor.Load(); at != nil {
		l.LastID = cursorOf(*at)
	}
	return l.String()
}
