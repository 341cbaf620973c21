#!/bin/bash
# Runs the image's root as an engine would, without one: bash packaging/image.sh BINARY
#
# bubblewrap gives it namespaces of its own, a read-only root, no capability, user 65532,
# the environment, command and folder of the Dockerfile, and a network with loopback alone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
file=$here/../deploy/docker/Dockerfile
binary=$(realpath "$1")

# One network for the server, its health check and the client: loopback alone.
if [ "${2:-}" != --inside ]; then
  exec unshare --net bash -c 'ip link set lo up && exec bash "$@"' - "$0" "$binary" --inside
fi

work=$(mktemp -d)
pid=
cleanup() {
  [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap cleanup EXIT

die() { echo "image: $*" >&2; [ ! -f "$work/log" ] || cat "$work/log" >&2; exit 1; }

# instruction prints the last one of a name, JSON lists as words.
instruction() { sed -n "s/^$1 //p" "$file" | tail -n 1 | tr -d '[]",'; }

root=$work/root
bash "$here/../deploy/docker/rootfs.sh" "$binary" "$root"
user=$(instruction USER) folder=$(instruction WORKDIR) config=$(instruction ENV)
read -ra entry <<<"$(instruction ENTRYPOINT) $(instruction CMD)"
read -ra health <<<"$(sed -n 's/^HEALTHCHECK .* CMD //p' "$file" | tr -d '[]",')"
[ "$user" = 65532:65532 ] || die "USER is $user, want 65532:65532"
[ -z "$(find "$root" -perm /6000)" ] || die "a file of it is setuid"
[ -z "$(find "$root" -type f -perm /111 ! -path "$root/usr/bin/weir")" ] || die "another program than weir is in it"

# contained runs a command in the container's root.
contained() {
  setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
    bwrap --unshare-user-try --unshare-pid --unshare-ipc --unshare-uts --cap-drop ALL --die-with-parent --clearenv \
    --ro-bind "$root" / --bind "$work/data" "$folder" --tmpfs /tmp --proc /proc --dev /dev --ro-bind /sys /sys \
    --chdir "$folder" --setenv "${config%%=*}" "${config#*=}" "${@}"
}

mkdir "$work/data" && chown "$user" "$work/data" && chmod 711 "$work"
key='[{"name":"check","key":"0123456789abcdef"}]'

contained "${entry[@]}" >"$work/log" 2>&1 && die "it serves beyond loopback without keys"
grep -q "there are no keys" "$work/log" || die "it does not say that it needs keys"

contained --setenv WEIR_AUTH_API_KEYS "$key" --setenv WEIR_NAMESPACES '[{"name":"default","anonymous":true}]' "${entry[@]}" >"$work/log" 2>&1 &
pid=$!
for ((i = 0; i < 300; i++)); do
  contained "${health[@]}" --ready >/dev/null 2>&1 && break
  kill -0 "$pid" 2>/dev/null || die "it ended"
  sleep 0.1
done
[ "$(contained "${health[@]}")" = ok ] || die "HEALTHCHECK fails"
"$binary" pub news '"hello"' --api-key 0123456789abcdef >/dev/null || die "it does not publish"
"$binary" sub news --since 0 --count 1 --for 10s --quiet >/dev/null || die "it does not serve"
server=$(pgrep -n -u "${user%:*}" -x weir) || die "it does not run as user ${user%:*}"
grep -q '^CapEff:	0000000000000000$' "/proc/$server/status" || die "it has capabilities"
kill -TERM "$server"
wait "$pid" || die "SIGTERM: status $?"
pid=
[ -d "$work/data/data" ] || die "nothing is stored in $folder"
! contained "${health[@]}" >/dev/null 2>&1 || die "HEALTHCHECK passes without a server"
echo "image: serves, stores and ends, as $user on a read-only root"
