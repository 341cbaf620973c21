// Package observe has the real gateway watched by a real Prometheus, with the rules and
// dashboards of deploy/: each state and each trouble is provoked, and must show by its
// name in the snapshot, in the metric, and in the alert.
package observe
