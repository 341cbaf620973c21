package kafka_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/ingesttest"
	"github.com/weir-gateway/weir/internal/push/ingest/kafka"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster starts a broker that keeps its topics in dir.
func cluster(t *testing.T, dir string, port int) *kfake.Cluster {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.DataDir(dir), kfake.GroupMinSessionTimeout(100 * time.Millisecond), kfake.SeedTopics(3, "orders")}
	if port != 0 {
		opts = append(opts, kfake.Ports(port))
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// produce writes the numbers from to to, each under the key of its last digit's parity.
func produce(t *testing.T, c *kfake.Cluster, from, to int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var records []*kgo.Record
	for i := from; i < to; i++ {
		records = append(records, &kgo.Record{Key: []byte("k" + strconv.Itoa(i%2)), Value: []byte(strconv.Itoa(i)), Headers: []kgo.RecordHeader{{Key: "region", Value: []byte("eu")}}})
	}
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func spec(c kafka.Config, change func(*ingest.Config)) ingest.Spec {
	common := ingest.Config{Name: "orders", Kind: "kafka", DeadLetter: "dead", Channel: "{topic}.{header.region}.{key}", Batch: 50}
	if change != nil {
		change(&common)
	}
	return ingest.Spec{Config: common.WithDefaults(), Open: kafka.Open(c), Shared: true, Same: c}
}

func config(c *kfake.Cluster) kafka.Config {
	return kafka.Config{Brokers: c.ListenAddrs(), Topics: []string{"orders"}, SessionTimeout: hub.Duration(time.Second)}
}

// check wants on the channels of both keys the numbers below n, each once and in order.
func check(t *testing.T, h *hub.Hub, n int) {
	t.Helper()
	for parity := range 2 {
		var want []string
		for i := parity; i < n; i += 2 {
			want = append(want, strconv.Itoa(i))
		}
		channel := "orders.eu.k" + strconv.Itoa(parity)
		if got := ingesttest.Await(t, h, channel, len(want)); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got %d messages %.300q, want %d", channel, len(got), got, len(want))
		}
	}
}

// The broker is away and comes back: every record is in the log once, and a key in its order.
func TestTopicsAreReadThroughARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := cluster(t, dir, 0)
	produce(t, c, 0, 500)
	h := ingesttest.Hub(t)
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(config(c), nil))
	ingesttest.Await(t, h, "orders.eu.k0", 60)
	addr := c.ListenAddrs()[0]
	port, err := strconv.Atoi(addr[strings.LastIndexByte(addr, ':')+1:])
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = cluster(t, dir, port)
	produce(t, c, 500, 600)
	check(t, h, 600)
	trial.Eventually(t, "nothing is left", func() bool { s := ingesttest.State(t, set, "orders"); return s.Lag == 0 && s.Error == "" })
}

// Records whose offsets were not committed are read again, by a process that knows nothing of
// them, and the log has them once.
func TestUncommittedRecordsAreInTheLogOnce(t *testing.T) {
	t.Parallel()
	c := cluster(t, t.TempDir(), 0)
	produce(t, c, 0, 200)
	h := ingesttest.Hub(t)
	var published atomic.Int64
	gate, cancel := context.WithCancel(t.Context())
	publish := func(p hub.Publication, done func(hub.Position, error)) {
		h.Publish(p, func(at hub.Position, err error) {
			if published.Add(1) < 20 { // of the batch that is never acknowledged
				done(at, err)
				return
			}
			cancel()
		})
	}
	_, stop := ingesttest.Run(t, h, ingest.Deps{Publish: publish}, spec(config(c), func(c *ingest.Config) { c.Batch = 200 }))
	<-gate.Done()
	stop()
	ingesttest.Run(t, h, ingest.Deps{}, spec(config(c), nil))
	check(t, h, 200)
}

// Two nodes are members of one group: each record is read by one of them.
func TestNodesShareThePartitions(t *testing.T) {
	t.Parallel()
	c := cluster(t, t.TempDir(), 0)
	h := ingesttest.Hub(t)
	one, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(config(c), nil))
	two, stop := ingesttest.Run(t, h, ingest.Deps{}, spec(config(c), nil))
	trial.Eventually(t, "both read", func() bool {
		return ingesttest.State(t, one, "orders").Phase == ingest.Reading && ingesttest.State(t, two, "orders").Phase == ingest.Reading
	})
	produce(t, c, 0, 100)
	check(t, h, 100)
	stop()
	produce(t, c, 100, 200)
	check(t, h, 200)
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*kafka.Config), says string) {
		t.Helper()
		c := kafka.Config{Brokers: []string{"127.0.0.1:9092"}, Topics: []string{"t"}}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(func(*kafka.Config) {}, "")
	f(func(c *kafka.Config) { c.Brokers = nil }, "brokers: there are none")
	f(func(c *kafka.Config) { c.Brokers = []string{"x"} }, `brokers[0]: invalid address "x": want host:port`)
	f(func(c *kafka.Config) { c.Topics = nil }, "topics: there are none")
	f(func(c *kafka.Config) { c.Topics = []string{"a b"} }, `topics[0]: invalid topic "a b"`)
	f(func(c *kafka.Config) { c.SASL = "gssapi" }, `sasl: invalid mechanism "gssapi"`)
	f(func(c *kafka.Config) { c.SASL = "plain" }, "user: it is empty, and sasl is plain")
	f(func(c *kafka.Config) { c.Start = "middle" }, `start: invalid start "middle": want earliest or latest`)
	f(func(c *kafka.Config) { c.SessionTimeout = 1 }, "session_timeout: invalid duration 1ns")
}

// A login that is refused is an error without the password in it; the right one reads.
func TestLoginAndItsErrors(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "weir", "right-password"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	open := func(password string) error {
		cfg := config(c)
		cfg.User, cfg.SASL = "weir", "scram-sha-256"
		if err := cfg.Password.UnmarshalText([]byte(password)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), trial.Patience)
		defer cancel()
		r, err := kafka.Open(cfg)(ctx, ingest.Options{Name: "orders", Batch: 1})
		if err == nil {
			r.Close()
		}
		return err
	}
	if err := open("hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the wrong password: %v", err)
	}
	if err := open("right-password"); err != nil {
		t.Errorf("the right password: %v", err)
	}
}
