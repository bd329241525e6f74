#!/usr/bin/env bash
# systemctl COMMAND UNIT, where there is no systemd: the unit's directories, capabilities and ExecStart.
# It starts nothing by itself: neither after a failure nor at a boot. A start returns when calls are served.
set -euo pipefail

command=$1 now=
shift
[[ ${1:-} != --now ]] || { now=yes && shift; }
name=${1:-}
name=${name%.service}
unit=/etc/systemd/system/$name.service
[[ -e $unit ]] || unit=/usr/lib/systemd/system/$name.service
pid=/run/$name.pid

setting() { sed -n "s/^$1=//p" "$unit"; }

start() {
  local capabilities
  install -d -m "$(setting RuntimeDirectoryMode)" "/run/$(setting RuntimeDirectory)"
  install -d -m "$(setting StateDirectoryMode)" "/var/lib/$(setting StateDirectory)"
  capabilities=$(setting CapabilityBoundingSet | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
  # shellcheck disable=SC2046 # words
  setsid setpriv --bounding-set "-all,$capabilities" --no-new-privs $(setting ExecStart) >"/run/$name.log" 2>&1 </dev/null &
  echo $! >"$pid"
  touchstone ctl capabilities --wait 60s >/dev/null || { cat "/run/$name.log" >&2 && return 1; }
}

stop() {
  [[ -e $pid ]] || return 0
  kill "$(cat "$pid")"
  while [[ -e /proc/$(cat "$pid")/exe ]]; do sleep 0.05; done
  rm "$pid"
}

case $command in
start) start ;;
stop) stop ;;
restart) stop && start ;;
enable) [[ ! $now ]] || start ;;
disable) [[ ! $now ]] || stop ;;
try-restart) [[ ! -e $pid ]] || { stop && start; } ;;
daemon-reload) ;;
*) echo "systemctl: $command is not known here" >&2 && exit 1 ;;
esac
