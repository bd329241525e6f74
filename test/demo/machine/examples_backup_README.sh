# shellcheck shell=bash
service
touchstone ctl volume create data --size 64Mi --block
write() {
  touchstone ctl volume publish data --block --staging /var/lib/kubelet/stage --target /var/lib/kubelet/device
  dd if=/dev/urandom of=/var/lib/kubelet/device bs=1M count=1 seek="$1" conv=fsync,notrunc status=none
  touchstone ctl volume unpublish data --staging /var/lib/kubelet/stage --target /var/lib/kubelet/device
}
snapshot() { touchstone ctl snapshot create data "$1" -o json | jq -r .snapshot.snapshot_id; }
write 1
MONDAY=$(snapshot monday)
write 5
TUESDAY=$(snapshot tuesday)
export MONDAY TUESDAY
want=$(sum_of data)
block 1 | tee /run/output
grep "$want" /run/output
test "$(sum_of data-again)" = "$want"
