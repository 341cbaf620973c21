// Package policy is what a route requires of a request before it continues, and what it
// makes of it on the way: addresses, credentials, limits, CORS, validation,
// rewriting, header rules and the access log. The event loops' front and the one
// on net/http use it alike.
//
//	set, err := policy.New(routes, deps)        // at start and at reload: swap a pointer
//	x.Reset()                                   // one Exchange per request under way, reused
//	x.Method, x.Path, … = …
//	v := set.Match(x)                           // Forward: x.Route is set
//	v = x.Route.Admit(x, now)                   // Forward, Respond, Refuse or Identify
//	v = x.Route.AdmitIdentity(x, id, err, now)  // after Identify
//	head := x.Route.AppendRequestHead(buf, x, framing)
//	x.Retain()                                  // the request's bytes may go now
//	head = x.Route.AppendResponseHead(buf, x, status, fields, framing)
//	x.Done(outcome)                             // always, once
package policy
