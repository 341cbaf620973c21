package config

import (
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/kafka"
	"github.com/weir-gateway/weir/internal/push/ingest/nats"
	"github.com/weir-gateway/weir/internal/push/ingest/postgres"
	"github.com/weir-gateway/weir/internal/push/ingest/redis"
	"github.com/weir-gateway/weir/internal/push/ingest/udp"
)

// A Source is another system whose messages are published. It has the section of its kind and
// no other.
type Source struct {
	ingest.Config
	// NATS is the connection of kind nats: a JetStream stream, or subjects.
	NATS *nats.Config `json:"nats"`
	// Redis is the connection of kind redis: streams of Redis or Valkey.
	Redis *redis.Config `json:"redis"`
	// Postgres is the connection of kind postgres: an outbox in PostgreSQL.
	Postgres *postgres.Config `json:"postgres"`
	// Kafka is the connection of kind kafka.
	Kafka *kafka.Config `json:"kafka"`
	// UDP is where a feed of kind udp arrives.
	UDP *udp.Config `json:"udp"`
}

// WithDefaults returns s with the zeros of what all kinds have replaced; the sections have
// their own WithDefaults.
func (s Source) WithDefaults() Source {
	s.Config = s.Config.WithDefaults()
	return s
}

// sectionValidator is what each kind's section is.
type sectionValidator interface{ Validate() error }

// sections are those that s has, by kind.
func (s Source) sections() map[string]sectionValidator {
	all := map[string]sectionValidator{}
	if s.NATS != nil {
		all["nats"] = s.NATS
	}
	if s.Redis != nil {
		all["redis"] = s.Redis
	}
	if s.Postgres != nil {
		all["postgres"] = s.Postgres
	}
	if s.Kafka != nil {
		all["kafka"] = s.Kafka
	}
	if s.UDP != nil {
		all["udp"] = s.UDP
	}
	return all
}

// Validate returns all that is wrong with s, joined. It expects s completed.
func (s Source) Validate() error {
	errs := []error{s.Config.Validate()}
	have := s.sections()
	for _, kind := range ingest.Kinds {
		section := have[kind]
		switch {
		case kind == s.Kind && section == nil:
			errs = append(errs, fmt.Errorf("%s: the section is missing, and kind is %s", kind, kind))
		case kind == s.Kind:
			for _, err := range Problems(section.Validate()) {
				errs = append(errs, at(kind, err))
			}
		case section != nil:
			errs = append(errs, fmt.Errorf("%s: the section is of another kind than %.40q", kind, s.Kind))
		}
	}
	return errors.Join(errs...)
}

// Spec returns s as the sources' package takes it.
func (s Source) Spec() ingest.Spec {
	spec := ingest.Spec{Config: s.Config, Same: s}
	switch s.Kind {
	case "nats":
		spec.Open = nats.Open(*s.NATS)
	case "redis":
		spec.Open = redis.Open(*s.Redis)
	case "postgres":
		spec.Open = postgres.Open(*s.Postgres)
	case "kafka":
		spec.Open, spec.Shared = kafka.Open(*s.Kafka), true
	case "udp":
		spec.Open, spec.Shared = udp.Open(*s.UDP), !s.UDP.Multicast()
	}
	return spec
}

// Specs returns the sources as their package takes them. c must be valid.
func (c Config) Specs() []ingest.Spec {
	specs := make([]ingest.Spec, 0, len(c.Sources))
	for _, s := range c.Sources {
		specs = append(specs, s.Spec())
	}
	return specs
}

// checkSources wants each name once, and namespaces that exist.
func (c Config) checkSources() error {
	var all []error
	first := map[string]int{}
	for i, s := range c.Sources {
		if j, dup := first[s.Name]; dup {
			all = append(all, fmt.Errorf("sources[%d]: name: %.40q is the name of sources[%d]", i, s.Name, j))
		}
		first[s.Name] = i
		for _, ns := range []struct{ key, name string }{{"namespace", s.Namespace}, {"dead_letter", hub.NamespaceOf(s.DeadLetter)}} {
			if (ns.key == "namespace" || s.DeadLetter != "") && !hasNamespace(c.Namespaces, ns.name) {
				all = append(all, WithHint(fmt.Errorf("sources[%d]: %s: there is no namespace %.40q", i, ns.key, ns.name), "add it to namespaces: - name: "+ns.name))
			}
		}
	}
	return errors.Join(all...)
}
