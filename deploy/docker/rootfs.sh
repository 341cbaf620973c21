#!/bin/bash
# Lays out the root of the container's image: bash deploy/docker/rootfs.sh BINARY DIR
# Called by the Dockerfile and, without an engine, by packaging/image.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$1 root=$2
certificates=/etc/ssl/certs/ca-certificates.crt

mkdir -p "$root"/{usr/bin,etc/weir,etc/ssl/certs,usr/share/doc/weir,proc,sys,dev}
install -d -m 1777 "$root/tmp"
install -d -m 750 "$root/var/lib/weir"
install -m 755 "$binary" "$root/usr/bin/weir"
install -m 644 "$here/weir.yaml" "$root/etc/weir/weir.yaml"
install -m 644 "$certificates" "$root$certificates"
(cd "$here/../.." && go run ./packaging/licenses "$binary") >"$root/usr/share/doc/weir/third-party-licenses.txt"
install -m 644 "$here/../../LICENSE" "$root/usr/share/doc/weir/LICENSE"
echo 'weir:x:65532:65532:Weir:/var/lib/weir:/nonexistent' >"$root/etc/passwd"
echo 'weir:x:65532:' >"$root/etc/group"
chown 65532:65532 "$root/var/lib/weir"
