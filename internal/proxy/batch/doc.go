// Package batch makes one call to a backend of several requests, for models whose call costs
// much and one item more little. The requests of a route that are equal but for their items
// wait for each other, for a bounded time and up to a bounded number; the reply is split, and
// a stream of tokens is demultiplexed while it comes.
//
//	p := batch.Parse(format, body)      // what the body holds; a body that cannot be joined goes alone
//	m := queue.Join(batch.Request{…})   // on the client's loop
//	client.Alone()                      //   no other came, or none may: the request is sent as it is
//	client.Head, Body, End              //   or its part of the reply, as the calls of a proxy.Sink
//	client.Fail                         //   or none
//	m.Leave()                           // the request is over; or its client is gone
//
// # What is spliced
//
// Items are never decoded and written anew: the bytes that a client sent between two commas
// are those that the backend gets, and back. So a body is read strictly. One that two
// parsers might read in two ways (a key twice, a key written with escapes, bytes that are no
// UTF-8) could change what the others of its call receive, and goes alone.
//
// # Who does what
//
// A [Queue] is a route's, and any loop joins under its lock, for a few lines. A call is an
// exchange of package proxy on the loop of the request that opened it; parts of the reply are
// posted to the loops of the others. A lone request is not touched at all: its own loop sends
// it as on other routes.
package batch
