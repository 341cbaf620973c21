// Package router finds the rule that a host, a path and a method lead to.
//
//	path, odd, err := router.Normalize(buf[:0], req.Path) // once per request
//	i, outcome := r.Match(req.Host, path, req.Method, &params)
//
// # Which rule wins
//
// The host is looked at first: an exact one takes precedence over "*.example.com", a longer
// wildcard takes precedence over a shorter one, and a rule without a host comes last. A host's
// rules that do not fit the path leave the word to the next host in that order.
//
// Then the path, segment by segment from the left: a literal segment takes precedence over
// "{name}", which takes precedence over "/*". So "/a/*" takes precedence over "/{x}/b" for /a/b. "/a/*" takes
// everything below /a and /a itself, unless a rule for exactly "/a" does.
// "/a" and "/a/" are two paths.
//
// The method comes last and never makes a less specific path win: when the
// winning path has no rule for it, the outcome is MethodNotAllowed with the
// methods it has. A rule that lists the method takes precedence over one for any method. GET
// includes HEAD unless a rule of the same path lists HEAD itself.
//
// Two rules that no order separates are an error at build.
//
// # One reading of a path
//
// What is matched here must not be read as something else by a backend, so a path
// is matched, and forwarded, in one spelling only; see [Normalize].
package router
