package nats_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// TestNodesHaveOneSecret has several nodes ask at the same time, and one later.
func TestNodesHaveOneSecret(t *testing.T) {
	url := natstest.Server(t)
	ask := func() []byte {
		b, err := nats.New(nats.Config{URL: url}, nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer func() { _ = b.Close() }()
		if err := b.Start(t.Context(), nil, func(*hub.Message) {}); err != nil {
			t.Error(err)
			return nil
		}
		secret, err := nats.Secret(t.Context(), b, "limits", 1, 16)
		if err != nil {
			t.Error(err)
		}
		return secret
	}
	secrets := make([][]byte, 4)
	var nodes sync.WaitGroup
	for i := range secrets {
		nodes.Go(func() { secrets[i] = ask() })
	}
	nodes.Wait()
	for _, s := range append(secrets, ask()) {
		if len(s) != 16 || !bytes.Equal(s, secrets[0]) || bytes.Equal(s, make([]byte, 16)) {
			t.Errorf("%x, and %x", s, secrets[0])
		}
	}
}
