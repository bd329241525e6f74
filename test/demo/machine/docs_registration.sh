# shellcheck shell=bash
on_disk /var/lib/touchstone
mkdir -p /var/lib/kubelet/plugins_registry
block 1 &
touchstone ctl node info --wait 10s --endpoint unix:///var/lib/kubelet/plugins/csi.touchstone.dev/csi.sock
until [ -S /var/lib/kubelet/plugins_registry/csi.touchstone.dev-reg.sock ]; do sleep 0.1; done
