#!/bin/bash
# Three nodes on this machine, with a NATS server in each: bash deploy/cluster/three.sh [check]
#
# They serve on 127.0.0.1:8010, 8020 and 8030 until Ctrl-C, with an API key that is printed.
# With check it plays a failure in place of waiting: a node is killed while messages are
# published, the others go on, the node comes back and has them all. WEIR names the binary
# (weir), PORT the first port (8010), DIR the data (a temporary folder, removed at the end).
set -euo pipefail
weir=${WEIR:-weir} base=${PORT:-8010} dir=${DIR:-}
key=$(head -c 24 /dev/urandom | base64 -w0)
pids=()
command -v "$weir" >/dev/null || { echo "three: $weir is not there: build it with make build, and set WEIR=bin/weir" >&2; exit 1; }
if [ -z "$dir" ]; then
  dir=$(mktemp -d)
  remove=$dir
fi

cleanup() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  [ -z "${remove:-}" ] || rm -rf "$remove"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

url() { echo "http://127.0.0.1:$((base + 10 * ($1 - 1)))"; }

# node starts node $1.
node() {
  local port=$((base + 10 * ($1 - 1))) routes=$((base + 1002))
  WEIR_AUTH_API_KEYS="[{\"name\":\"three\",\"key\":\"$key\"}]" \
    WEIR_NAMESPACES='[{"name":"default","anonymous":true,"replicas":3}]' \
    WEIR_BROKER_NATS_CLUSTER_NAME=weir WEIR_BROKER_NATS_CLUSTER_NODE=n$1 WEIR_BROKER_NATS_CLUSTER_LISTEN=127.0.0.1:$((port + 1002)) \
    WEIR_BROKER_NATS_CLUSTER_ROUTES="[\"127.0.0.1:$routes\",\"127.0.0.1:$((routes + 10))\",\"127.0.0.1:$((routes + 20))\"]" \
    WEIR_BROKER_NATS_CLUSTER_USER=weir WEIR_BROKER_NATS_CLUSTER_PASSWORD=$key \
    "$weir" serve --listen "127.0.0.1:$port" --admin-listen "127.0.0.1:$((port + 1))" --data-dir "$dir/n$1" >>"$dir/n$1.log" 2>&1 &
  pids[$1]=$!
}

# ready waits until node $1 serves.
ready() {
  local i
  for ((i = 0; i < 600; i++)); do
    "$weir" health --ready --admin-listen "127.0.0.1:$((base + 10 * ($1 - 1) + 1))" >/dev/null 2>&1 && return 0
    kill -0 "${pids[$1]}" 2>/dev/null || break
    sleep 0.1
  done
  echo "three: node $1 is not ready:" >&2
  tail -n 5 "$dir/n$1.log" >&2
  return 1
}

# publish sends the numbers from $2 to $3 to node $1; a repeated one is stored once.
publish() { until seq "$2" "$3" | "$weir" pub news - --text --idempotency-key "n$2" --api-key "$key" --url "$(url "$1")" >/dev/null 2>>"$dir/pub.log"; do sleep 0.1; done; }

# holds checks that node $1 has the numbers from 1 to $2, once and in order.
holds() {
  cmp <("$weir" sub news --since 0 --count "$2" --for 60s --quiet --json --url "$(url "$1")" | sed 's/.*"data":"\([0-9]*\)".*/\1/') <(seq "$2") ||
    { echo "three: node $1 does not have messages 1 to $2" >&2; return 1; }
}

for n in 1 2 3; do node $n; done
for n in 1 2 3; do ready $n; done
echo "three nodes serve on $(url 1), $(url 2) and $(url 3)"

if [ "${1:-}" != check ]; then
  echo "publish with: $weir pub news hello --api-key $key --url $(url 1)"
  wait
  exit
fi

publish 1 1 50
holds 3 50
echo "ok: what one node is given, another one serves"
kill -KILL "${pids[2]}"
wait "${pids[2]}" 2>/dev/null || true
publish 3 51 100
holds 1 100
echo "ok: with one node killed, the others go on"
node 2
ready 2
publish 2 101 120
for n in 1 2 3; do holds $n 120; done
echo "ok: the node is back and has them all"
