# shellcheck shell=bash
# What the pages' scripts use on the machine.

# block NUMBER [OPTION...]: runs that block of the page with the mark machine as it is printed, with options of
# bash, and writes down that it was run.
block() {
  echo "block $1" >&2
  echo "$1" >>/disk/ran
  bash -euo pipefail "${@:2}" "/run/blocks/$1"
}

# on_disk DIRECTORY: the directory, on a filesystem for data.
on_disk() {
  mkdir -p "/disk$1" "$1"
  mount --bind "/disk$1" "$1"
}

# service [SETTING...]: what the packages install, with settings beside theirs, and the service that runs.
service() {
  on_disk /var/lib/touchstone
  install -D -m 0644 deploy/systemd/touchstone.service /usr/lib/systemd/system/touchstone.service
  install -D -m 0644 deploy/systemd/config.yaml /etc/touchstone/config.yaml
  printf '%s\n' "$@" >>/etc/touchstone/config.yaml
  systemctl start touchstone
}

# fails TEXT COMMAND...: the command fails, and says the text.
fails() {
  local output
  if output=$("${@:2}" 2>&1); then
    echo "want: ${*:2} fails; it says $output" >&2
    return 1
  fi
  grep -F -- "$1" <<<"$output"
}

# sum_of VOLUME: the SHA-256 of a block volume.
sum_of() {
  touchstone ctl volume publish "$1" --block --staging /var/lib/kubelet/stage --target /var/lib/kubelet/device >&2
  sha256sum </var/lib/kubelet/device | cut -d ' ' -f 1
  touchstone ctl volume unpublish "$1" --staging /var/lib/kubelet/stage --target /var/lib/kubelet/device >&2
}
