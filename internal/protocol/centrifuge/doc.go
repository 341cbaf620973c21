// Package centrifuge speaks the Centrifuge client protocol and its server API over
// the hub, so that existing SDKs work with Weir.
package centrifuge
