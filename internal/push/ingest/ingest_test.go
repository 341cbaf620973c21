package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/ingesttest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("the connection broke")

// A queue is a source in memory: what is not acknowledged is read again.
type queue struct {
	mu       sync.Mutex
	entries  []entry
	wake     chan struct{}
	failAcks int   // of the acknowledgements to come
	refuse   error // of opening
	opened   int
}

type entry struct{ position, channel, data string }

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) add(position, channel, data string) {
	q.mu.Lock()
	q.entries = append(q.entries, entry{position, channel, data})
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) set(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

func (q *queue) open(_ context.Context, o ingest.Options) (ingest.Reader, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.opened++
	return &queueReader{queue: q, batch: o.Batch}, q.refuse
}

type queueReader struct {
	*queue
	batch int
}

func (r *queueReader) Read(ctx context.Context) ([]ingest.Message, error) {
	for {
		r.mu.Lock()
		entries := slices.Clone(r.entries[:min(len(r.entries), r.batch)])
		r.mu.Unlock()
		if len(entries) > 0 {
			var list []ingest.Message
			for _, e := range entries {
				list = append(list, ingest.Message{Position: e.position, Data: []byte(e.data), Lookup: func(name string) (string, bool) {
					return e.channel, name == "subject"
				}})
			}
			return list, nil
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (r *queueReader) Acknowledge(_ context.Context, done []ingest.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failAcks > 0 {
		r.failAcks--
		return errBroken
	}
	for i := range done {
		r.entries = slices.DeleteFunc(r.entries, func(e entry) bool { return e.position == done[i].Position })
	}
	return nil
}

func (r *queueReader) Lag(context.Context) (int64, error) { return int64(r.len()), nil }
func (r *queueReader) Close()                             {}

// spec is a source that reads q.
func spec(q *queue, change func(*ingest.Config)) ingest.Spec {
	c := ingest.Config{Name: "q", Kind: "nats", DeadLetter: "dead"}
	if change != nil {
		change(&c)
	}
	c = c.WithDefaults()
	return ingest.Spec{Config: c, Open: q.open, Same: c}
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The source reads everything again after each failed acknowledgement, and the log has it once.
func TestMessagesReadAgainAreInTheLogOnce(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	q.failAcks = 3
	for i := range 10 {
		q.add(fmt.Sprint(i), "a", fmt.Sprint(i))
	}
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(q, func(c *ingest.Config) { c.Batch = 4 }))
	trial.Eventually(t, "everything is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	if s := ingesttest.State(t, set, "q"); s.Errors != 3 || s.Read <= 10 {
		t.Errorf("%d errors, %d read; want 3, and more than 10", s.Errors, s.Read)
	}
}

// Another process knows nothing of what the one before did: the log does.
func TestARestartPublishesNothingAgain(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	q.failAcks = 1 << 30
	for i := range 5 {
		q.add(fmt.Sprint(i), "a", fmt.Sprint(i))
	}
	_, stop := ingesttest.Run(t, h, ingest.Deps{}, spec(q, nil))
	ingesttest.Await(t, h, "a", 5)
	stop()
	q.set(func() { q.failAcks = 0 })
	ingesttest.Run(t, h, ingest.Deps{}, spec(q, nil))
	trial.Eventually(t, "everything is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), "0", "1", "2", "3", "4")
}

func TestChannelsKeepTheirOrderWhileTheBrokerIsUnavailable(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	var mu sync.Mutex
	away := map[string]int{}
	publish := func(p hub.Publication, done func(hub.Position, error)) {
		mu.Lock()
		away[p.IdempotencyKey]++
		first := away[p.IdempotencyKey] == 1
		mu.Unlock()
		if first {
			done(hub.Position{}, fmt.Errorf("%w: no connection", hub.ErrUnavailable))
			return
		}
		h.Publish(p, done)
	}
	var a, b []string
	for i := range 8 {
		data := fmt.Sprint(i)
		if i%2 == 0 {
			a = append(a, data)
			q.add(data, "a", data)
		} else {
			b = append(b, data)
			q.add(data, "b", data)
		}
	}
	set, _ := ingesttest.Run(t, h, ingest.Deps{Publish: publish}, spec(q, nil))
	trial.Eventually(t, "everything is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), a...)
	want(t, ingesttest.Log(t, h, "b"), b...)
	if s := ingesttest.State(t, set, "q"); s.Retries != 8 || s.DeadLettered != 0 || s.Error != "" {
		t.Errorf("%+v: want 8 retries, and no error that remains", s)
	}
}

// After an UncertainError the message may be stored: publishing it again is harmless.
func TestAnUncertainPublishIsRepeated(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	q.add("1", "a", "1")
	first := true
	publish := func(p hub.Publication, done func(hub.Position, error)) {
		h.Publish(p, func(at hub.Position, err error) {
			if first {
				first, err = false, &hub.UncertainError{Key: p.IdempotencyKey, Err: errBroken}
			}
			done(at, err)
		})
	}
	ingesttest.Run(t, h, ingest.Deps{Publish: publish}, spec(q, nil))
	trial.Eventually(t, "it is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), "1")
}

func TestPoisonGoesToTheDeadLetterChannel(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	q.add("1", "a", "1")
	q.add("2", "a", "{broken")
	q.add("3", "other:a", "3") // a namespace that is not the source's
	q.add("4", "a b", "4")     // not a channel's name
	q.add("5", "a", `"`+strings.Repeat("x", 70_000)+`"`)
	q.add("6", "a", "\xff")
	q.add("7", "a", "7")
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(q, nil))
	trial.Eventually(t, "everything is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), "1", "7")
	dead := map[string]ingest.DeadLetter{}
	for _, text := range ingesttest.Log(t, h, "dead") {
		var d ingest.DeadLetter
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		dead[d.Position] = d
	}
	if len(dead) != 5 {
		t.Errorf("%d dead letters, want 5", len(dead))
	}
	f := func(position, reason, encoding string, truncated bool) {
		t.Helper()
		d := dead[position]
		if d.Source != "q" || d.Tries != 3 || !strings.Contains(d.Error, reason) || d.Encoding != encoding || d.Truncated != truncated {
			t.Errorf("%s: %+.300v", position, d)
		}
	}
	f("2", "not valid JSON", "text", false)
	f("3", "namespace", "", false)
	f("4", "bad channel", "", false)
	f("5", "too large", "text", true)
	f("6", "not valid JSON", "base64", false)
	if s := ingesttest.State(t, set, "q"); s.DeadLettered != 5 || s.Published != 2 {
		t.Errorf("%+v", s)
	}
}

// Without a dead-letter channel nothing is skipped: the source stops there, reports why,
// and continues when one is configured.
func TestPoisonBlocksASourceWithoutADeadLetterChannel(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	q.add("1", "a", "1")
	q.add("2", "a", "{")
	q.add("3", "a", "3")
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(q, func(c *ingest.Config) { c.DeadLetter, c.Tries = "", 1 }))
	trial.Eventually(t, "the source is blocked", func() bool { return ingesttest.State(t, set, "q").Phase == ingest.Blocked })
	if s := ingesttest.State(t, set, "q"); !strings.Contains(s.Error, "message 2 cannot be published") {
		t.Errorf("error %q", s.Error)
	}
	want(t, ingesttest.Log(t, h, "a"), "1")
	if err := set.Replace([]ingest.Spec{spec(q, nil)}); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "everything is acknowledged", func() bool { return q.len() == 0 })
	want(t, ingesttest.Log(t, h, "a"), "1", "3")
}

func TestPauseStopsReadingOnAllNodes(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	one, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(q, nil))
	two, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(newQueue(), nil))
	trial.Eventually(t, "both read", func() bool {
		return ingesttest.State(t, one, "q").Phase == ingest.Reading && ingesttest.State(t, two, "q").Phase == ingest.Reading
	})
	if _, err := two.Pause("q", true); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "both are paused", func() bool {
		return ingesttest.State(t, one, "q").Phase == ingest.Paused && ingesttest.State(t, two, "q").Phase == ingest.Paused
	})
	q.add("1", "a", "1")
	if _, err := one.Pause("q", false); err != nil {
		t.Fatal(err)
	}
	want(t, ingesttest.Await(t, h, "a", 1), "1")
	if _, err := one.Pause("none", true); !errors.Is(err, ingest.ErrUnknown) || !strings.Contains(err.Error(), "q") {
		t.Errorf("pause of an unknown source: %v", err)
	}
}

func TestOneNodeReads(t *testing.T) {
	h, q := ingesttest.Hub(t), newQueue()
	var mu sync.Mutex
	leads := false
	set, _ := ingesttest.Run(t, h, ingest.Deps{Leads: func(string) bool { mu.Lock(); defer mu.Unlock(); return leads }}, spec(q, nil))
	trial.Eventually(t, "it is on standby", func() bool { return ingesttest.State(t, set, "q").Phase == ingest.Standby })
	q.add("1", "a", "1")
	q.set(func() {
		if q.opened != 0 {
			t.Error("a node that does not lead opened the source")
		}
	})
	mu.Lock()
	leads = true
	mu.Unlock()
	want(t, ingesttest.Await(t, h, "a", 1), "1")
	q.set(func() { q.refuse = ingest.ErrStandby })
}

// Of two sources one is changed, and the other keeps its connection.
func TestReplaceRestartsWhatChanged(t *testing.T) {
	h, q, other := ingesttest.Hub(t), newQueue(), newQueue()
	q.refuse = errBroken
	named := func(c *ingest.Config) { c.Name = "other" }
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(q, nil), spec(other, named))
	trial.Eventually(t, "one reads and one fails", func() bool {
		return ingesttest.State(t, set, "other").Phase == ingest.Reading && ingesttest.State(t, set, "q").Errors > 0
	})
	if s := ingesttest.State(t, set, "q"); s.Phase != ingest.Connecting || !strings.Contains(s.Error, errBroken.Error()) {
		t.Errorf("%+v", s)
	}
	q.set(func() { q.refuse = nil })
	if err := set.Replace([]ingest.Spec{spec(q, func(c *ingest.Config) { c.Batch = 7 }), spec(other, named)}); err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "both read", func() bool { return ingesttest.State(t, set, "q").Phase == ingest.Reading })
	other.set(func() {
		if other.opened != 1 {
			t.Errorf("the unchanged source was opened %d times", other.opened)
		}
	})
	if err := set.Replace(nil); err != nil || len(set.States()) != 0 {
		t.Errorf("%v, %d sources", err, len(set.States()))
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*ingest.Config), says string) {
		t.Helper()
		c := ingest.Config{Name: "x", Kind: "kafka"}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(func(*ingest.Config) {}, "")
	f(func(c *ingest.Config) { c.Name = "a b" }, `name: invalid name "a b"`)
	f(func(c *ingest.Config) { c.Kind = "mysql" }, `kind: invalid kind "mysql": want nats, redis, postgres, kafka, udp`)
	f(func(c *ingest.Config) { c.Channel = "{topic}.{header.x}.{field.a.b}" }, "")
	f(func(c *ingest.Config) { c.Channel = "{subject}" }, "channel: unknown name {subject}: messages of kafka have {topic}, {partition}, {key}, {header.…}, {field.…}")
	f(func(c *ingest.Config) { c.Channel = "{topic" }, "channel: invalid template")
	f(func(c *ingest.Config) { c.Key = "{header.}" }, "key: unknown name {header.}")
	f(func(c *ingest.Config) { c.Payload = "xml" }, `payload: invalid payload "xml": want json, text or binary`)
	f(func(c *ingest.Config) { c.DeadLetter = ":" }, "dead_letter: bad channel name")
	f(func(c *ingest.Config) { c.Tries = -1 }, "tries: invalid number -1: want 1 to 1000")
	f(func(c *ingest.Config) { c.Batch = 10_001 }, "batch: invalid number 10001: want 1 to 10000")
}

func TestTemplate(t *testing.T) {
	m := ingest.Message{Data: []byte(`{"a":{"b":"x","n":1.50,"t":true,"o":{},"z":null}}`), Lookup: func(name string) (string, bool) { return "S", name == "subject" }}
	f := func(text, want string, ok bool) {
		t.Helper()
		tpl, err := ingest.ParseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tpl.Expand(&m); got != want || (err == nil) != ok {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	f("plain", "plain", true)
	f("", "", true)
	f("a.{subject}.{field.a.b}", "a.S.x", true)
	f("{{{subject}}}", "{S}", true)
	f("{field.a.n}{field.a.t}", "1.50true", true)
	f("{field.a.o}", "", false)
	f("{field.a.z}", "", false)
	f("{field.a.none}", "", false)
	f("{field.a.b.c}", "", false)
	f("{other}", "", false)
	for _, bad := range []string{"{", "}", "{}", "a{b", "{a b}", strings.Repeat("x", 1025)} {
		if _, err := ingest.ParseTemplate(bad); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"", "a.{subject}", "{{x}}", "{field.a.b}", "{", "}}", "{a{b}}"} {
		f.Add(s, []byte(`{"a":{"b":1}}`))
	}
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		tpl, err := ingest.ParseTemplate(text)
		if err != nil {
			return
		}
		m := ingest.Message{Data: data, Lookup: func(name string) (string, bool) { return "<" + name + ">", true }}
		got, err := tpl.Expand(&m)
		if len(tpl.Names()) == 0 && (err != nil || got != strings.NewReplacer("{{", "{", "}}", "}").Replace(text)) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	})
}
