package centrifuge

import (
	"context"
	"log/slog"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/socket"
)

// Deps are what a Server works with.
type Deps struct {
	// Hub carries the messages. Required.
	Hub *hub.Hub
	// Formats are what AddFormats returned for the hub's encoders. Required.
	Formats Formats
	// Auth verifies tokens where Config names no keys, and Weir's own API keys.
	// Required.
	Auth *auth.Authenticator
	// Version is told to clients; empty means "weir".
	Version string
	// Request sends a request to a NATS subject and waits for its answer, for
	// Config.RPCSubject; nil: there is none.
	Request func(ctx context.Context, subject string, data []byte) ([]byte, error)
	// Log gets what a human may want to know; nil discards.
	Log *slog.Logger
}

// A Server speaks the protocol with the clients of a process.
type Server struct {
	cfg  Config
	deps Deps
}

// New returns a Server. The hub need not be started yet.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg.WithDefaults(), deps: deps}, nil
}

// Endpoints are the paths it serves, for the fronts; none unless enabled.
func (s *Server) Endpoints() []socket.Endpoint { return nil }
