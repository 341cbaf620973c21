// Package record keeps a backend's event streams in the log of a namespace, so that
// a client that lost its connection continues where it was, a second request for the
// same attaches to the first, and what was said can be read again.
//
//	v := recorder.Query(query) // which client requests what; may be answered later
//	ask.Then(Answer{…})        // on the client's loop:
//	  Start                    //   none exists yet: give the exchange to the Tape
//	  Follow                   //   subscribe to its channel
//	  Over                     //   the client has all of it
//	v.Leave()                  // the client is gone
//
// # Two channels
//
// Requests that are alike have one index channel; its name is a digest of the client
// and its request. It says which recordings there were: start, open, end, broken, or void
// for a reply that was no event stream. The events of a recording stand on a channel
// of its own, whose name has a random part. Both lie in one namespace and therefore
// in one log, so that the position of the start is where the recording starts.
//
// The start is written before the backend is asked, under an idempotency key that
// counts the recordings of the index: of two nodes that start at once one finds the
// other's start in place of its own, and follows.
//
// # Who does what
//
// A [Tape] is the sink of the exchange, on its loop. It reads the events and hands
// them to a goroutine that has one at a time stored. The backend is read as fast as
// the broker answers, whatever the clients do. A [Recorder] has one goroutine, the
// clerk, with a shard of the hub: it follows the index channels of what is under way
// here and answers requests.
//
// # What is complete
//
// Every recording ends with a record that reports whether the backend's stream was
// whole. One whose gateway died has none: the next request for it on a gateway that
// can determine that writes it, and all followers are notified.
package record
