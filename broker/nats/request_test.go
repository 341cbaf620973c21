package nats

import (
	"errors"
	"fmt"
	"testing"
	"time"

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

// A request of JetStream waits for its leader; without one for long the broker is unavailable.
func TestRequestsWaitForALeader(t *testing.T) {
	c := external(t)
	c.spawn(t)
	n := startOn(t, Config{URL: c.url()})
	b := n.Broker.(*Broker)
	requests, without := 0, 3
	sub, err := b.nc.Subscribe("api", func(m *natsgo.Msg) {
		if requests++; requests <= without {
			_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`))
			return
		}
		_ = m.Respond([]byte(`{"name":"x"}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	var a struct{ Name string }
	if err := b.requestAt(t.Context(), "api", nil, &a); err != nil || a.Name != "x" {
		t.Errorf("answer %+v, %v", a, err)
	}
	if err := sub.Drain(); err != nil {
		t.Fatal(err)
	}
	err = &apiError{Code: 503, ErrCode: codeNotAvailable}
	if !errors.Is(fmt.Errorf("subscribe: %w", err), hub.ErrUnavailable) || errors.Is(&apiError{Code: 400}, hub.ErrUnavailable) {
		t.Error("not available is not what it is called")
	}
}

// Who waits for a leader asks again when one is elected, not when the time for the next try has come.
func TestElectionHasRequestsMadeAgain(t *testing.T) {
	c := external(t)
	c.spawn(t)
	n := startOn(t, Config{URL: c.url()})
	b := n.Broker.(*Broker)
	b.reads.mu.Lock()
	b.reads.took = time.Hour // so that a try lasts as long as one may
	b.reads.mu.Unlock()
	requests := make(chan *natsgo.Msg, 8)
	if _, err := b.nc.ChanSubscribe("api", requests); err != nil {
		t.Fatal(err)
	}
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := b.requestWithRetry(t.Context(), &natsgo.Msg{Subject: "api"})
		done <- err
	}()
	<-requests // which has no answer
	const elected = 20
	for range elected - 1 {
		b.elections.note(nil)
		<-requests
	}
	b.elections.note(nil)
	if err := (<-requests).Respond([]byte("yes")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > elected*time.Second/2 {
		t.Errorf("%d tries, of a second each without news, took %v", elected, took)
	}
}
