package config

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Access is what the protocols of c allow, for the access model.
func (c Config) Access() access.Config {
	return access.Config{Centrifuge: c.Centrifuge.Access(), Mercure: c.Mercure.Access(), Pusher: c.Pusher.Access()}
}

// AccessModel is the access model of a node with this configuration.
func (c Config) AccessModel() *access.Model {
	return access.New(func(channel string) (*hub.Namespace, error) {
		name := hub.NamespaceOf(channel)
		for i := range c.Namespaces {
			if c.Namespaces[i].Name == name {
				return &c.Namespaces[i], nil
			}
		}
		return nil, fmt.Errorf("%w: %.40q", hub.ErrUnknownNamespace, name)
	}, c.Access())
}
