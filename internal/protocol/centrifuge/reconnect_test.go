package centrifuge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/websocket"
)

// reader follows a channel over connections that break all the time, as an SDK does: it
// keeps the newest offset and recovers from there.
type reader struct {
	n       *node
	channel string
	epoch   string
	offset  uint64
	known   bool
	got     []int
	rng     *rand.Rand
}

type readerFrame struct {
	ID        int
	Error     json.RawMessage
	Subscribe *struct {
		Recovered    bool
		Epoch        string
		Offset       uint64
		Publications []readerPublication
	}
	Push struct {
		Channel string
		Pub     *readerPublication
	}
}

type readerPublication struct {
	Data   int
	Offset uint64
}

// session reads one connection until it has had enough of it.
func (r *reader) session(ctx context.Context) error {
	conn, _, err := websocket.Dial(ctx, "ws://"+r.n.Addr+"/connection/websocket", websocket.DialOptions{})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	sub := fmt.Sprintf(`{"id":2,"subscribe":{"channel":%q}}`, r.channel)
	if r.known {
		sub = fmt.Sprintf(`{"id":2,"subscribe":{"channel":%q,"recover":true,"epoch":%q,"offset":%d}}`, r.channel, r.epoch, r.offset)
	}
	if err := conn.Write(websocket.OpText, []byte(`{"id":1,"connect":{}}`+"\n"+sub)); err != nil {
		return err
	}
	for enough := r.rng.IntN(12); enough >= 0; enough-- {
		_, b, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if err := r.read(line); err != nil || r.done() {
				return err
			}
		}
	}
	return nil
}

func (r *reader) done() bool { return len(r.got) > 0 && r.got[len(r.got)-1] < 0 }

func (r *reader) read(line string) error {
	var f readerFrame
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	list := []readerPublication{}
	switch {
	case len(f.Error) > 0:
		return fmt.Errorf("%s", line)
	case f.Subscribe != nil:
		if r.known && !f.Subscribe.Recovered {
			return fmt.Errorf("not recovered from %d: %s", r.offset, line)
		}
		r.known, r.epoch, r.offset = true, f.Subscribe.Epoch, f.Subscribe.Offset
		list = f.Subscribe.Publications
	case f.Push.Pub != nil:
		list = append(list, *f.Push.Pub)
	}
	for _, p := range list {
		if p.Offset <= r.offset {
			return fmt.Errorf("offset %d after %d", p.Offset, r.offset)
		}
		r.offset, r.got = p.Offset, append(r.got, p.Data)
	}
	return nil
}

func TestNothingIsLostOrRepeatedOverReconnects(t *testing.T) {
	n := start(t, settings{
		cfg:    centrifuge.Config{RecoveryLimit: 10_000, Namespaces: map[string]centrifuge.Namespace{"default": open}, AnonymousConnect: true},
		spaces: []hub.Namespace{{Name: "default", Recent: 8, HistorySize: 10_000}},
	})
	const messages = 300
	channels := []string{"a", "b", "c"}
	var readers []*reader
	var began, wg sync.WaitGroup
	for i := range 9 {
		r := &reader{n: n, channel: channels[i%len(channels)], rng: rand.New(rand.NewPCG(uint64(i), 7))}
		readers = append(readers, r)
		began.Add(1)
		wg.Go(func() {
			for first := true; !r.done() && !t.Failed(); first = false {
				if first { // nothing is published before all know where they start
					r.rng = rand.New(rand.NewPCG(uint64(i), 8))
					if err := r.begin(t.Context()); err != nil {
						t.Error(err)
					}
					began.Done()
					continue
				}
				if err := r.session(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	began.Wait()
	want := map[string][]int{}
	for i := range messages {
		ch := channels[i%len(channels)]
		n.publish(ch, fmt.Sprint(i))
		want[ch] = append(want[ch], i)
	}
	for _, ch := range channels {
		n.publish(ch, "-1")
		want[ch] = append(want[ch], -1)
	}
	wg.Wait()
	for i, r := range readers {
		if !slices.Equal(r.got, want[r.channel]) {
			t.Errorf("reader %d of %s got %v", i, r.channel, r.got)
		}
	}
}

// begin learns the channel's position.
func (r *reader) begin(ctx context.Context) error {
	conn, _, err := websocket.Dial(ctx, "ws://"+r.n.Addr+"/connection/websocket", websocket.DialOptions{})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	if err := conn.Write(websocket.OpText, []byte(fmt.Sprintf(`{"id":1,"connect":{}}`+"\n"+`{"id":2,"subscribe":{"channel":%q}}`, r.channel))); err != nil {
		return err
	}
	for !r.known {
		_, b, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if err := r.read(line); err != nil {
				return err
			}
		}
	}
	return nil
}
