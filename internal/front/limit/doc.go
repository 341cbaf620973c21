// Package limit decides who may ask and how often: token buckets per tenant, per
// address and per route, of this node or shared by a cluster's, lists of addresses, and whom to believe about where a
// request comes from. It opens no socket and reads no clock.
package limit
