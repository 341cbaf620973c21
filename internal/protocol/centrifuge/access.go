package centrifuge

import (
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
)

// Access is what c allows clients, for the access model; nil if c serves nothing.
func (c Config) Access() *access.CentrifugeConfig {
	if !c.Enabled {
		return nil
	}
	c = c.WithDefaults()
	a := &access.CentrifugeConfig{
		Insecure: c.Insecure, Anonymous: c.Insecure || c.AnonymousConnect || c.Proxies.Connect.Endpoint != "",
		SharedUsers: c.Keys == "", Namespaces: map[string]access.Rules{},
	}
	if c.UserPersonalChannel {
		a.Personal = c.PersonalNamespace
	}
	for name, n := range c.Namespaces {
		a.Namespaces[name] = access.Rules{
			UserLimited: n.AllowUserLimited,
			Subscribe:   access.Right{Client: n.AllowSubscribeForClient, Anonymous: n.AllowSubscribeForAnonymous},
			Publish:     access.Right{Client: n.AllowPublishForClient, Subscriber: n.AllowPublishForSubscriber, Anonymous: n.AllowPublishForAnonymous},
			Presence:    access.Right{Client: n.AllowPresenceForClient, Subscriber: n.AllowPresenceForSubscriber, Anonymous: n.AllowPresenceForAnonymous},
			History:     access.Right{Client: n.AllowHistoryForClient, Subscriber: n.AllowHistoryForSubscriber, Anonymous: n.AllowHistoryForAnonymous},
		}
	}
	return a
}

// decide returns what the client may do with a channel of the hub.
func (s *session) decide(op access.Op, channel string) access.Verdict {
	return s.account.decide(op, channel, s.find(channel) != nil)
}

// decide returns what the client may do with a channel of the hub, to which it is
// subscribed if joined is true.
func (a *account) decide(op access.Op, channel string, joined bool) access.Verdict {
	id := auth.Client(a.user, a.subscribe, a.publish)
	return a.kind.srv.deps.Access.Decide(access.Centrifuge, op, channel, access.Caller{Identity: &id, Joined: joined})
}

// granted reports whether the client is meant by the channel's name or a grant: neither
// token nor proxy is needed then.
func (a *account) granted(channel string) bool {
	id := auth.Client(a.user, a.subscribe, a.publish)
	return a.kind.srv.deps.Access.Meant(access.Centrifuge, channel, access.Caller{Identity: &id})
}

// may reports whether the caller may call a method of the server API.
func (who caller) may(a *api, name string, c *apiCall) bool {
	may := func(op access.Op, channel string) bool {
		in, _ := hubName(channel)
		caller := access.Caller{Identity: who.who, Server: who.all}
		return a.srv.deps.Access.Decide(access.CentrifugeAPI, op, in, caller) != access.Refused
	}
	unknown := func(channel string) bool { // which the method says better
		_, _, e := a.srv.lookup(channel)
		return e != nil
	}
	switch name {
	case "publish":
		return unknown(c.Channel) || may(access.Publish, c.Channel)
	case "broadcast":
		for _, ch := range c.Channels {
			if !unknown(ch) && !may(access.Publish, ch) {
				return false
			}
		}
		return true
	case "history":
		return unknown(c.Channel) || may(access.History, c.Channel)
	case "presence", "presence_stats":
		return unknown(c.Channel) || may(access.Presence, c.Channel)
	}
	return who.all
}
