// Package cluster knows the nodes that share a broker: who lives, and how to ask all of them.
package cluster
