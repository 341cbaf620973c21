package hub

// A Bus carries small messages between the nodes that share a broker. They are not
// stored: who does not listen misses them, and one may be lost. All methods may be
// called from any goroutine.
type Bus interface {
	// Node is this node's id: unique among the nodes and new with every start,
	// 1 to 32 bytes of A-Za-z0-9_.
	Node() string
	// Broadcast sends data to the listeners of topic on all nodes, this one included.
	// A topic is 1 to 64 bytes of A-Za-z0-9._-. data may be up to 512 KiB and is not
	// kept. It does not block.
	Broadcast(topic string, data []byte) error
	// SendTo is Tell for the listeners on one node.
	SendTo(node, topic string, data []byte) error
	// Listen has f called with what is sent on topic, one call at a time and in the
	// order of each sender, until stop is called. f must not block for long.
	Listen(topic string, f func(from string, data []byte)) (stop func(), err error)
}
