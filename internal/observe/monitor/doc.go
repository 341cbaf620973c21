// Package monitor writes what watches Weir from outside: alert and recording rules
// for Prometheus and dashboards for Grafana, on the same thresholds as the states
// that the process sees in itself.
//
//	what is alerted on?     [Alerts]: the governor's, and those on what only an outsider sees
//	the file for Prometheus  [Rules]: deploy/prometheus/weir.rules.yaml, and `weir config alerts` for other thresholds
//	the dashboard            [Dashboard]: deploy/grafana, for classic and for native histograms
//
// What is under deploy/ is made of the default thresholds by
//
//	go test ./internal/observe/monitor -update
//
// and the same test fails when it has drifted.
package monitor
