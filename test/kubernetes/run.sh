#!/bin/bash
# Runs the controller of the Gateway API at a real kube-apiserver and etcd: bash test/kubernetes/run.sh (as root)
#
# Both are built from their Go modules into .cache/kubernetes, once: go.mod here names the versions. The test has a
# network of its own, since an EndpointSlice takes no address of loopback.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(cd "$here/../.." && pwd)
bin=$src/.cache/kubernetes address=10.90.0.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$bin"
export CGO_ENABLED=0 GOFLAGS=

# tool builds package $2 as $1, unless it is there in the version of go.mod.
tool() {
  local version
  version=$(cd "$here" && go list -f '{{.Module.Version}}' "$2")
  [ "$(cat "$bin/$1.version" 2>/dev/null)" != "$version" ] || [ ! -x "$bin/$1" ] || return 0
  echo "build $1 $version"
  (cd "$here" && nice go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$bin/$1" "$2")
  echo "$version" >"$bin/$1.version"
}

tool etcd go.etcd.io/etcd/server/v3
tool kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
(cd "$src" && go build -trimpath -buildvcs=false -o "$work/weir" ./cmd/weir)
cd "$src/integrations/gateway-api"
go build -trimpath -buildvcs=false -o "$work/sidecar" .
crds=$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard
go test -c -tags apiserver -o "$work/controller.test" ./controller
cd controller
KUBEBUILDER_ASSETS=$bin GATEWAY_API_CRDS=$crds WEIR=$work/weir SIDECAR=$work/sidecar ADDRESS=$address \
  unshare --net bash -c 'ip link set lo up && ip address add "$ADDRESS/32" dev lo && exec "$@"' - \
  "$work/controller.test" -test.run '^TestAgainstAnAPIServer$' -test.v -test.timeout 15m
