package nats

import (
	"math/rand/v2"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// departures are the servers that were left lately because they seemed to be cut off from
// their cluster. They are connected to again only when others have failed: while a log has
// no leader the node may leave a second server, and would come back to the first. Of
// several that were left the first one is connected to.
type departures struct {
	mu   sync.Mutex
	left map[string]time.Time // by URL, those of the last avoidFor
}

const (
	avoidFor = 30 * time.Second
	// avoidTries is how often others must have failed.
	avoidTries = 2
)

func (d *departures) add(url string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = map[string]time.Time{}
	}
	for u, at := range d.left {
		if now.Sub(at) > avoidFor {
			delete(d.left, u)
		}
	}
	d.left[url] = now
}

// next returns which of servers to connect to, and after how long; nil leaves it to the
// client library, as when none was left.
func (d *departures) next(servers []natsgo.Server, now time.Time) (*natsgo.Server, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	best, least, any := -1, 0, false
	var since time.Time // when best was left; the earliest of those tried as often
	for i := range servers {
		tries := servers[i].Reconnects
		at := d.left[servers[i].URL.String()]
		if now.Sub(at) < avoidFor {
			tries += avoidTries
			any = true
		} else {
			at = time.Time{}
		}
		if best < 0 || tries < least || tries == least && at.Before(since) {
			best, least, since = i, tries, at
		}
	}
	switch {
	case !any:
		return nil, 0
	case servers[best].Reconnects == 0:
		return &servers[best], 0
	default:
		return &servers[best], reconnectWait + rand.N(reconnectWait)
	}
}

// leave has the client library connect to another server. Its own ForceReconnect first
// writes what is buffered, for seconds if the server reads nothing any more.
func (b *connection) leave() {
	b.departures.add(b.nc.ConnectedUrl(), time.Now())
	if c := b.socket.Load(); c != nil {
		(*c).Close()
	}
}
