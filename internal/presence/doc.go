// Package presence knows who is on a channel, over all nodes: leased by node, so
// that those of a node that died are gone at once.
package presence
