package mercure

import "github.com/weir-gateway/weir/internal/front/access"

// Access is what c allows, for the access model; nil if c serves nothing.
func (c Config) Access() *access.MercureConfig {
	if !c.Enabled {
		return nil
	}
	return &access.MercureConfig{Namespace: c.WithDefaults().Namespace, Anonymous: c.Anonymous}
}

// isOpen reports whether clients without a token may subscribe.
func (s *Server) isOpen() bool {
	channel, _ := channelOf(s.conf().cfg.Namespace, "x")
	return s.deps.Access.Decide(access.Mercure, access.Read, channel, access.Caller{}) != access.Refused
}

// mayList reports whether g may see the subscriptions at a place, by its path.
func (x *directory) mayList(g *grant, path string) bool {
	channel, _ := channelOf(x.s.conf().cfg.Namespace, path)
	return x.s.deps.Access.Decide(access.Mercure, access.Presence, channel, access.Caller{Identity: g.identity, Proof: g.read.Match(path)}) != access.Refused
}

// mayPublish reports whether g may publish to a topic.
func (g *grant) mayPublish(s *Server, topic string) bool {
	channel, _ := channelOf(s.conf().cfg.Namespace, topic)
	return s.deps.Access.Decide(access.Mercure, access.Publish, channel, access.Caller{Identity: g.identity, Proof: g.publish.Match(topic)}) != access.Refused
}
