package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-gateway/weir/internal/push/ingest"
	"github.com/weir-gateway/weir/internal/push/ingest/postgres"
	"github.com/weir-gateway/weir/test/judge"
)

const patience = 60 * time.Second

// TestSourcesAreInTheLogOnce writes numbers into Redis, PostgreSQL, Kafka and JetStream while
// Weir is killed, while the sources are, and while the broker is away: the log has each number
// once, and those of a channel in order.
func TestSourcesAreInTheLogOnce(t *testing.T) {
	t.Parallel()
	judge.Need(t, "redis", "postgres")
	all := newSystems(t)
	weir := judge.New(t, judge.Options{Build: judge.Race, Config: map[string]any{
		"broker":  map[string]any{"nats": map[string]any{"url": all.nats.url, "dir": ""}},
		"sources": all.sources(),
	}})
	all.write(0, 40)
	weir.Kill() // while it reads
	all.write(40, 60)
	weir.Start()
	all.write(60, 120)
	logged(t, weir, "redis", 20)
	weir.Kill()
	weir.Start()
	all.write(120, 140)
	all.restart() // the broker among them
	all.write(140, 150)
	var want []string
	for i := range 150 {
		want = append(want, strconv.Itoa(i))
	}
	for _, channel := range []string{"redis", "postgres", "kafka", "nats"} {
		if got := logged(t, weir, channel, len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %d messages, want %d: %.600q", channel, len(got), len(want), got)
		}
	}
	if dead := logged(t, weir, "dead", 1); len(dead) != 1 || !strings.Contains(dead[0], "not valid JSON") {
		t.Errorf("dead letters: %.300q", dead)
	}
	// Weir has the outbox to itself: another node is on standby.
	outbox := postgres.Open(postgres.Config{URL: "postgres://weir@" + all.postgres.addr + "/postgres"})
	if _, err := outbox(t.Context(), ingest.Options{Name: "postgres", Batch: 1}); !errors.Is(err, ingest.ErrStandby) {
		t.Errorf("a second reader of the outbox: %v, want %v", err, ingest.ErrStandby)
	}
	out, err := exec.Command(judge.Binary(t, judge.Race), "source", "list", "--admin", "http://"+weir.Admin).CombinedOutput()
	for _, name := range []string{"redis ", "postgres ", "kafka ", "nats "} {
		if err != nil || !strings.Contains(string(out), "\n"+name) {
			t.Errorf("weir source list has no %s: %v\n%s", name, err, out)
		}
	}
	if strings.Contains(weir.Log(), "hunter2") {
		t.Error("the log shows a password")
	}
}

// logged waits until channel has n messages, and returns those that it has.
func logged(t *testing.T, weir *judge.Server, channel string, n int) (all []string) {
	t.Helper()
	var state string
	defer func() {
		if t.Failed() {
			t.Log(state)
		}
	}()
	judge.Eventually(t, patience, fmt.Sprintf("%s has %d messages", channel, n), func() bool {
		var page struct {
			Messages []struct{ Data json.RawMessage }
		}
		r, err := judge.HTTP.Get("http://" + weir.Admin + "/api/channels/" + channel + "/messages?limit=200")
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		if r.StatusCode != http.StatusOK || json.NewDecoder(r.Body).Decode(&page) != nil {
			return false
		}
		all = nil
		for _, m := range page.Messages {
			all = append(all, string(m.Data))
		}
		if len(all) < n {
			state = fmt.Sprintf("%s has %d of %d", channel, len(all), n)
		}
		return len(all) >= n
	})
	return all
}

// systems are the sources.
type systems struct {
	t        *testing.T
	redis    *daemon
	postgres *daemon
	nats     *natsServer
	kafka    *kfake.Cluster
	kafkaDir string
}

func newSystems(t *testing.T) *systems {
	s := &systems{t: t, redis: newRedis(t), postgres: newPostgres(t), nats: &natsServer{t: t, dir: t.TempDir()}, kafkaDir: t.TempDir()}
	s.nats.start(server.RANDOM_PORT)
	s.startKafka(0)
	t.Cleanup(func() { s.kafka.Close() })
	judge.Eventually(t, patience, "PostgreSQL answers", func() bool { return s.sql("SELECT 1") == nil })
	schema, err := exec.Command(judge.Binary(t, judge.Race), "source", "sql").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.sql(string(schema)); err != nil {
		t.Fatal(err)
	}
	s.nats.js(func(js jetstream.JetStream) error {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NUMBERS", Subjects: []string{"numbers.>"}})
		return err
	})
	judge.Eventually(t, patience, "Redis answers", func() bool {
		return s.command(func(c *redis.Client) error {
			return c.XAdd(t.Context(), &redis.XAddArgs{Stream: "numbers", ID: "1-1", Values: []string{"data", "{broken", "to", "redis"}}).Err()
		}) == nil
	})
	return s
}

// sources are those of the configuration.
func (s *systems) sources() []any {
	source := func(kind, channel string, section map[string]any) any {
		return map[string]any{"name": kind, "kind": kind, "channel": channel, "dead_letter": "dead", "batch": 16, kind: section}
	}
	return []any{
		source("redis", "{value.to}", map[string]any{"url": "redis://" + s.redis.addr + "/0", "password": "hunter2", "streams": []string{"numbers"}}),
		source("postgres", "{channel}", map[string]any{"url": "postgres://weir:hunter2@" + s.postgres.addr + "/postgres", "poll": "200ms"}),
		source("kafka", "{key}", map[string]any{"brokers": s.kafka.ListenAddrs(), "topics": []string{"numbers"}, "session_timeout": "1s"}),
		source("nats", "{subject.2}", map[string]any{"url": s.nats.url, "stream": "NUMBERS", "ack_wait": "500ms"}),
	}
}

// write writes the numbers from to to into each of them.
func (s *systems) write(from, to int) {
	s.t.Helper()
	ctx := s.t.Context()
	producer, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.ListenAddrs()...), kgo.DefaultProduceTopic("numbers"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer producer.Close()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	must(s.command(func(c *redis.Client) error {
		for i := from; i < to; i++ {
			if err := c.XAdd(ctx, &redis.XAddArgs{Stream: "numbers", Values: []string{"data", strconv.Itoa(i), "to", "redis"}}).Err(); err != nil {
				return err
			}
		}
		return nil
	}))
	for i := from; i < to; i++ {
		end := "COMMIT"
		if i%5 == 0 { // a transaction that is rolled back publishes nothing
			must(s.sql(fmt.Sprintf("BEGIN; SELECT weir_publish('postgres', '\"rolled back %d\"'); ROLLBACK", i)))
		}
		must(s.sql(fmt.Sprintf("BEGIN; SELECT weir_publish('postgres', '%d'); %s", i, end)))
		must(producer.ProduceSync(ctx, &kgo.Record{Key: []byte("kafka"), Value: []byte(strconv.Itoa(i))}).FirstErr())
	}
	s.nats.js(func(js jetstream.JetStream) error {
		for i := from; i < to; i++ {
			if _, err := js.Publish(ctx, "numbers.nats", []byte(strconv.Itoa(i))); err != nil {
				return err
			}
		}
		return nil
	})
}

// restart kills all of them and starts them with what they have stored.
func (s *systems) restart() {
	s.t.Helper()
	port := func(addr string) int {
		_, p, _ := net.SplitHostPort(addr)
		n, err := strconv.Atoi(p)
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	at := port(s.kafka.ListenAddrs()[0])
	s.redis.kill(syscall.SIGKILL)
	s.postgres.kill(syscall.SIGQUIT) // its processes end at once, and it recovers from its log
	s.nats.stop()
	s.kafka.Close()
	s.startKafka(at)
	s.nats.start(port(strings.TrimPrefix(s.nats.url, "nats://")))
	s.postgres.start()
	s.redis.start()
	judge.Eventually(s.t, patience, "PostgreSQL answers", func() bool { return s.sql("SELECT 1") == nil })
	judge.Eventually(s.t, patience, "Redis answers", func() bool {
		return s.command(func(c *redis.Client) error { return c.Ping(s.t.Context()).Err() }) == nil
	})
}

func (s *systems) startKafka(port int) {
	s.t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.DataDir(s.kafkaDir), kfake.GroupMinSessionTimeout(100 * time.Millisecond), kfake.SeedTopics(2, "numbers")}
	if port != 0 {
		opts = append(opts, kfake.Ports(port))
	}
	var err error
	if s.kafka, err = kfake.NewCluster(opts...); err != nil {
		s.t.Fatal(err)
	}
}

// sql runs statements on a connection of their own.
func (s *systems) sql(text string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, "postgres://weir@"+s.postgres.addr+"/postgres")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.PgConn().Exec(ctx, text).ReadAll()
	return err
}

func (s *systems) command(f func(*redis.Client) error) error {
	c := redis.NewClient(&redis.Options{Addr: s.redis.addr, Password: "hunter2", MaxRetries: -1})
	defer func() { _ = c.Close() }()
	return f(c)
}

// natsServer is both a source and Weir's broker.
type natsServer struct {
	t    *testing.T
	dir  string
	url  string
	srv  *server.Server
	once bool
}

func (n *natsServer) start(port int) {
	n.t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: n.dir, NoLog: true, NoSigs: true})
	if err != nil {
		n.t.Fatal(err)
	}
	srv.Start()
	n.srv = srv
	if !n.once {
		n.once = true
		n.t.Cleanup(n.stop)
	}
	if !srv.ReadyForConnections(patience) {
		n.t.Fatal("the NATS server is not ready")
	}
	n.url = srv.ClientURL()
}

func (n *natsServer) stop() {
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
}

func (n *natsServer) js(f func(jetstream.JetStream) error) {
	n.t.Helper()
	nc, err := natsgo.Connect(n.url)
	if err != nil {
		n.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		err = f(js)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// A daemon is a server of Debian's that can be killed and started again.
type daemon struct {
	t       *testing.T
	addr    string
	command func() *exec.Cmd
	cmd     *exec.Cmd
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = d.command()
	if d.cmd.SysProcAttr == nil {
		d.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	d.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) kill(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait() // ended by the signal
}

func newRedis(t *testing.T) *daemon {
	t.Helper()
	dir, d := t.TempDir(), &daemon{t: t, addr: judge.FreeAddr(t)}
	_, port, _ := net.SplitHostPort(d.addr)
	d.command = func() *exec.Cmd {
		return exec.Command(judge.Path(".cache", "redis", "redis-server"), "--port", port, "--bind", "127.0.0.1", "--dir", dir,
			"--requirepass", "hunter2", "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	}
	d.start()
	t.Cleanup(func() { d.kill(syscall.SIGKILL) })
	return d
}

// newPostgres makes a database. Its programs refuse to run as root: they run as another user then.
func newPostgres(t *testing.T) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const unprivileged = 65534
	program := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(judge.Path(".cache", "postgres", name), args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
		}
		return cmd
	}
	if os.Getuid() == 0 {
		if err := os.Chown(dir, unprivileged, unprivileged); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	if out, err := program("initdb", "-D", data, "-U", "weir", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	d := &daemon{t: t, addr: judge.FreeAddr(t)}
	_, port, _ := net.SplitHostPort(d.addr)
	d.command = func() *exec.Cmd {
		return program("postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=16MB")
	}
	d.start()
	t.Cleanup(func() { d.kill(syscall.SIGQUIT) })
	return d
}
