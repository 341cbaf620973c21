// Package simulate plays random schedules of a cluster under fake time and checks every
// stream of every client.
//
// A schedule is a list of operations that follows from a seed: clients connect, read slowly,
// disconnect and resume; publishers publish and retry; nodes are killed, cut off and taken over;
// logs are trimmed and lost. Hub, sessions, event loops, backlogs, takeover states and the
// memory broker are the product's; the stored log of a cluster is a model (store_test.go) behind
// the hub.Broker interface. docs/design/simulation.md says what is checked and what is not.
//
// All code is in test files: nothing imports this package.
package simulate
