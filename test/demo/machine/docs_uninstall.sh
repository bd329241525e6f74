# shellcheck shell=bash
mkdir -p /var/lib/touchstone/pool /var/lib/kubelet/plugins/csi.touchstone.dev
mount -t tmpfs touchstone /mnt
block 1 | grep "/mnt touchstone"
test -d /var/lib/touchstone/pool
umount /mnt
test -z "$(bash -euo pipefail /run/blocks/1)"
test ! -e /var/lib/touchstone
test ! -e /var/lib/kubelet/plugins/csi.touchstone.dev
