package backlog

import (
	"testing"

	"github.com/weir-gateway/weir/hub"
)

func TestAQueueThatIsNeverEmptyDoesNotGrow(t *testing.T) {
	q := &Queue{}
	m := &hub.Message{Data: []byte("x")}
	q.push(m)
	for range 100_000 {
		q.push(m)
		if len(q.gaps) == 0 {
			q.gaps = append(q.gaps, heldGap{before: len(q.messages)})
		}
		q.pop()
		if len(q.gaps) > 0 && q.gaps[0].before <= q.head {
			q.gaps = q.gaps[1:]
		}
	}
	if q.Len() != 1 || cap(q.messages) > 1024 {
		t.Errorf("%d messages in room for %d", q.Len(), cap(q.messages))
	}
}
