// Package loadgen makes load: an open-model generator whose connections live on
// event loops, and the accounting of what came back.
//
// A Generator is made from a Spec. Run carries the Spec out and returns a
// Result; Measure puts one Load on the target for a while and returns a Window,
// for anyone who looks for a limit. Response times count from the instant an arrival
// was intended, so that a slow server cannot hide by slowing the generator
// (coordinated omission); what the generator itself was late is counted apart,
// and a window in which that was the larger part says so.
//
// How it is built: a pacer on a thread of its own (pacer.go) deals what a schedule
// has due (schedule.go) to shards, one per event loop (shard.go). A shard owns
// links, its connections (link.go): request links carry exchanges (http.go, echo.go, h2.go),
// streams are what a server sends on (stream.go), and an adapter says what is
// spoken on them (adapter.go). What a shard counts is a piece (piece.go); a session
// collects pieces into windows (run.go). A subscriber follows each publisher's
// sequence in a track (track.go), from the stamp in every payload (stamp.go).
package loadgen
