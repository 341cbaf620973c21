// Package proxy sends requests to backends: one exchange per request, on the
// loop of the client's connection, over connections that each loop keeps open to
// each peer. It knows HTTP/1.1, and HTTP/2 as connections of many streams on each of
// which HTTP/1.1 is spoken (link.go). It knows nothing of routes, credentials or pushing: the
// caller composes the request head, and gets the reply decoded, through a [Sink].
//
//	x := loop.Exchange(sink)        // reused, nothing is allocated
//	x.Head = append(x.Head, …)      // the whole request head
//	x.Start()                       // Pick → a pooled connection, or dial → the head is sent
//	x.Body(b); x.End(nil)           // the request's body as it comes; mind Full
//	sink.Head, sink.Body, sink.End  // the reply as it comes
//
// # What passes and what does not
//
// Framing is never copied from one side to the other. Both directions are decoded
// and written anew, so nothing that two parsers might read in two ways gets
// through. A body of unknown length goes out in chunks. Interim replies: 100 is
// passed on only to a client that requested it, others (103) always; an upstream
// that switches protocols unasked has failed. Trailers of a reply are passed on
// when the request said "TE: trailers", without the fields that RFC 9110 §6.5.1
// keeps out of trailers, and are never merged into the head; those of a request
// are dropped. "Expect: 100-continue" is forwarded (RFC 9110 §10.1.1) and the
// backend decides; a client that waits in vain sends its body anyway.
//
// # When an attempt fails
//
// Another is made if nothing of the reply went downstream, what was sent is still
// at hand (Config.Replay) and the cluster allows it: a connection that was never established
// for every method, otherwise the methods that RFC 9110 §9.2.2 calls idempotent.
// A pooled connection that the peer closes while a request is under way to it is
// such a case; a POST that meets it is answered 502, because it may have been done.
//
// An upstream that resets the connection while it is still being sent a body may
// take its early answer with it: the system drops what was not read.
package proxy
