package eventloop

import (
	"log/slog"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// maxTable bounds the connections of one ring where the descriptor limit is far
// beyond need: the kernel allocates the whole table at once.
const maxTable = 1 << 17

// engineOf is chooseEngine for this system.
func engineOf(cfg Config, log *slog.Logger) (Config, func() (poller.Poller, error)) {
	return chooseEngine(cfg, log, poller.ProbeUring, poller.PreferUring)
}

// chooseEngine returns what opens a poller of the engine that cfg selects, or
// of epoll where the system has no io_uring for us, which it says then; and cfg
// with the bound on connections that goes with it. probe reports whether there is
// io_uring, prefer whether it is one that costs less than epoll.
func chooseEngine(cfg Config, log *slog.Logger, probe, prefer func() error) (Config, func() (poller.Poller, error)) {
	epoll := func() (poller.Poller, error) { return poller.NewEpoll() }
	switch {
	case cfg.Engine == engineEpoll:
		return cfg, epoll
	case cfg.Engine == engineUring, cfg.MaxConns > connsPerTable():
	default:
		if err := prefer(); err != nil {
			log.Debug("epoll is used", "io_uring", err)
			return cfg, epoll
		}
	}
	if err := probe(); err != nil {
		log.Warn("io_uring cannot be used, epoll is", "err", err)
		return cfg, epoll
	}
	if cfg.Loops == 0 {
		cfg.Loops = min(sys.Processors(), 255)
	}
	table := min(connsPerTable(), maxTable)
	if cfg.MaxConns == 0 {
		cfg.MaxConns = cfg.Loops * table
	}
	if most := cfg.Loops * table; cfg.MaxConns > most {
		log.Warn("fewer connections than max_conns fit into the tables of the loops: raise loops or the descriptor limit", "max_conns", cfg.MaxConns, "loops", cfg.Loops, "fit", most)
	}
	table = min(table, cfg.MaxConns) + spareFiles
	return cfg, func() (poller.Poller, error) {
		p, err := poller.NewUring(table)
		if err == nil {
			return p, nil
		}
		// It worked for the probe, so memory or descriptors are short. A loop of
		// the other kind serves as well beside the others.
		log.Warn("io_uring cannot be used for a loop, epoll is", "err", err)
		return epoll()
	}
}
