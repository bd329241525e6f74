# shellcheck shell=bash
on_disk /var/lib/touchstone
block 1 &
touchstone ctl node info --wait 10s
curl -fsS http://127.0.0.1:9808/ | grep -q '<title>'
