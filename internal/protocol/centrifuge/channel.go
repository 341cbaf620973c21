package centrifuge

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// namespace is what is known of a namespace of the hub.
type namespace struct {
	Namespace
	name  string
	regex *regexp.Regexp // nil: any name
	log   bool           // it keeps one
	size  int            // history_size: what a channel keeps of it
	rate  int            // messages per second for a client; 0: no bound
}

func newNamespace(n hub.Namespace, options Namespace) (*namespace, error) {
	x := &namespace{Namespace: options, name: n.Name, log: n.WithDefaults().Durability != hub.None, size: n.WithDefaults().HistorySize, rate: n.MaxRate}
	if options.ChannelRegex != "" {
		var err error
		if x.regex, err = regexp.Compile(options.ChannelRegex); err != nil {
			return nil, fmt.Errorf("namespaces.%s.channel_regex: %w", n.Name, err)
		}
	}
	return x, nil
}

// A private channel is spelled "$ns:name" by clients and "ns:$name" in the hub, where
// the namespace comes first.

// hubName returns what the hub calls a client's channel.
func hubName(channel string) (string, bool) {
	i := strings.IndexByte(channel, ':')
	switch {
	case i < 0:
		return channel, true
	case channel[0] == '$':
		return channel[1:i+1] + "$" + channel[i+1:], true
	default:
		return channel, !strings.HasPrefix(channel[i+1:], "$") // it has another spelling
	}
}

// wireName returns what clients call a channel of the hub.
func wireName(channel string) string {
	if i := strings.IndexByte(channel, ':'); i > 0 && strings.HasPrefix(channel[i+1:], "$") {
		return "$" + channel[:i+1] + channel[i+2:]
	}
	return channel
}

// channel checks a channel of a client's and returns its name in the hub.
func (s *Server) channel(name string) (string, *namespace, *protocol.Error) {
	in, n, e := s.lookup(name)
	if e == nil && n.regex != nil {
		_, bare, ok := strings.Cut(in, ":")
		if !ok {
			bare = in
		}
		if !n.regex.MatchString(bare) {
			e = &protocol.ErrorBadRequest
		}
	}
	return in, n, e
}

// lookup is channel without the namespace's pattern of names, which is for clients.
func (s *Server) lookup(name string) (string, *namespace, *protocol.Error) {
	in, ok := hubName(name)
	if name == "" || !ok {
		return "", nil, &protocol.ErrorBadRequest
	}
	ns, err := s.deps.Hub.Namespace(in)
	if err != nil {
		return "", nil, &protocol.ErrorUnknownChannel
	}
	if hub.CheckChannel(in) != nil {
		return "", nil, &protocol.ErrorBadRequest
	}
	return in, s.namespace(ns), nil
}

// namespace returns the options of a namespace of the hub.
func (s *Server) namespace(ns *hub.Namespace) *namespace {
	x := s.conf()
	if n, ok := x.namespaces.Load(ns.Name); ok {
		return n.(*namespace)
	}
	n, err := newNamespace(*ns, x.cfg.Namespaces[ns.Name])
	if err != nil { // compile has compiled them all
		n = &namespace{name: ns.Name}
	}
	got, _ := x.namespaces.LoadOrStore(ns.Name, n)
	return got.(*namespace)
}

// errorOf says in the protocol's words what the hub refused.
func errorOf(err error) protocol.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Status < http.StatusInternalServerError { // an extension's refusal
		if e.Status == http.StatusForbidden {
			return protocol.Error{Code: protocol.ErrorPermissionDenied.Code, Message: e.Message}
		}
		return protocol.Error{Code: uint32(e.Status), Message: e.Message}
	}
	switch {
	case errors.Is(err, hub.ErrUnknownNamespace):
		return protocol.ErrorUnknownChannel
	case errors.Is(err, hub.ErrBadChannel), errors.Is(err, hub.ErrTooLarge), errors.Is(err, hub.ErrBadAttributes):
		return protocol.ErrorBadRequest
	case errors.Is(err, hub.ErrTooManyChannels):
		return protocol.ErrorLimit
	case errors.Is(err, hub.ErrOverloaded):
		return protocol.ErrorTooManyRequests
	case errors.Is(err, hub.ErrKeyReused):
		return protocol.ErrorConflict
	case errors.Is(err, hub.ErrBadEpoch):
		return protocol.ErrorUnrecoverable
	case errors.Is(err, errors.ErrUnsupported):
		return protocol.ErrorNotAvailable
	default:
		return protocol.ErrorInternal
	}
}

// refusalOf is errorOf for a publication. Where a retry may help, the message specifies
// whether the publication may be stored. With keys it also names the idempotency key of
// a safe retry: the server API takes one, the commands of clients do not.
func refusalOf(err error, keys bool) protocol.Error {
	e := errorOf(err)
	if u, ok := errors.AsType[*hub.UncertainError](err); ok && !keys {
		err = &hub.UncertainError{Err: u.Err}
	}
	switch w := wire.ErrorOf(err); w.Status {
	case http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		e.Message = w.Text()
	}
	return e
}

// options gives w what namespace and client want together. history and presence report
// whether the client may have them once it is subscribed: who may read the history may
// also recover, as with Centrifugo.
func (w *subscribeOptions) options(r *protocol.SubscribeRequest, history, presence bool) {
	n := w.ns
	if n.log {
		w.flags |= flagsIf(n.ForceRecovery, recoverable) | flagsIf(n.ForcePositioning, positioned)
		w.requested |= flagsIf(r.Recoverable && (n.AllowRecovery || history), recoverable)
		w.requested |= flagsIf(r.Positioned && (n.AllowPositioning || history), positioned)
	}
	if n.JoinLeave && (n.ForcePushJoinLeave || r.JoinLeave && presence) {
		w.flags |= joinLeave
	}
	if n.Presence || n.JoinLeave {
		w.flags |= tracked
	}
	w.delta = n.AllowDelta && r.Delta == "fossil"
	w.recovery(r)
}

func flagsIf(ok bool, flags planFlags) planFlags {
	if ok {
		return flags
	}
	return 0
}

// recovery takes the client's position from r.
func (w *subscribeOptions) recovery(r *protocol.SubscribeRequest) {
	w.recovering = r.Recover
	w.since = protocol.Position{Offset: r.Offset, Epoch: r.Epoch}
	w.reject = r.Flag&protocol.FlagRejectUnrecovered != 0
}

// settle decides, when nothing overrides the options any more, whether w recovers.
func (w *subscribeOptions) settle() {
	w.flags |= w.requested
	cache := w.flags&recoverable != 0 && w.ns.ForceRecoveryMode == "cache"
	w.recovering = w.recovering || cache && w.ns.AutoCacheRecover
	w.recover = w.recovering && w.flags&recoverable != 0
	w.cache = w.recover && cache
}
