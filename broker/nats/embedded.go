package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// An embedded is a NATS server in this process and its directory.
type embedded struct {
	lock *os.File
	opts func() (*server.Options, error)
	log  *slog.Logger
	srv  atomic.Pointer[server.Server] // replaced by restart; nil before the first
	// syncs says that files are synced with each write, for a namespace that there was at the
	// start asked for it.
	syncs bool
}

// bootTimeout bounds how long the embedded server may take to recover its files.
const bootTimeout = 2 * time.Minute

// startEmbedded locks cfg.Dir and starts a server on it. It syncs every write
// when one of namespaces requires that: the setting is the server's, not a stream's.
func startEmbedded(cfg Config, namespaces []hub.Namespace, log *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store directory: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{
		lock: lock, log: log.With("component", "nats-server"),
		opts: func() (*server.Options, error) { return options(cfg, namespaces) },
	}
	for _, n := range namespaces {
		e.syncs = e.syncs || n.Durability == hub.Synced
	}
	if err := e.boot(); err != nil {
		return nil, errors.Join(fmt.Errorf("embedded NATS server on %s: %w", cfg.Dir, err), e.stop())
	}
	return e, nil
}

// boot starts the server and waits until it has recovered its files.
func (e *embedded) boot() error {
	opts, err := e.opts()
	if err != nil {
		return err
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	e.srv.Store(srv)
	var fatal atomic.Pointer[string]
	srv.SetLoggerV2(serverLog{e.log, &fatal}, false, false, false)
	srv.Start()
	if why := fatal.Load(); why != nil {
		return errors.New(*why)
	}
	if !srv.ReadyForConnections(bootTimeout) {
		return fmt.Errorf("not ready after %v", bootTimeout)
	}
	return nil
}

// restart ends the server and starts another one on the same files.
func (e *embedded) restart() error {
	e.stopServer()
	return e.boot()
}

func options(cfg Config, namespaces []hub.Namespace) (*server.Options, error) {
	o := &server.Options{
		ServerName: "weir",
		DontListen: true,
		NoSigs:     true,
		JetStream:  true,
		StoreDir:   filepath.Join(cfg.Dir, "nats"),
		MaxPayload: 2 << 20, // hub allows messages of 1 MiB; headers come on top
		// The streams' own bounds and MinFree rule the disk. Left alone the server
		// would take part of what is free now as its bound for ever.
		JetStreamMaxStore: 1 << 50,
	}
	for _, n := range namespaces {
		o.SyncAlways = o.SyncAlways || n.Durability == hub.Synced
	}
	c := cfg.Cluster
	if c.Name == "" {
		return o, nil
	}
	quickElections()
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("cluster.listen: port %q", port)
	}
	// Routes wait for the client listener, so there is one; on loopback, unused.
	o.ServerName, o.DontListen, o.Host, o.Port = c.Node, false, "127.0.0.1", server.RANDOM_PORT
	o.Cluster = server.ClusterOpts{Name: c.Name, Host: host, Port: n, Username: c.User, Password: c.Password}
	for _, r := range c.Routes {
		u := &url.URL{Scheme: "nats-route", Host: r}
		if c.User != "" {
			u.User = url.UserPassword(c.User, c.Password)
		}
		o.Routes = append(o.Routes, u)
	}
	return o, nil
}

// stopServer ends the server and waits until its files are synced and closed.
// It reports whether there was one.
func (e *embedded) stopServer() bool {
	srv := e.srv.Load()
	if srv == nil {
		return false
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	return true
}

// release lets the directory go to another process. The server has ended.
func (e *embedded) release() error {
	return syscall.Flock(int(e.lock.Fd()), syscall.LOCK_UN)
}

// lockAgain is how long resume waits for the other process to let the directory go.
const lockAgain = 5 * time.Second

// resume takes the directory back and starts a server on it.
func (e *embedded) resume() error {
	for end := time.Now().Add(lockAgain); ; time.Sleep(time.Millisecond) {
		err := syscall.Flock(int(e.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return e.boot()
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return fmt.Errorf("lock the store directory again: %w", err)
		}
	}
}

// stop ends the server and lets the directory go.
func (e *embedded) stop() error {
	e.stopServer()
	return e.lock.Close()
}

// lockDir takes dir for this process. The lock goes with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	name := filepath.Join(dir, "weir.lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(name)
		f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		return nil, fmt.Errorf("the store directory %s is in use by process %s; give each process a directory of its own, "+
			"or let several share one NATS by its url", dir, strings.TrimSpace(string(owner)))
	}
	// In this order a file that is there keeps its space on a full disk. The number is
	// only for people; without space for it the lock works all the same.
	pid := fmt.Appendln(nil, os.Getpid())
	if _, err = f.WriteAt(pid, 0); err == nil {
		err = f.Truncate(int64(len(pid)))
	}
	if err != nil && !noSpace(err) {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return f, nil
}

// serverLog writes the server's own words to our log, one level down: what the
// server calls an error is for us a reason to say so ourselves.
type serverLog struct {
	log   *slog.Logger
	fatal *atomic.Pointer[string] // why it cannot start
}

func (l serverLog) Noticef(f string, a ...any) {
	l.log.Debug("nats server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Warnf(f string, a ...any) { l.log.Info("nats server", "text", fmt.Sprintf(f, a...)) }
func (l serverLog) Errorf(f string, a ...any) {
	l.log.Warn("nats server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Fatalf(f string, a ...any) {
	text := fmt.Sprintf(f, a...)
	l.fatal.Store(&text)
}
func (l serverLog) Debugf(string, ...any) {}
func (l serverLog) Tracef(string, ...any) {}
