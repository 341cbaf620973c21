#!/bin/bash
# Runs the benchmark RUNS times (15), the routers in turn within each run, and prints as Markdown the
# least times, which other load on the machine disturbs least, their ratios, and the median of the
# ratios within each run: bash bench/router/run.sh
set -euo pipefail
cd "$(dirname "$0")"
go test -c -o router.test .
trap 'rm -f router.test' EXIT
for _ in $(seq "${RUNS:-15}"); do ./router.test -test.run '^$' -test.bench . -test.benchtime 50ms -test.cpu 1; done |
awk '
/^BenchmarkMatch/ { name = substr($1, 16); n[name]++; ns[name, n[name]] = $3; alloc[name] = $7; if (n[name] == 1) order[++m] = name }
function middle(v, c,  i, j, t) {
	for (i = 1; i <= c; i++) for (j = i + 1; j <= c; j++) if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
	return v[int((c + 1) / 2)]
}
function take(name, over,  i) { # over: of the ratios, each taken within its run
	split(name, part, "/")
	for (i = 1; i <= n[name]; i++) v[i] = over ? ns[name, i] / ns[part[1] "/weir", i] : ns[name, i]
	return middle(v, n[name])
}
END {
	print "| requests | router | least ns per match | allocations | × weir | median ratio within a run |"
	print "|---|---|---:|---:|---:|---:|"
	for (k = 1; k <= m; k++) {
		split(order[k], p, "/")
		take(p[1] "/weir", 0); base = v[1]
		take(order[k], 0); least = v[1]
		printf "| %s | %s | %.1f | %d | %.2f | %.2f |\n", p[1], p[2], least, alloc[order[k]], least / base, take(order[k], 1)
	}
}'
