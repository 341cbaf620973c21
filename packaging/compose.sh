#!/bin/bash
# Runs deploy/compose/three.yaml as an engine would, without one: bash packaging/compose.sh BINARY (as root)
#
# Three Weir and three NATS servers, each with a network, a root and processes of its own in namespaces, on the
# images' roots, read-only, as user 65532 without capabilities. A node and a NATS server are killed while messages
# are published, and come back; test/deploy/three_test.go says what must hold. The NATS server is that of go.mod.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(cd "$here/.." && pwd)
binary=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 711 "$work"
export GOFLAGS=

mkdir -p "$work"/nats/{etc,tmp,proc,dev,data}
(cd "$src" && CGO_ENABLED=0 go build -trimpath -o "$work/nats/nats-server" github.com/nats-io/nats-server/v2)
bash "$src/deploy/docker/rootfs.sh" "$binary" "$work/weir"
touch "$work/weir/etc/hosts" "$work/nats/etc/hosts" # an engine's mounts
cd "$src/test/deploy"
go test -c -tags namespaces -o "$work/deploy.test" .
WEIR=$binary WEIR_ROOT=$work/weir NATS_ROOT=$work/nats unshare --net --mount --pid --fork --kill-child --mount-proc \
  bash -c 'ip link set lo up && mkdir -p /run/netns && mount -t tmpfs netns /run/netns && exec "$@"' - \
  "$work/deploy.test" -test.run '^TestThreeNodesServeLoseOneAndHeal$' -test.v -test.timeout 10m
