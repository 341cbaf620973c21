package pusher

import (
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
)

// Access are the namespaces of the apps, for the access model; nil if c serves nothing.
func (c Config) Access() map[string]bool {
	if !c.Enabled {
		return nil
	}
	spaces := map[string]bool{}
	for _, a := range c.WithDefaults().Apps {
		spaces[a.Namespace] = true
	}
	return spaces
}

// may reports whether a client may do op on a channel of the hub. proof says that the
// app has signed for it, or that the user has signed in.
func (s *Server) may(op access.Op, channel string, proof bool) bool {
	return s.deps.Access.Decide(access.Pusher, op, channel, access.Caller{Proof: proof}) != access.Refused
}

// mayCall reports whether a call of the REST API may do op on a channel of the hub.
func (s restAPI) mayCall(op access.Op, channel string) bool {
	return s.deps.Access.Decide(access.PusherAPI, op, channel, access.Caller{Server: true}) != access.Refused
}

// signedIn reports whether the channel is that of the user who has signed in.
func (sub *subscription) signedIn() bool {
	user, ok := protocol.UserOf(sub.name)
	return ok && sub.c.user != nil && sub.c.user.ID == user
}
