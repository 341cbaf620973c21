// Package admin serves the operator: the dashboard, metrics, profiles, what runs, who is
// connected, what is published, on a listener of its own with net/http. On loopback it
// requires a key only if there is one; elsewhere it does not start without.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
	"github.com/weir-gateway/weir/internal/observe/audit"
	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/observer"
	"github.com/weir-gateway/weir/internal/observe/tune"
	"github.com/weir-gateway/weir/internal/push/ingest"
)

// Errors that a source may answer with. Test with errors.Is.
var (
	// ErrNotFound is answered with 404.
	ErrNotFound = errors.New("there is none")
	// ErrBad is answered with 400, ErrRefused with 422, ErrBusy with 429; everything
	// else with 503.
	ErrBad     = errors.New("bad request")
	ErrRefused = errors.New("refused")
	ErrBusy    = errors.New("busy")
)

// Sources is what the admin listener shows and does. All functions may be called by any
// goroutine; the package above provides them.
type Sources struct {
	// Ready returns why the process should get no new clients, nil if it should; nil
	// means always.
	Ready func() error
	// Starting reports whether the process still waits for its broker: then only health,
	// metrics and /api/info are answered. nil means never.
	Starting func() bool
	// Metrics are what /metrics shows, all of it.
	Metrics prometheus.Gatherer
	// Info is what /api/info answers.
	Info func() any
	// Snapshot is the state of everything now; it may be slightly old.
	Snapshot func(ctx context.Context) *Snapshot
	// Live is the stream of snapshots.
	Live http.Handler
	// Connections returns up to limit subscribers, those with most of sort first.
	Connections func(ctx context.Context, sort string, limit int) (*Connections, error)
	// Connection returns one, Disconnect ends it.
	Connection func(ctx context.Context, id uint64) (*ConnectionDetail, error)
	Disconnect func(ctx context.Context, id uint64) error
	// Channels returns up to limit channels, those with most of sort first; Messages the
	// newest of one.
	Channels func(ctx context.Context, sort string, limit int) (*Channels, error)
	Messages func(ctx context.Context, channel string, limit int) (*Messages, error)
	// Publish publishes by hand: status and body of the answer.
	Publish func(ctx context.Context, body []byte) (status int, answer []byte)
	// Subscribe streams a channel.
	Subscribe http.Handler
	// BeginTrace starts to follow a message, Trace reports how far it has come; with wait
	// it returns when that is decided, or ctx is done.
	BeginTrace func(req *TraceRequest) (*Trace, error)
	Trace      func(ctx context.Context, id string, wait bool) (*Trace, error)
	// Bundles are the evidence; Capture writes one now, OpenBundle reads one.
	Bundles    func() *Bundles
	Capture    func(ctx context.Context, reason string) (*governor.Bundle, error)
	OpenBundle func(id string) (io.ReadCloser, error)
	// Certificates are those that the public listener serves or is to obtain.
	Certificates func() []Certificate
	// Upstreams are the clusters, peers, splits and drift monitors.
	Upstreams func() any
	// Cluster is the nodes and the logs, as this node sees them.
	Cluster func(ctx context.Context) *Cluster
	// Promote has this node's site lead the logs of the namespaces, of all if none is named.
	Promote func(ctx context.Context, namespaces []string) error
	// SteerCanary does "roll-back" or "restart" to a split's canary.
	SteerCanary func(split, action string) error
	// Tune compares the machine with a profile.
	Tune func(p tune.Profile) (*tune.Report, error)
	// Observe watches this process from the kernel for some time; ErrBusy while another
	// does.
	Observe func(ctx context.Context, d time.Duration) (*observer.Report, error)
	// Reload reads the configuration again and says what took effect.
	Reload func(ctx context.Context) (any, error)
	// Upgrade starts the program anew and hands everything over to that process, and
	// UpgradeState reports how far that has come.
	Upgrade      func(ctx context.Context) (Upgrade, error)
	UpgradeState func() Upgrade
	// Ingest is what the sources of sources: do; PauseSource pauses one on all nodes, or
	// resumes it.
	Ingest      func() []ingest.State
	PauseSource func(name string, paused bool) (ingest.State, error)
	// Revoke refuses the tokens of a subject, or one token, on all nodes; Unrevoke ends that, and
	// Revocations are those in force.
	Revoke      func(context.Context, auth.Revocation) (auth.Revocation, error)
	Unrevoke    func(ctx context.Context, kind, name string) error
	Revocations func() []auth.Revocation
	// Diff reports what a reload of the configuration in text, YAML, would change.
	Diff func(ctx context.Context, text []byte) (any, error)
	// Sorts are the values sort may have; the first is the default.
	Sorts, ChannelSorts []string
	// Login is the login by OpenID Connect; nil: none.
	Login *login.OIDC
	// Page is the dashboard; nil: a list of what there is.
	Page fs.FS
}

// A Server is the admin listener.
type Server struct {
	listener net.Listener
	http     *http.Server
	stop     context.CancelFunc // ends streams
	access   *access
}

// Open opens cfg.Listen.
func Open(cfg Config) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", cfg.WithDefaults().Listen)
	if err != nil {
		return nil, fmt.Errorf("admin listener: %w", err)
	}
	return l, nil
}

// New prepares to serve src on l, which is the server's unless there is an error.
func New(cfg Config, l net.Listener, src Sources, log *slog.Logger) (*Server, error) {
	cfg = cfg.WithDefaults()
	token, err := cfg.token()
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if token == "" && src.Login == nil && !Loopback(l.Addr().String()) {
		return nil, fmt.Errorf("admin: listen %s: it can be reached from other machines and there is neither a token nor oidc", l.Addr())
	}
	a := newAccess(token, string(cfg.ReadToken), src.Login, log)
	if cfg.AuditLog != "" {
		if a.records, err = audit.Open(cfg.AuditLog, nil); err != nil {
			return nil, fmt.Errorf("admin: %w", err)
		}
	}
	streams, stop := context.WithCancel(context.Background())
	return &Server{listener: l, stop: stop, access: a, http: &http.Server{
		Handler: handler(src, a), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		BaseContext: func(net.Listener) context.Context { return streams },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr returns the address in use.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}

// Socket returns a duplicate of the listening socket, which the caller closes. It stays
// non-blocking, as os.File.Fd would not leave it.
func (s *Server) Socket() (fd int, err error) {
	l, ok := s.listener.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("admin listener: %s is not a socket of the system", s.listener.Addr())
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	var dup error
	err = raw.Control(func(from uintptr) { fd, dup = sys.Dup(int(from)) })
	return fd, errors.Join(err, dup)
}

// StopAccepting closes the listening socket. Requests under way continue.
func (s *Server) StopAccepting() { _ = s.listener.Close() }

// Finish ends Run and streams, and returns when other requests under way are answered, or
// within has passed.
func (s *Server) Finish(within time.Duration) {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = s.http.Shutdown(ctx)
}

// Close ends Run and every request. It is idempotent.
func (s *Server) Close() error {
	s.stop()
	_ = s.listener.Close()
	err := s.http.Close()
	if s.access.records != nil {
		_ = s.access.records.Close() // each record is on the disk already
	}
	return err
}
