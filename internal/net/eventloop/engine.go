package eventloop

import "github.com/weir-gateway/weir/internal/net/sys"

// Engines, as Config names them.
const (
	engineAuto  = "auto"
	engineEpoll = "epoll"
	engineUring = "io_uring"
)

// connsPerTable is how many connections the process can have by epoll, and each
// loop of it by io_uring, where only the loop's own table is bounded by the limit.
func connsPerTable() int { return max(int(min(sys.MaxFiles(), 1<<30))-spareFiles, 16) }
