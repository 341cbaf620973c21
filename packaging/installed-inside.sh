#!/bin/bash
# What packaging/installed.sh checks in the Debian that it boots. Nothing else runs there.
set -u
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root
cd /check || exit 1
passed=0 failed=0

# check NAME COMMAND...: the command must succeed.
check() {
  local name=$1 out
  shift
  if out=$("$@" 2>&1); then
    passed=$((passed + 1))
    echo "ok    $name"
  else
    failed=$((failed + 1))
    echo "FAIL  $name: $*"
    tail -n 15 <<<"$out" | sed 's/^/      /'
  fi
}

# refuse NAME COMMAND...: the command must fail.
refuse() {
  local name=$1
  shift
  check "$name" bash -c '! "$@"' - "$@"
}

# eventually COMMAND...: the command must succeed within 15 s.
eventually() {
  local i
  for ((i = 0; i < 150; i++)); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  "$@"
}

is() { local got; got=$("${@:2}") && [ "$got" = "$1" ] || { echo "got \"$got\", want \"$1\""; return 1; }; }
property() { systemctl show weir.service -P "$1"; }
serving() { curl -fsS -o /dev/null http://127.0.0.1:8000/readyz; }
more() { [ "$(property NFileDescriptorStore)" -ge 2 ]; }

# messages starts a subscriber and a publisher of $1 messages, and a client that connects
# all the time.
messages() {
  rm -f received refused
  weir sub "load-$2" --since 0 --count "$1" --for 120s --quiet --json >received 2>sub.log &
  subscriber=$!
  (until seq "$1" | weir pub "load-$2" - --idempotency-key "$2" --api-key 0123456789abcdef; do :; done) >pub.log 2>&1 &
  publisher=$!
  (
    trap 'exit 0' TERM
    while :; do
      curl -s -o /dev/null --max-time 20 http://127.0.0.1:8000/healthz || echo "curl: status $?" >>refused
    done
  ) &
  connecting=$!
}

# received NAME N ends them: every message came once and in order, and no connection was
# refused.
received() {
  wait "$publisher" "$subscriber"
  kill "$connecting"
  wait "$connecting"
  check "$1: no message lost or repeated" cmp <(grep -o '"data":[0-9]*' received | cut -d: -f2) <(seq "$2")
  check "$1: no connection refused" bash -c '! sort refused 2>/dev/null | uniq -c | grep .'
}

install() {
  check "apt installs it" apt-get install -y ./old.deb
  check "the service runs" is active systemctl is-active weir.service
  check "it starts at boot" is enabled systemctl is-enabled weir.service
  check "the socket unit is the administrator's choice" is disabled bash -c 'systemctl is-enabled weir.socket || true'
  check "it serves on loopback" serving
  check "weir health" is ok weir health --config /etc/weir/weir.yaml --ready
  check "the process is the user weir" is weir bash -c 'ps -o user= -p "$(systemctl show weir -P MainPID)" 2>/dev/null || stat -c %U "/proc/$(systemctl show weir -P MainPID)"'
  check "its one right is low ports" bash -c '[ "$(grep CapBnd "/proc/$(systemctl show weir -P MainPID)/status" | cut -f2)" = 0000000000000400 ]'
  check "root writes the configuration, the service reads it" is "root weir 640" stat -c "%U %G %a" /etc/weir/weir.yaml
  check "the data is the service's" is "weir weir 750" stat -c "%U %G %a" /var/lib/weir
  check "systemd keeps the sockets" eventually more
  check "io_uring within the sandbox" bash -c 'curl -fsS http://127.0.0.1:8001/metrics | grep -q "^weir_" && ! journalctl -u weir | grep -i "io_uring.*\(denied\|not permitted\)"'
  check "exposure of the unit is at most 2.0" systemd-analyze security --threshold=20 weir.service
  check "the unit is right" systemd-analyze verify --man=no weir.service weir.socket
}

configure() {
  cat >>/etc/weir/weir.yaml <<'YAML'
# changed by the administrator
auth: {api_keys: [{name: check, key: 0123456789abcdef}]}
namespaces: [{name: default, anonymous: true}]
YAML
  check "the change is valid" weir config check --config /etc/weir/weir.yaml
  check "systemctl reload applies it" systemctl reload weir.service
  check "it publishes" eventually weir pub news 1 --api-key 0123456789abcdef
}

restart() {
  messages 5000 restart
  check "systemctl restart under load" systemctl restart weir.service
  received restart 5000
}

upgrade() {
  local before since
  before=$(weir version)
  since=$(property ActiveEnterTimestampMonotonic)
  messages 5000 upgrade
  check "apt upgrades it under load" apt-get install -y ./new.deb
  received upgrade 5000
  check "the new process took over, the service was not restarted" is "$since" property ActiveEnterTimestampMonotonic
  check "another version serves" [ "$before" != "$(weir version)" ]
  check "it is the running one" bash -c 'curl -fsS http://127.0.0.1:8001/api/info | tr -d " \n" | grep -qF "\"version\":\"$(weir version | cut -d" " -f2)\""'
  check "the configuration is kept" grep -q "changed by the administrator" /etc/weir/weir.yaml
  check "the messages are kept" weir sub news --since 0 --count 1 --for 10s
}

# watchdog: a process that stands still is replaced.
watchdog() {
  local pid
  mkdir -p /run/systemd/system/weir.service.d
  printf '[Service]\nWatchdogSec=1s\nTimeoutAbortSec=1s\n' >/run/systemd/system/weir.service.d/check.conf
  systemctl daemon-reload && systemctl restart weir.service
  pid=$(property MainPID)
  kill -STOP "$pid"
  check "the watchdog replaces a process that stands still" eventually bash -c '[ "$(systemctl show weir -P MainPID)" != "$1" ] && curl -fsS --max-time 1 http://127.0.0.1:8000/readyz' - "$pid"
  rm -r /run/systemd/system/weir.service.d
  systemctl daemon-reload
}

sockets() {
  systemctl stop weir.service
  check "systemd opens the socket" systemctl enable --now weir.socket
  check "the service starts on it" systemctl restart weir.service
  check "and serves" serving
  check "its log says so" bash -c 'journalctl -u weir --no-pager | grep -q "listening on sockets"'
  check "the socket is disabled again" systemctl disable --now weir.socket
  check "the service goes on without it" systemctl restart weir.service
}

remove() {
  check "apt removes it" apt-get remove -y weir
  refuse "nothing serves" serving
  refuse "no process is left" pgrep -x weir
  check "a removal keeps configuration and messages" bash -c 'grep -q "changed by" /etc/weir/weir.yaml && [ -d /var/lib/weir/data ]'
  check "apt installs it again" apt-get install -y ./new.deb
  check "it serves again" eventually serving
  check "with the messages it had" weir sub news --since 0 --count 1 --for 10s
  check "apt purges it" apt-get purge -y weir
  check "a purge deletes configuration, messages and log" bash -c '! ls -d /etc/weir /var/lib/weir /var/log/weir 2>/dev/null'
  refuse "the unit is gone" systemctl cat weir.service
  check "no link to it is left" bash -c '! find /etc/systemd /var/lib/systemd -name "weir*" | grep .'
}

for part in install configure restart upgrade watchdog sockets remove; do $part; done
if [ "$failed" != 0 ]; then journalctl -u weir --no-pager | tail -n 40; fi
echo "$passed passed, $failed failed"
