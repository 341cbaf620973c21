package nats_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/ingesttest"
	"github.com/weir-gateway/weir/internal/push/ingest/nats"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a server in dir at port, -1 for a free one.
func start(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(trial.Patience) {
		t.Fatal("the NATS server is not ready")
	}
	return s
}

func connect(t *testing.T, url string) (*natsgo.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func spec(c nats.Config, change func(*ingest.Config)) ingest.Spec {
	common := ingest.Config{Name: "orders", Kind: "nats", DeadLetter: "dead"}
	if change != nil {
		change(&common)
	}
	return ingest.Spec{Config: common.WithDefaults(), Open: nats.Open(c), Same: c}
}

func numbers(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %d messages %.300q, want %d", len(got), got, len(want))
	}
}

// The server ends in the middle and comes back with the stream: every message is in the log
// once, in the order of the stream.
func TestAStreamIsReadThroughARestartOfItsServer(t *testing.T) {
	dir := t.TempDir()
	srv := start(t, dir, server.RANDOM_PORT)
	url := srv.ClientURL()
	_, js := connect(t, url)
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	publish := func(js jetstream.JetStream, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := js.Publish(ctx, "orders.eu.new", []byte(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(js, 0, 300)
	h := ingesttest.Hub(t, hub.Namespace{Name: "orders"}, hub.Namespace{Name: "default"})
	c := nats.Config{URL: url, Stream: "ORDERS", AckWait: hub.Duration(200 * time.Millisecond)}
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(c, func(c *ingest.Config) { c.Namespace, c.Channel, c.Batch = "orders", "{subject.2}.{subject.3}", 64 }))
	ingesttest.Await(t, h, "orders:eu.new", 100)
	srv.Shutdown()
	srv.WaitForShutdown()
	trial.Eventually(t, "the source notices", func() bool { return ingesttest.State(t, set, "orders").Errors > 0 })
	port, err := strconv.Atoi(url[strings.LastIndexByte(url, ':')+1:])
	if err != nil {
		t.Fatal(err)
	}
	start(t, dir, port)
	_, js = connect(t, url)
	publish(js, 300, 400)
	same(t, ingesttest.Await(t, h, "orders:eu.new", 400), numbers(0, 400))
	trial.Eventually(t, "nothing is left", func() bool { s := ingesttest.State(t, set, "orders"); return s.Lag == 0 && s.Phase == ingest.Reading })
}

// A reader that ends without an acknowledgement leaves messages to the next one, which reads
// them before newer ones; the log knows them.
func TestUnacknowledgedMessagesComeFirst(t *testing.T) {
	url := start(t, t.TempDir(), server.RANDOM_PORT).ClientURL()
	_, js := connect(t, url)
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish(ctx, "s", []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	c := nats.Config{URL: url, Stream: "S", AckWait: hub.Duration(200 * time.Millisecond)}
	r, err := nats.Open(c)(ctx, ingest.Options{Name: "orders", Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.Read(ctx)
	if err != nil || len(list) == 0 {
		t.Fatalf("%d messages, %v", len(list), err)
	}
	r.Close()
	h := ingesttest.Hub(t)
	ingesttest.Run(t, h, ingest.Deps{}, spec(c, func(c *ingest.Config) { c.Batch = 4 }))
	same(t, ingesttest.Await(t, h, "s", 10), numbers(0, 10))
}

func TestPlainSubjectsAreReadWhileConnected(t *testing.T) {
	url := start(t, t.TempDir(), server.RANDOM_PORT).ClientURL()
	nc, _ := connect(t, url)
	h := ingesttest.Hub(t)
	set, _ := ingesttest.Run(t, h, ingest.Deps{}, spec(nats.Config{URL: url, Subjects: []string{"a.*", "b"}}, func(c *ingest.Config) { c.Channel = "{subject}.{header.Region}" }))
	trial.Eventually(t, "it reads", func() bool { return ingesttest.State(t, set, "orders").Phase == ingest.Reading })
	for i, subject := range []string{"a.x", "b", "b"} {
		// The second and the third are the same message, by the id that their publisher gave.
		m := &natsgo.Msg{Subject: subject, Data: []byte(strconv.Itoa(min(i, 1))), Header: natsgo.Header{"Region": {"eu"}, natsgo.MsgIdHdr: {fmt.Sprint("id", min(i, 1))}}}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	same(t, ingesttest.Await(t, h, "a.x.eu", 1), numbers(0, 1))
	trial.Eventually(t, "all are published", func() bool { return ingesttest.State(t, set, "orders").Published == 3 })
	same(t, ingesttest.Log(t, h, "b.eu"), numbers(1, 2))
}

// While nothing can be published the queue of plain subjects fills, and the rest is counted.
func TestAFullQueueDropsAndCounts(t *testing.T) {
	url := start(t, t.TempDir(), server.RANDOM_PORT).ClientURL()
	nc, _ := connect(t, url)
	h := ingesttest.Hub(t)
	gate := make(chan struct{})
	publish := func(p hub.Publication, done func(hub.Position, error)) {
		go func() { <-gate; h.Publish(p, done) }()
	}
	set, _ := ingesttest.Run(t, h, ingest.Deps{Publish: publish}, spec(nats.Config{URL: url, Subjects: []string{"a"}, MaxPending: 5}, func(c *ingest.Config) { c.Batch = 1 }))
	trial.Eventually(t, "it reads", func() bool { return ingesttest.State(t, set, "orders").Phase == ingest.Reading })
	send := func(n int) {
		for range n {
			if err := nc.Publish("a", []byte("1")); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	trial.Eventually(t, "the first is read", func() bool { return ingesttest.State(t, set, "orders").Read == 1 })
	send(100)
	close(gate)
	trial.Eventually(t, "all are published or dropped", func() bool {
		s := ingesttest.State(t, set, "orders")
		return s.Published+s.Dropped == 101 && s.Dropped > 0
	})
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	f := func(change func(*nats.Config), says string) {
		t.Helper()
		c := nats.Config{URL: "nats://127.0.0.1:4222", Stream: "S"}
		change(&c)
		err := c.WithDefaults().Validate()
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	f(func(*nats.Config) {}, "")
	f(func(c *nats.Config) { c.URL = "nats://a:1,tls://b:2" }, "")
	f(func(c *nats.Config) { c.URL = "" }, "url: it is empty")
	f(func(c *nats.Config) { c.URL = "http://user:hunter2@x" }, `url: invalid scheme "http": want nats://`)
	f(func(c *nats.Config) { c.Stream = "" }, "subjects: there are none, and no stream")
	f(func(c *nats.Config) { c.Subjects = []string{"a b"} }, `subjects[0]: invalid subject "a b"`)
	f(func(c *nats.Config) { c.Durable = "a.b" }, "durable: invalid name")
	f(func(c *nats.Config) { c.Password, c.PasswordFile = "x", "y" }, "password_file: there is a password as well")
	f(func(c *nats.Config) { c.AckWait = 1 }, "ack_wait: invalid duration 1ns")
	f(func(c *nats.Config) { c.MaxPending = -1 }, "max_pending: invalid number -1")
}

// Neither an address that does not answer nor a login that is refused shows the password.
func TestErrorsShowNoSecret(t *testing.T) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(trial.Patience) {
		t.Fatal("the NATS server is not ready")
	}
	for _, url := range []string{"nats://u:hunter2@127.0.0.1:1", strings.Replace(srv.ClientURL(), "nats://", "nats://u:hunter2@", 1)} {
		_, err := nats.Open(nats.Config{URL: url, Subjects: []string{"a"}})(context.Background(), ingest.Options{Name: "x", Batch: 1})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}
