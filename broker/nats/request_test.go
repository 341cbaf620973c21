package nats

import (
	"errors"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestARequestIsAnsweredByTheSubjectsServer(t *testing.T) {
	c := external(t)
	c.spawn(t)
	n := startOn(t, Config{URL: c.url()}, hub.Namespace{Name: "default"})
	b := n.Broker.(*Broker)
	other, err := natsgo.Connect(c.url())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Subscribe("rpc.echo", func(m *natsgo.Msg) { _ = m.Respond(append([]byte("got "), m.Data...)) }); err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Request(t.Context(), "rpc.echo", []byte("this")); err != nil || string(got) != "got this" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := b.Request(t.Context(), "rpc.none", nil); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}
