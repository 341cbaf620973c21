// Package policy is what a route asks of a request before it goes on: credentials,
// limits, validation, rewriting, header rules and the access log.
package policy
