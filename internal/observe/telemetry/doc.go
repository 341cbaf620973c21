// Package telemetry sends traces and metrics to collectors: OpenTelemetry, and a
// push gateway for short runs.
package telemetry
