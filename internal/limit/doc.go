// Package limit decides who may ask and how often: token buckets per tenant and per
// address, and address lists.
package limit
