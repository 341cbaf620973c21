package hub_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/broker/nats/natstest"
	weir "github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A publication that the other site has stored, and that is published again after a change of sites, is
// recognized by its idempotency key: NATS servers in a cluster know no key of a message that was copied.
func TestIdempotencyKeyIsRecognizedAtTheOtherSite(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	p := natstest.TwoClusters(t)
	ns := weir.Namespace{Name: "x", BothSites: true, Replicas: 3}
	a, b := siteOf(t, p, "a", true, ns), siteOf(t, p, "b", true, ns)
	b.whole(t)
	of := func(i int) weir.Publication {
		return weir.Publication{Channel: fmt.Sprint("x:", i%3), Data: fmt.Append(nil, i), IdempotencyKey: fmt.Sprint(i)}
	}
	const n = 30
	var first [n]uint64
	offset := func(s *siteNode, m weir.Publication) uint64 {
		t.Helper()
		var at weir.Position
		trial.Eventually(t, "the publication to be acknowledged", func() bool {
			var err error
			at, err = s.Publish(t.Context(), m)
			if err != nil {
				t.Log(err) // a busy machine answers late; the key makes a repetition harmless
			}
			return err == nil
		})
		pos, _ := hub.ParsePosition(string(at))
		return pos.Offset
	}
	for i := range n {
		first[i] = offset(a, of(i))
	}
	again := func(s *siteNode) {
		t.Helper()
		for i := range n {
			if at := offset(s, of(i)); at != first[i] {
				t.Errorf("publication %d is stored at offset %d, and again at %d", i, first[i], at)
			}
		}
		other := of(0)
		other.Data = []byte("other")
		if _, err := s.Publish(t.Context(), other); !errors.Is(err, weir.ErrKeyReused) {
			t.Errorf("other data under the same key: %v", err)
		}
	}
	if err := nats.Promote(t.Context(), b.b, "x"); err != nil {
		t.Fatal(err)
	}
	b.led(t, "b")
	again(b)
	last := offset(b, weir.Publication{Channel: "x:0", Data: []byte("new"), IdempotencyKey: "new"})
	if last != first[n-1]+1 {
		t.Errorf("a new publication is stored at offset %d after %d", last, first[n-1])
	}
	again(siteOf(t, p, "b", true, ns)) // it has not seen the change of sites
	a.led(t, "b")
	again(a)
	a.whole(t)
	if err := nats.Promote(t.Context(), a.b, "x"); err != nil {
		t.Fatal(err)
	}
	a.led(t, "a")
	again(a)
	if at := offset(a, weir.Publication{Channel: "x:0", Data: []byte("new"), IdempotencyKey: "new"}); at != last {
		t.Errorf("the publication at offset %d, which the site stored that led in between, is stored again at %d", last, at)
	}
}
