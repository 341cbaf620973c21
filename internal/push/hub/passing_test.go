package hub

import (
	"context"
	"errors"
	"testing"
)

// What comes over the bus need not be what a node of ours sent.
func FuzzPassed(f *testing.F) {
	for _, s := range []string{
		"", "\n", "{}\nx", `{"channel":"a"}`, `{"channel":"a","time":1}` + "\n1", `{"channel":"a","attributes":{"private":true}}` + "\n1",
		`{"channel":"a","attributes":7}` + "\n1", `{"channel":"nowhere:a"}` + "\n1", `{"channel":"a b"}` + "\n1", `{"channel":"default:"}` + "\n1",
	} {
		f.Add([]byte(s))
	}
	h, err := New(Config{}, nil)
	if err != nil {
		f.Fatal(err)
	}
	h.bus = NewLocalBus()
	f.Fuzz(func(_ *testing.T, b []byte) { h.passed("another", b) })
}

// stuckBroker never answers; it is requested nothing else.
type stuckBroker struct{ Broker }

func (stuckBroker) Top(ctx context.Context, _ *Namespace) (Position, error) {
	<-ctx.Done()
	return Position{}, ctx.Err()
}

func (stuckBroker) Lookup(context.Context, *Namespace, string) (Position, error) {
	return Position{}, ErrNoMessage
}
func (stuckBroker) Remove(context.Context, *Namespace, string) error                    { return nil }
func (stuckBroker) PublishAfter(*Namespace, Publication, uint64, func(Position, error)) {}
func (stuckBroker) Bus() Bus                                                            { return nil }

func TestPublicationsWithAVersionWaitWithinABound(t *testing.T) {
	h, err := New(Config{Namespaces: []Namespace{{Name: "default", MaxMessageBytes: 1 << 20, QueueBytes: 2 << 20}}}, stuckBroker{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.work.Wait()
	defer h.cancel()
	data, over := make([]byte, 1<<20-64), error(nil)
	for n := 0; over == nil; n++ {
		if n > 2*maxVersionBytes>>20 {
			t.Fatal("there is no bound")
		}
		answered := make(chan error, 1)
		h.Publish(Publication{Channel: "a", Data: data, Attributes: &Attributes{Version: 1}}, func(_ Position, err error) { answered <- err })
		select {
		case over = <-answered:
		default: // it waits
		}
	}
	if !errors.Is(over, ErrOverloaded) {
		t.Errorf("past the bound: %v", over)
	}
}
