#!/bin/sh
# Ends the driver when the package is removed, and not when it is upgraded (deb: "upgrade",
# rpm: 1). Volumes and their mounts stay.
set -e
case ${1:-} in upgrade | 1) exit 0 ;; esac
[ -d /run/systemd/system ] || exit 0
systemctl disable --now touchstone.service
