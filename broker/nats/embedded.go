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

	"github.com/weir-gateway/weir/hub"
)

// An embedded is a NATS server in this process and its directory.
type embedded struct {
	dir  string
	lock *os.File
	srv  *server.Server
}

// bootTimeout bounds how long the embedded server may take to recover its files.
const bootTimeout = 2 * time.Minute

// startEmbedded locks cfg.Dir and starts a server on it. It syncs every write
// when one of namespaces asks for that: the setting is the server's, not a stream's.
func startEmbedded(cfg Config, namespaces []hub.Namespace, log *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store directory: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{dir: cfg.Dir, lock: lock}
	opts, err := e.options(cfg, namespaces)
	if err == nil {
		e.srv, err = server.NewServer(opts)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded NATS server: %w", err), e.stop())
	}
	e.srv.SetLoggerV2(serverLog{log.With("component", "nats-server")}, false, false, false)
	e.srv.Start()
	if !e.srv.ReadyForConnections(bootTimeout) {
		return nil, errors.Join(fmt.Errorf("embedded NATS server on %s: not ready after %v", cfg.Dir, bootTimeout), e.stop())
	}
	return e, nil
}

func (e *embedded) options(cfg Config, namespaces []hub.Namespace) (*server.Options, error) {
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
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("cluster.listen: port %q", port)
	}
	// Routes wait for the client listener, so there is one; on loopback, for nobody.
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
	if e.srv == nil {
		return false
	}
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
	return true
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
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return f, nil
}

// free returns how many bytes may still be written to dir before minFree is reached.
func free(dir string, minFree int64) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if minFree == 0 {
		minFree = min(64<<20, int64(s.Blocks)*s.Bsize/8)
	}
	return int64(s.Bavail)*s.Bsize - minFree, nil
}

// A room is what may still be written to the embedded server's disk. Publishes
// take from it what they will need; it is measured anew several times a second
// and when it has been used up. The server itself would meet a full disk in the
// middle of a write and then stop the stream until it is started again.
type room struct {
	dir     string
	minFree int64
	left    atomic.Int64
	kick    chan struct{} // holds a token when left was used up
}

func newRoom(cfg Config) (*room, error) {
	r := &room{dir: cfg.Dir, minFree: cfg.MinFree, kick: make(chan struct{}, 1)}
	return r, r.look(0)
}

// look measures. Pending is what was taken and is not written yet.
func (r *room) look(pending int64) error {
	left, err := free(r.dir, r.minFree)
	if err == nil {
		r.left.Store(left - pending)
	}
	return err
}

// take reports whether n bytes may be written.
func (r *room) take(n int64) bool {
	if r.left.Add(-n) >= 0 {
		return true
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
	return false
}

// full reports whether a message of usual size would be refused.
func (r *room) full() bool { return r.left.Load() < 64<<10 }

// serverLog writes the server's own words to our log, one level down: what the
// server calls an error is for us a reason to say so ourselves.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(f string, a ...any) {
	l.log.Debug("nats server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Warnf(f string, a ...any) { l.log.Info("nats server", "text", fmt.Sprintf(f, a...)) }
func (l serverLog) Errorf(f string, a ...any) {
	l.log.Warn("nats server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Fatalf(f string, a ...any) {
	l.log.Error("nats server", "text", fmt.Sprintf(f, a...))
}
func (l serverLog) Debugf(string, ...any) {}
func (l serverLog) Tracef(string, ...any) {}
