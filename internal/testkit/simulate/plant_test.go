package simulate

import (
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A plant is a bug that is built into a run, at the seams between the product's parts, to see
// that it is found.
type plant uint8

const (
	none plant = iota
	ackBeforeStore
	dropBoundary
	offByOne
	serveTwice
	hideTrim
	ignoreEpoch
	forgetKeys
	lateSubscribe
	dropDelivery
	hideGap
	ignoreBound
	leakSubscription
	forgetRestore
	forgetRenew
	numPlants
)

// plants describes them.
var plants = [numPlants]string{
	ackBeforeStore:   "a publication is acknowledged before it is stored",
	dropBoundary:     "history omits the first message after the position requested",
	offByOne:         "a snapshot of a later epoch ends one offset too far",
	serveTwice:       "after a takeover the old process serves the connection, too",
	hideTrim:         "history does not say that older messages were removed",
	ignoreEpoch:      "a position of another epoch is read as one of this epoch",
	forgetKeys:       "idempotency keys are forgotten with a change of leader",
	lateSubscribe:    "a message between the snapshot and the start of delivery is lost",
	dropDelivery:     "every seventh delivery is lost, and the next one does not say so",
	hideGap:          "gap events are not sent",
	ignoreBound:      "backlogs of slow clients have no bound",
	leakSubscription: "channels stay subscribed after their last client",
	forgetRestore:    "a takeover that fails does not give the log back",
	forgetRenew:      "after a commit that fails the old log continues in its epoch",
}

// anyEpoch returns the positions of a token in the epochs of today.
func (w *world) anyEpoch(since string) string {
	ps, err := hub.ParsePositions(since)
	if err != nil {
		return since
	}
	for i, p := range ps {
		if e := w.ledger.epochs[p.Epoch]; e != nil && e != e.space.now() {
			ps[i] = hub.Position{Epoch: e.space.now().name, Offset: min(p.Offset, e.space.now().last())}
		}
	}
	return string(ps.AppendTo(nil))
}
