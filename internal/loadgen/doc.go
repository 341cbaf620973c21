// Package loadgen makes load: an open-model generator whose connections live on event
// loops, and the accounting of what came back.
package loadgen
