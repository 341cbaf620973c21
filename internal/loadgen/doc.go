// Package loadgen makes load: an open-model generator whose connections live on
// event loops, and the accounting of what came back.
//
// A Generator is made from a Spec. Run carries the Spec out and returns a
// Result; Measure puts one Load on the target for a while and returns a Window,
// for who looks for a limit. Response times count from the instant an arrival
// was intended, so that a slow server cannot hide by slowing the generator
// (coordinated omission); what the generator itself was late is counted apart,
// and a window in which that was the larger part says so.
package loadgen
