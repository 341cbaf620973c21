#!/bin/bash
# Runs test/all.sh in a minimal Debian of its own: bash test/fresh.sh [setup|warm|with COMMAND...]
#
# Without an argument it is the whole run, with setup only what comes before the tests.
# warm is the whole run with what Go has compiled already, but no results of tests.
# With a command it runs that on this machine, in the namespaces; ROOT is then the Debian,
# without the sources.
# The root has what README asks of a bare machine: debootstrap's minbase, git, make,
# this machine's Go toolchain (read-only) and a copy of the sources. Of this machine's
# configuration it gets where the registries are (apt, Go, npm, pip, their proxies and
# certificates), and of its files the Go modules and packages already downloaded; with setup and
# warm also what Go has compiled already.
#
# Every mount is made in a mount namespace, and every process is in a process namespace
# that ends with this script, however that ends. The folder is removed as well.
set -u
export PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
self=$(cd "$(dirname "$0")" && pwd)/fresh.sh
src=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$src/.cache/fresh" "$src/.cache/download"
cache=$(cd "$src/.cache" && pwd -P)
dir=$cache/fresh root=$cache/fresh/root

die() { echo "fresh: $*" >&2; exit 1; }

# outside takes the only lock, runs inside in namespaces, and removes the root.
outside() {
  [ "$(id -u)" = 0 ] || die "a root of its own needs root's rights, for mounts"
  command -v go >/dev/null || die "Go is needed on this machine: its toolchain is what the root uses"
  bash "$src/test/install.sh" debootstrap || exit 1
  exec 8>"$dir/lock"
  flock -n 8 || { echo "fresh: waiting for another run" >&2; flock 8; }
  rm -rf --one-file-system "$root" || die "$root cannot be removed"
  setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child bash "$self" --inside "$@" </dev/null &
  local pid=$! status
  trap 'kill -KILL "$pid"; wait "$pid"; rm -rf --one-file-system "$root"; exit 130' INT TERM HUP
  wait "$pid"
  status=$?
  trap - INT TERM HUP
  rm -rf --one-file-system "$root"
  exit "$status"
}

# debian_sources prints this machine's sources of Debian itself, as lines of sources.list.
debian_sources() {
  # shellcheck disable=SC2016 # apt-get fills these in
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' |
    awk '$1 == "Debian" && !seen[$0]++ { print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]", $2, $3, $4 }'
}

# base unpacks a minimal Debian at $root, made by debootstrap the first time.
base() {
  local suite uri tar
  suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || die "this machine is not a Debian"
  uri=$(debian_sources | awk -v suite="$suite" '$4 == suite && $5 == "main" { print $3; exit }')
  [ -n "$uri" ] || die "this machine has no source of Debian $suite configured (apt-get update)"
  tar=$dir/$suite.tar
  mkdir "$root"
  if [ ! -f "$tar" ]; then
    debootstrap --variant=minbase --include=ca-certificates,git,make "$suite" "$root" "$uri" >"$dir/debootstrap.log" 2>&1 ||
      die "debootstrap: $(tail -n 1 "$dir/debootstrap.log")"
    rm -f "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cf "$tar.new" . && mv "$tar.new" "$tar"
  else
    tar -C "$root" -xf "$tar"
  fi || die "$tar"
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/90fresh" # it does not have to survive a power failure
}

# registries brings over where this machine's registries are, and how to reach them.
registries() {
  debian_sources >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(https?::Proxy|https::CaInfo)' >"$root/etc/apt/apt.conf.d/90registries"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
  chroot "$root" update-ca-certificates >/dev/null 2>&1
  bash "$src/test/install.sh" --pip-index | sed -n 's/^PIP_\([A-Z_]*\)=/\1 = /p' | tr A-Z_ a-z- | { echo "[global]"; cat; } >"$root/etc/pip.conf"
  cat "${NPM_CONFIG_USERCONFIG:-$HOME/.npmrc}" 2>/dev/null |
    grep -E '^(@[^:]*:)?registry *=|^//|^(https?-)?proxy *=|^cafile *=' | install -m 600 /dev/stdin "$root/root/.npmrc"
}

# furnish mounts what the kernel and this machine lend, and copies the sources.
furnish() {
  local modules
  mount --bind "$root" "$root" && mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || die "cannot mount"
  mkdir -p "$root/usr/local/go" "$root/download/go" "$root/weir/.cache/download"
  mount --bind "$(go env GOROOT)" "$root/usr/local/go" && mount -o remount,ro,bind "$root/usr/local/go" || die "cannot mount the Go toolchain"
  modules=$(go env GOMODCACHE)/cache/download
  mkdir -p "$modules"
  mount --bind "$modules" "$root/download/go" && mount -o remount,ro,bind "$root/download/go" || die "cannot mount the Go modules"
  mount --bind "$cache/download" "$root/weir/.cache/download" || die "cannot mount the downloads"
  if [ $# -gt 0 ]; then # setup or warm: compiled packages; the results of this machine's tests are not used
    mkdir -p "$(go env GOCACHE)" "$root/root/.cache/go-build"
    mount --bind "$(go env GOCACHE)" "$root/root/.cache/go-build" || die "cannot mount the compiled packages"
  fi
  (cd "$src" && git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - 2>/dev/null) | tar -C "$root/weir" -xf - --no-same-owner ||
    die "cannot copy the sources"
}

# inside is the first process of the namespaces.
inside() {
  base
  if [ "${1:-}" = with ]; then
    mount -t proc proc /proc || die "cannot mount"
    registries
    ROOT=$root exec "${@:2}"
  fi
  furnish "$@"
  registries
  local kept=() name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CI; do
    [ -z "${!name:-}" ] || kept+=("$name=${!name}")
  done
  for name in GOSUMDB GONOSUMDB GOPRIVATE GOINSECURE; do kept+=("$name=$(go env "$name")"); done
  kept+=("GOPROXY=file:///download/go,$(go env GOPROXY)" GOTOOLCHAIN=local)
  mkdir "$root/host"
  cd "$root" && pivot_root . host || die "cannot change the root"
  umount -l /host || die "cannot leave the old root"
  cd /weir || exit 1
  exec env -i PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 FRESH=true "${kept[@]}" bash -c '
    git init -q . && git add -A && git -c user.name=fresh -c user.email=fresh@localhost commit -q -m "a copy" && go clean -testcache && exec bash test/all.sh "$@"' bash "${@/#warm/}"
}

case ${1:-} in
  --inside) shift && inside "$@" ;;
  setup | warm | with | "") outside "$@" ;;
  *) die "there is no part $1: setup, warm, with COMMAND, or nothing for all of it" ;;
esac
