// Package mercure speaks the Mercure protocol over the hub, both as deployed
// clients speak it (draft 07) and as version 1.0 will (draft 08).
package mercure
