# shellcheck shell=bash
mkdir -p /var/lib/touchstone/pool /var/lib/kubelet/plugins/csi.touchstone.dev
mount -t tmpfs touchstone /mnt
(block 1 +e || true) | grep "/mnt touchstone"
umount /mnt
test -z "$(block 1 +e)"
block 2
test ! -e /var/lib/touchstone
test ! -e /var/lib/kubelet/plugins/csi.touchstone.dev
