// Package monitor writes what watches Weir from outside: alert and recording rules
// for Prometheus, on the same thresholds as the states that the process sees in itself.
// Its tests write the dashboards for Grafana and the facts of the runbooks on them.
//
//	what is alerted on?     [Alerts]: the governor's, and those on what only an outsider sees
//	the file for Prometheus  [Rules]: deploy/prometheus/weir.rules.yaml, and `weir config alerts` for other thresholds
//	the dashboard            dashboard_test.go: deploy/grafana, for classic and for native histograms
//
// What is under deploy/ is made of the default thresholds by
//
//	go test ./internal/observe/monitor -update
//
// and the same test fails when it has drifted.
package monitor
