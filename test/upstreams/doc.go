// Package upstreams holds the proxy to its word with the real binary before real
// backends: processes that are stopped, killed, frozen and replaced under load,
// servers that fail, hang, cut, babble and dawdle, releases that go well and badly,
// and a configuration that changes all the while.
package upstreams
