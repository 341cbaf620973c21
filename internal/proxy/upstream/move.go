package upstream

// Requests that move to another process: a tunnel is in flight there for as long as it was here.

// Arrived counts a request in flight that comes from another process on a connection of its own, and returns the peer of c
// whose Address reads address; nil: there is none, and nothing is counted. Done or Peer.Moved must follow for the request,
// Peer.Release for the connection. Neither is refused, however many there are. Any goroutine may call it.
func Arrived(c *Cluster, address string) *Peer {
	for e := range c.view.Load().all() {
		if p := e.peer; p.address.String() == address {
			p.inflight.Add(1)
			p.conns.Add(1)
			return p
		}
	}
	return nil
}

// Moved takes the place of Cluster.Done for a request that continues in another process, which counts its outcome.
func (p *Peer) Moved() { p.inflight.Add(-1) }
