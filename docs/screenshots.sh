#!/bin/bash
# Takes the pictures of the documentation anew: bash docs/screenshots.sh [WHAT...]
#
#   dashboard   the live page under some load: dark, light, tools, phone
#   demo        weir demo
#   knee        the report of docs/tutorial/capacity.md: two minutes, on a quiet machine
#   site        pages of the documentation's site, wide and on a phone, into .cache/site-pictures to look at
#
# Without arguments: dashboard and demo. It needs bin/weir (make build), Chromium and the npm packages of
# test/e2e/npm (test/install.sh chromium npm).
set -euo pipefail
cd "$(dirname "$0")/.."
weir=$PWD/bin/weir
work=$(mktemp -d)
public=127.0.0.1:18000 admin=127.0.0.1:18001 key=screenshots-key-0123456789
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT

# shoot ACTIONS: see test/e2e/npm/screenshots.mjs.
shoot() { (cd test/e2e/npm && node screenshots.mjs "$1"); }

ready() { until curl -fs -o /dev/null "http://$1"; do kill -0 "$2" && sleep 0.1; done; }

dashboard() {
  WEIR_AUTH_API_KEYS='[{"name":"screenshots","key":"'$key'"}]' "$weir" serve --listen $public --admin-listen $admin --data-dir "$work/data" \
    --set 'namespaces=[{"name":"default","anonymous":true,"durability":"stored","history_size":10000},{"name":"market","anonymous":true,"durability":"none"}]' \
    2>"$work/serve.log" &
  ready "$public/readyz" $!
  # Orders and prices on a handful of channels with a few followers each, and one channel with many.
  node test/e2e/npm/traffic.mjs "http://$public" $key &
  "$weir" bench "http://$public" --adapter weir --kind pubsub -c 1200 --rate 27 --duration 5m --quiet -H "X-API-Key: $key" >/dev/null &
  shoot '{"kind":"dashboard","url":"http://'$admin'/","out":"'$PWD'/docs"}'
  kill %1 %2 %3 2>/dev/null || true
}

demo() {
  "$weir" demo --addr $public --open=false >/dev/null &
  ready "$public/" $!
  sleep 20
  shoot '{"kind":"page","url":"http://'$public'/","width":1400,"height":880,"out":"'$PWD'/docs/demo.png"}'
  kill $!
}

knee() {
  awk '/^```go$/ { on = 1; next } /^```$/ { on = 0 } on' docs/tutorial/capacity.md >"$work/main.go"
  go build -o "$work/service" "$work/main.go"
  "$work/service" &
  "$weir" knee http://127.0.0.1:8080/ --quick --slo 50ms --runtime http://127.0.0.1:8080/debug/vars --html "$work/knee.html"
  shoot '{"kind":"page","url":"file://'$work'/knee.html","width":1000,"height":1425,"scheme":"light","out":"'$PWD'/docs/tutorial/knee.png"}'
}

site() {
  make --no-print-directory site SITE="$work/site"
  mkdir -p .cache/site-pictures
  shoot '{"kind":"site","url":"file://'$work'/site","out":"'$PWD'/.cache/site-pictures"}'
}

[ $# -gt 0 ] || set -- dashboard demo
for what; do
  case $what in
    dashboard | demo | knee | site) $what ;;
    *) echo "screenshots: there is no $what; want dashboard, demo, knee or site" >&2; exit 2 ;;
  esac
done
