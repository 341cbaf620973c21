#!/bin/bash
# Installs, upgrades, removes and purges the deb as an administrator would, in a Debian of
# its own that systemd boots: bash packaging/installed.sh OLD.deb NEW.deb (as root).
#
# The Debian is that of test/fresh.sh; systemd-nspawn boots it, without a network. What is
# checked there is packaging/installed-inside.sh. The last line is "N passed, N failed".
set -u
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "installed: $*" >&2; exit 1; }

# in_root runs in the namespaces of test/fresh.sh, with the Debian at $ROOT.
in_root() {
  mount -t proc proc "$ROOT/proc" || die "cannot mount"
  chroot "$ROOT" bash -c 'export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -qq -y --no-install-recommends systemd systemd-sysv dbus curl' </dev/null >"$ROOT/var/log/setup.log" 2>&1 ||
    die "systemd cannot be installed: $(tail -n 1 "$ROOT/var/log/setup.log")"
  umount "$ROOT/proc" # the container has its own
  mkdir "$ROOT/check"
  cp "$1" "$ROOT/check/old.deb" && cp "$2" "$ROOT/check/new.deb" && cp "$here/installed-inside.sh" "$ROOT/check/inside.sh" || exit 1
  cat >"$ROOT/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
ExecStart=/bin/bash /check/inside.sh
ExecStopPost=/bin/systemctl --no-block --force poweroff
StandardOutput=append:/check/log
StandardError=append:/check/log
[Install]
WantedBy=multi-user.target
UNIT
  mkdir -p "$ROOT/etc/systemd/system/multi-user.target.wants"
  ln -s ../check.service "$ROOT/etc/systemd/system/multi-user.target.wants/check.service"
  touch "$ROOT/check/log"
  timeout --kill-after 10 300 systemd-nspawn --quiet --boot --directory "$ROOT" --machine weir-check --register=no --keep-unit --private-network \
    >"$ROOT/check/boot" 2>&1 </dev/null
  cat "$ROOT/check/log"
  tail -n 1 "$ROOT/check/log" | grep -Eq '^[0-9]+ passed, 0 failed$' || { tail -n 20 "$ROOT/check/boot"; exit 1; }
}

case ${1:-} in
  --in-root) shift && in_root "$@" ;;
  *)
    [ $# = 2 ] || die "usage: installed.sh OLD.deb NEW.deb"
    command -v systemd-nspawn >/dev/null || die "systemd-nspawn is not there: apt-get install systemd-container"
    exec bash "$here/../test/fresh.sh" with bash "$here/installed.sh" --in-root "$(realpath "$1")" "$(realpath "$2")"
    ;;
esac
