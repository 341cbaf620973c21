package config

import (
	"fmt"
	"strings"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
)

// A Warning is something that is allowed and may not be meant.
type Warning struct{ Text, Hint string }

// Warnings returns what of c is likely to surprise. It expects c to be valid.
func (c Config) Warnings() []Warning {
	var all []Warning
	for _, s := range []struct {
		at   string
		auth auth.Config
	}{{"auth", c.Auth}, {"centrifuge.token", c.Centrifuge.Token}, {"centrifuge.subscription_token", c.Centrifuge.SubscriptionToken}} {
		for _, weak := range s.auth.WeakSecrets() {
			all = append(all, Warning{s.at + "." + weak + ", and allow_weak_secrets accepts it: whoever guesses it can be any user", "issue tokens with a secret made with: head -c 48 /dev/urandom | base64 -w0"})
		}
	}
	if c.Pusher.Enabled {
		for i, app := range c.Pusher.Apps {
			ns := app.Namespace
			if ns == "" {
				ns = hub.DefaultNamespace
			}
			if by := c.readers(ns); len(by) > 0 {
				all = append(all, Warning{
					fmt.Sprintf("pusher.apps[%d]: what other APIs publish on private- and presence- channels of namespace %q without private can be read without the app's signature: %s",
						i, ns, strings.Join(by, "; ")),
					"give the app a namespace of its own that is not anonymous, or publish there by Pusher's API, or with private: true",
				})
			}
		}
	}
	if c.Centrifuge.Enabled {
		for _, ns := range c.Namespaces {
			if n := c.Centrifuge.Namespaces[ns.Name]; ns.Anonymous && n.AllowUserLimited {
				all = append(all, Warning{
					fmt.Sprintf("centrifuge.namespaces.%s.allow_user_limited_channels: what other APIs publish on the channels of users without private can be read by everybody: namespaces.%s is anonymous", ns.Name, ns.Name),
					"leave anonymous out and set allow_subscribe_for_anonymous, or publish there by Centrifugo's API, or with private: true",
				})
			}
		}
	}
	return all
}

// readers says by which protocols other than Pusher's clients may read all channels of
// a namespace, though nobody granted them one, and why.
func (c Config) readers(name string) []string {
	var by []string
	for _, ns := range c.Namespaces {
		if ns.Name == name && ns.Anonymous {
			by = append(by, "/sse and /ws, as the namespace is anonymous")
			if c.Centrifuge.Enabled {
				by = append(by, "Centrifuge, as the namespace is anonymous")
			}
		}
	}
	n := c.Centrifuge.Namespaces[name]
	switch {
	case !c.Centrifuge.Enabled:
	case c.Centrifuge.Insecure:
		by = append(by, "Centrifuge, as centrifuge.insecure is set")
	case n.AllowSubscribeForClient && n.AllowSubscribeForAnonymous:
		by = append(by, "Centrifuge, as "+name+" has allow_subscribe_for_anonymous")
	case n.AllowSubscribeForClient:
		by = append(by, "Centrifuge, as "+name+" has allow_subscribe_for_client")
	case n.SubscribeProxy:
		by = append(by, "Centrifuge, if proxies.subscribe lets them, as "+name+" has subscribe_proxy")
	}
	if m := c.Mercure.WithDefaults(); m.Enabled && m.Namespace == name {
		by = append(by, "Mercure, whose namespace it is: mercure.namespace")
	}
	return by
}
