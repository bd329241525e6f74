#!/usr/bin/env bash
# run.sh DIR SCRIPT: runs SCRIPT, which runs the blocks of a page as they are printed, on a machine of its own.
# It is the first process of a PID namespace, so that no process outlives it, in a network namespace.
#
# The machine is / and the working tree beneath overlays in memory, with processes, /run and /tmp of its own, and
# /disk, which is DIR/disk: no overlay, as the driver requires for data. /dev, /sys and Go's caches are shared.
# sudo runs the command, and systemctl.sh does what the unit says, but for its sandbox: there is no systemd. The caller
# unmounts what is mounted below DIR and detaches the loop devices.
set -euo pipefail

dir=$1 script=$2
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../../.." && pwd)
root=$dir/root

# overlay DIRECTORY NAME: what is written below it is in memory.
overlay() {
  mkdir -p "$dir/memory/$2/upper" "$dir/memory/$2/work" "$root$1"
  mount -t overlay "$2" -o "lowerdir=$1,upperdir=$dir/memory/$2/upper,workdir=$dir/memory/$2/work" "$root$1"
}

ip link set lo up
mkdir -p "$dir/memory" "$root" "$dir/disk"
mount -t tmpfs memory "$dir/memory"
overlay / system
mount --make-shared "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
mkdir -p "$root/disk" "$root/mnt" "$root/srv" "$root/var/lib/kubelet"
mount --bind "$dir/disk" "$root/disk"
overlay "$tree" tree
for cache in "$GOCACHE" "$GOMODCACHE"; do
  mkdir -p "$root$cache"
  mount --bind "$cache" "$root$cache"
done
# What make install has installed on this machine:
rm -rf "$root/etc/touchstone" "$root/etc/systemd/system/touchstone.service" "$root/usr/local/bin/touchstone"
cp -L "$dir/touchstone" "$root/usr/bin/touchstone"
cp "$here/systemctl.sh" "$root/usr/local/bin/systemctl"
# shellcheck disable=SC2016 # expanded there
printf '#!/bin/sh\nexec "$@"\n' >"$root/usr/local/bin/sudo"
chmod 755 "$root/usr/local/bin/sudo" "$root/usr/local/bin/systemctl"
mkdir "$root/run/blocks"
cp "$dir"/blocks/* "$root/run/blocks"

export PATH=/usr/local/bin:$PATH:/usr/sbin:/sbin
# shellcheck disable=SC2016 # expanded there
chroot "$root" bash -euo pipefail -c 'cd "$1" && . test/demo/machine/functions.sh && . "test/demo/$2"' bash "$tree" "$script"
